"""Write a checkpoint in the SDAR format, and check it against transformers' Qwen3."""

import argparse
import json
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

sys.path.insert(0, str(Path(__file__).parent))
import vocab
from model import Config, Model


def write(checkpoint, out, which="model", tokenizer=None):
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    c = torch.load(checkpoint, map_location="cpu", weights_only=False)
    config = Config(**c["config"])
    names = Model(config).names
    save_file({n: t.to(torch.bfloat16).contiguous() for n, t in zip(names, c[which])}, out / "model.safetensors", metadata={"format": "pt"})
    (out / "model.safetensors").chmod(0o644)
    (out / "config.json").write_text(json.dumps(config.checkpoint_json(vocab.EOS, vocab.MASK, vocab.PAD), indent=2) + "\n")
    (out / "generation_config.json").write_text(json.dumps({"eos_token_id": [vocab.EOS], "pad_token_id": vocab.PAD, "do_sample": False, "max_new_tokens": 256}, indent=2) + "\n")
    vocab.save(Tokenizer.from_file(str(tokenizer or Path(checkpoint).parent / "tokenizer.json")), out)


def load(folder):
    """The exported model in f32."""
    raw = json.loads((Path(folder) / "config.json").read_text())
    model = Model(Config(**{k: raw[k] for k in Config.__dataclass_fields__}))
    state = load_file(Path(folder) / "model.safetensors")
    for n, t in model.named().items():
        t.data.copy_(state[n].float())
    return model.eval(), raw


def mean(folders):
    """The mean of exported models, in f32: of runs that went on from the same weights it knows what each of them learned."""
    models = [load(folder)[0] for folder in folders]
    for tensors in zip(*(model.tensors for model in models)):
        tensors[0].data.copy_(sum(t.data for t in tensors) / len(tensors))
    return models[0]


def check_transformers(folder, block=8):
    """The same weights in transformers' Qwen3 under a block-causal mask must give the same logits."""
    from transformers import Qwen3Config, Qwen3ForCausalLM
    model, raw = load(folder)
    keep = {k: raw[k] for k in list(Config.__dataclass_fields__) + ["attention_bias", "hidden_act", "tie_word_embeddings"]}
    reference = Qwen3ForCausalLM(Qwen3Config(**keep, attn_implementation="eager")).eval()
    missing = reference.load_state_dict({n: t.detach() for n, t in model.named().items()}, strict=False)
    assert set(missing.missing_keys) <= {"lm_head.weight"} and not missing.unexpected_keys, missing
    reference.tie_weights()
    torch.manual_seed(0)
    ids, pos = torch.randint(0, raw["vocab_size"], (3, 53)), torch.arange(53)
    mask = (pos[None, :] // block <= pos[:, None] // block)
    with torch.no_grad():
        ours = model.logits(model(ids, pos.expand(3, -1), mask.expand(3, -1, -1)))
        bias = torch.where(mask, 0.0, torch.finfo(torch.float32).min)[None, None].expand(3, 1, -1, -1)
        theirs = reference(input_ids=ids, attention_mask=bias, position_ids=pos.expand(3, -1), use_cache=False).logits
    worst = (ours - theirs).abs().max().item()
    print(f"largest difference to transformers Qwen3: {worst:.2e}")
    return worst < 1e-4


if __name__ == "__main__":
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--checkpoint", help="checkpoint.pt to export")
    p.add_argument("--which", default="model", choices=("model", "ema"))
    p.add_argument("--out", default="models/demo")
    p.add_argument("--check-transformers", action="store_true", help="compare the exported model with Qwen3ForCausalLM")
    a = p.parse_args()
    if a.checkpoint:
        write(a.checkpoint, a.out, a.which)
    if a.check_transformers:
        sys.exit(0 if check_transformers(a.out) else 1)
