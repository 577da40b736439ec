"""Write a checkpoint of random bfloat16 weights: `python checkpoint.py FOLDER [--shape sdar-1.7b] [--family sdar] [--layers 28]`.

Shapes are SDAR-1.7B's, which is Qwen3-1.7B's, and LLaDA-8B's; speed does not depend on what the weights are. The tokenizer has
a token for every row of the vocabulary: 256 bytes, and names that no text has, as random weights write any token.
"""

import argparse
import json
import struct
from pathlib import Path

import numpy as np

# Vocabulary, hidden width, MLP width, heads, K/V heads, size of a head, layers, end of the text, mask.
SHAPES = {
    "sdar-1.7b": (151936, 2048, 6144, 16, 8, 128, 28, 151645, 151669),
    "llada-8b": (126464, 4096, 12288, 32, 32, 128, 32, 126081, 126336),
}


def sdar(shape, n_layers):
    """The configuration, and name and shape of each tensor."""
    vocabulary, hidden, mlp, heads, kv_heads, head, _, eos, mask = shape
    config = {"architectures": ["SDARForCausalLM"], "model_type": "sdar", "vocab_size": vocabulary, "hidden_size": hidden, "intermediate_size": mlp,
              "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": head, "num_hidden_layers": n_layers, "rms_norm_eps": 1e-6, "rope_theta": 1e6,
              "max_position_embeddings": 32768, "tie_word_embeddings": True, "hidden_act": "silu", "attention_bias": False, "mask_token_id": mask, "eos_token_id": eos,
              "block_size": 4, "torch_dtype": "bfloat16"}
    q, kv = heads * head, kv_heads * head
    parts = (("self_attn.q_proj", (q, hidden)), ("self_attn.k_proj", (kv, hidden)), ("self_attn.v_proj", (kv, hidden)), ("self_attn.o_proj", (hidden, q)),
             ("self_attn.q_norm", (head,)), ("self_attn.k_norm", (head,)), ("input_layernorm", (hidden,)), ("post_attention_layernorm", (hidden,)),
             ("mlp.gate_proj", (mlp, hidden)), ("mlp.up_proj", (mlp, hidden)), ("mlp.down_proj", (hidden, mlp)))
    layers = [(f"model.layers.{i}.{part}.weight", shape) for i in range(n_layers) for part, shape in parts]
    return config, [("model.embed_tokens.weight", (vocabulary, hidden)), *layers, ("model.norm.weight", (hidden,))]


def llada(shape, n_layers):
    """As `sdar`."""
    vocabulary, hidden, mlp, heads, kv_heads, head, _, eos, mask = shape
    config = {"architectures": ["LLaDAModelLM"], "model_type": "llada", "vocab_size": vocabulary, "embedding_size": vocabulary, "d_model": hidden, "mlp_hidden_size": mlp,
              "n_heads": heads, "n_kv_heads": kv_heads, "n_layers": n_layers, "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "max_sequence_length": 4096, "rope": True,
              "weight_tying": False, "activation_type": "silu", "block_type": "llama", "layer_norm_type": "rms", "include_bias": False, "mask_token_id": mask,
              "eos_token_id": eos, "torch_dtype": "bfloat16"}
    kv = kv_heads * head
    parts = (("q_proj", (hidden, hidden)), ("k_proj", (kv, hidden)), ("v_proj", (kv, hidden)), ("attn_out", (hidden, hidden)), ("attn_norm", (hidden,)),
             ("ff_norm", (hidden,)), ("ff_proj", (mlp, hidden)), ("up_proj", (mlp, hidden)), ("ff_out", (hidden, mlp)))
    layers = [(f"model.transformer.blocks.{i}.{part}.weight", shape) for i in range(n_layers) for part, shape in parts]
    ends = [("model.transformer.wte.weight", (vocabulary, hidden)), ("model.transformer.ff_out.weight", (vocabulary, hidden)), ("model.transformer.ln_f.weight", (hidden,))]
    return config, ends + layers


FAMILIES = {"sdar": sdar, "llada": llada}


def tokenizer(n_tokens, eos, mask):
    """Byte-level, without merges."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = [chr(b) for b in plain] + [chr(256 + i) for i in range(256 - len(plain))]
    vocabulary = {letter: i for i, letter in enumerate(letters)} | {f"<{i}>": i for i in range(256, n_tokens)}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    special = [{"id": i, "content": f"<{i}>", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True} for i in (eos, mask)]
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "vocab": vocabulary, "merges": []}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": special, "normalizer": None, "pre_tokenizer": level, "post_processor": None, "decoder": level, "model": model}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("folder")
    p.add_argument("--shape", choices=SHAPES, default="sdar-1.7b")
    p.add_argument("--family", choices=FAMILIES, help="names of tensors and settings, by default those of the shape's own model")
    p.add_argument("--layers", type=int, help="fewer than the model has")
    a = p.parse_args()
    folder, shape = Path(a.folder), SHAPES[a.shape]
    folder.mkdir(parents=True, exist_ok=True)
    config, tensors = FAMILIES[a.family or a.shape.split("-")[0]](shape, a.layers or shape[6])
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer(shape[0], *shape[7:])))
    header, end = {}, 0
    for name, sizes in tensors:
        size = 2 * int(np.prod(sizes))
        header[name] = {"dtype": "BF16", "shape": sizes, "data_offsets": [end, end + size]}
        end += size
    raw = json.dumps(header).encode()
    random = np.random.default_rng(0)
    with open(folder / "model.safetensors", "wb") as f:
        f.write(struct.pack("<Q", len(raw)) + raw)
        for _, sizes in tensors:
            values = np.ones(sizes, np.float32) if len(sizes) == 1 else random.standard_normal(sizes, np.float32) * 0.02
            f.write((values.view(np.uint32) >> 16).astype(np.uint16).tobytes())


if __name__ == "__main__":
    main()
