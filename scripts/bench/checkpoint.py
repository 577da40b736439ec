"""Write a checkpoint of random bfloat16 weights: `python checkpoint.py FOLDER [--layers 28]`.

The shape is SDAR-1.7B's, which is Qwen3-1.7B's; speed does not depend on what the weights are. The tokenizer has a token for
every row of the vocabulary: 256 bytes, and names that no text has, as random weights write any token.
"""

import argparse
import json
import struct
from pathlib import Path

import numpy as np

SHAPE = {"vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 6144, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128}
EOS, MASK = 151645, 151669


def tensors(n_layers):
    """Name and shape of each."""
    hidden, mlp, head = SHAPE["hidden_size"], SHAPE["intermediate_size"], SHAPE["head_dim"]
    q, kv = SHAPE["num_attention_heads"] * head, SHAPE["num_key_value_heads"] * head
    yield "model.embed_tokens.weight", (SHAPE["vocab_size"], hidden)
    for i in range(n_layers):
        p = f"model.layers.{i}."
        for part, shape in (("self_attn.q_proj", (q, hidden)), ("self_attn.k_proj", (kv, hidden)), ("self_attn.v_proj", (kv, hidden)), ("self_attn.o_proj", (hidden, q)),
                            ("self_attn.q_norm", (head,)), ("self_attn.k_norm", (head,)), ("input_layernorm", (hidden,)), ("post_attention_layernorm", (hidden,)),
                            ("mlp.gate_proj", (mlp, hidden)), ("mlp.up_proj", (mlp, hidden)), ("mlp.down_proj", (hidden, mlp))):
            yield p + part + ".weight", shape
    yield "model.norm.weight", (hidden,)


def tokenizer():
    """Byte-level, without merges."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = [chr(b) for b in plain] + [chr(256 + i) for i in range(256 - len(plain))]
    vocabulary = {letter: i for i, letter in enumerate(letters)} | {f"<{i}>": i for i in range(256, SHAPE["vocab_size"])}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    special = [{"id": i, "content": f"<{i}>", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True} for i in (EOS, MASK)]
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "vocab": vocabulary, "merges": []}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": special, "normalizer": None, "pre_tokenizer": level, "post_processor": None, "decoder": level, "model": model}


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("folder")
    p.add_argument("--layers", type=int, default=28)
    a = p.parse_args()
    folder = Path(a.folder)
    folder.mkdir(parents=True, exist_ok=True)
    config = {"architectures": ["SDARForCausalLM"], "model_type": "sdar", **SHAPE, "num_hidden_layers": a.layers, "rms_norm_eps": 1e-6, "rope_theta": 1e6, "max_position_embeddings": 32768,
              "tie_word_embeddings": True, "hidden_act": "silu", "attention_bias": False, "mask_token_id": MASK, "eos_token_id": EOS, "block_size": 4, "torch_dtype": "bfloat16"}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer()))
    header, end = {}, 0
    for name, shape in tensors(a.layers):
        size = 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + size]}
        end += size
    raw = json.dumps(header).encode()
    random = np.random.default_rng(0)
    with open(folder / "model.safetensors", "wb") as f:
        f.write(struct.pack("<Q", len(raw)) + raw)
        for name, shape in tensors(a.layers):
            values = np.ones(shape, np.float32) if len(shape) == 1 else random.standard_normal(shape, np.float32) * 0.02
            f.write((values.view(np.uint32) >> 16).astype(np.uint16).tobytes())


if __name__ == "__main__":
    main()
