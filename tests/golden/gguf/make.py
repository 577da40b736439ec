"""Makes the files of this folder: `PYTHONPATH=LLAMA_CPP/gguf-py python make.py LLAMA_CPP LIBLLAMA`, with torch, transformers.

LLAMA_CPP is a folder of llama.cpp's sources, whose converter and gguf-py run; LIBLLAMA is libllama.so built from them,
which quantizes.
"""

import ctypes
import json
import shutil
import sys
import tempfile
from pathlib import Path

LLAMA_CPP, LIBLLAMA = Path(sys.argv[1]), sys.argv[2]
sys.path.insert(0, str(LLAMA_CPP))

import gguf
import numpy as np
import torch
import transformers
from conversion import get_model_class
from conversion.base import ModelBase, TextModel
from safetensors.torch import save_file

HERE = Path(__file__).parent
GOLDEN = HERE.parent
# The golden tokenizer splits as Qwen2's; the converter knows tokenizers by a hash of what they make of a text.
TextModel.get_vocab_base_pre = lambda self, tokenizer: "qwen2"


def no_sentencepiece(self) -> None:
    """What it says of a folder without tokenizer.model, without need of the package."""
    raise FileNotFoundError


TextModel._set_vocab_sentencepiece = no_sentencepiece

# Folder, and the class under which people convert it where the converter does not know it.
FOLDERS = {
    "dream": "DreamModel",
    "llada": "LLaDAModelLM",
    "llada_moe": "LLaDAMoEModelLM",
    "sdar": "Qwen3ForCausalLM",
    "sdar_moe": "Qwen3MoeForCausalLM",
}


def convert(folder: Path, config: dict, out: Path) -> None:
    """What convert_hf_to_gguf.py does with --outtype f32."""
    config = {key: value for key, value in config.items() if key != "auto_map"}
    (folder / "config.json").write_text(json.dumps(config))
    for name in ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "special_tokens_map.json"]:
        shutil.copy(GOLDEN / "tokenizer" / name, folder)
    model_class = get_model_class(config["architectures"][0])
    with torch.inference_mode():
        hparams = ModelBase.load_hparams(folder, False)
        model = model_class(folder, gguf.LlamaFileType.ALL_F32, out, hparams=hparams, model_name="golden")
        model.write()


def fnv1a(content: bytes) -> str:
    state = 0xCBF29CE484222325
    for byte in content:
        state = (state ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return f"{state:016x}"


class QuantizeParams(ctypes.Structure):
    """llama_model_quantize_params of llama.h."""

    _fields_ = [
        ("nthread", ctypes.c_int32),
        ("ftype", ctypes.c_int),
        ("output_tensor_type", ctypes.c_int),
        ("token_embedding_type", ctypes.c_int),
        ("flags", ctypes.c_bool * 6),
        ("pointers", ctypes.c_void_p * 4),
        ("max_buf_size", ctypes.c_size_t),
    ]


def quantize(source: Path, out: Path, ftype: int) -> None:
    llama = ctypes.CDLL(LIBLLAMA)
    llama.llama_model_quantize_default_params.restype = QuantizeParams
    params = llama.llama_model_quantize_default_params()
    params.nthread, params.ftype = 1, ftype
    assert llama.llama_model_quantize(str(source).encode(), str(out).encode(), ctypes.byref(params)) == 0


def dequantized(path: Path) -> tuple[dict[str, torch.Tensor], list[str]]:
    """Tensors as gguf-py reads them, and their types."""
    tensors = gguf.GGUFReader(path).tensors
    values = {
        tensor.name: torch.from_numpy(
            gguf.dequantize(tensor.data, tensor.tensor_type).reshape(list(reversed(tensor.shape.tolist()))).copy()
        )
        for tensor in tensors
    }
    return values, sorted({tensor.tensor_type.name for tensor in tensors})


NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def logits(path: Path, model: torch.nn.Module, out: Path) -> None:
    """Of eight tokens that see each other, with the file's weights widened by gguf-py, in float32."""
    values, types = dequantized(path)
    state = {}
    for name, tensor in values.items():
        part, kind = name.rsplit(".", 1)
        prefix, part = (f"model.layers.{part.split('.')[1]}.", part.split(".")[2]) if part.startswith("blk.") else ("", part)
        state[f"{prefix}{NAMES[part]}.{kind}"] = tensor
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}, (missing, unexpected)
    model.tie_weights()
    ids = torch.arange(8)[None] * 31 % 500
    with torch.inference_mode():
        result = model.eval()(ids, attention_mask=torch.zeros(1, 1, 8, 8)).logits[0]
    save_file({"logits": result.contiguous(), **{f"first_row.{name}": tensor.reshape(-1, tensor.shape[-1])[0].clone()
                                                for name, tensor in values.items()}}, out)
    print(path.name, types, "logits", result.std().item())


def main() -> None:
    hashes = {}
    with tempfile.TemporaryDirectory() as scratch:
        scratch = Path(scratch)
        for name, architecture in FOLDERS.items():
            folder = scratch / name
            folder.mkdir()
            shutil.copy(GOLDEN / name / "model.safetensors", folder)
            config = json.loads((GOLDEN / name / "config.json").read_text())
            whole = scratch / f"{name}.gguf"
            convert(folder, {**config, "architectures": [architecture]}, whole)
            content = whole.read_bytes()
            (HERE / f"{name}.head").write_bytes(content[: gguf.GGUFReader(whole).data_offset])
            hashes[name] = fnv1a(content)
        (HERE / "hashes.json").write_text(json.dumps(hashes, indent=1) + "\n")

        quantize(scratch / "dream.gguf", HERE / "dream_q8_0.gguf", 7)
        config = json.loads((GOLDEN / "dream/config.json").read_text())
        known = transformers.Qwen2Config().to_dict()
        config = transformers.Qwen2Config(
            **{key: value for key, value in config.items() if key in known},
            rope_parameters={"rope_type": "default", "rope_theta": config["rope_theta"]},
        )
        logits(HERE / "dream_q8_0.gguf", transformers.Qwen2ForCausalLM(config), HERE / "dream_q8_0.safetensors")

        torch.manual_seed(0)
        config = transformers.Qwen3Config(
            vocab_size=512, hidden_size=256, intermediate_size=256, num_hidden_layers=1, num_attention_heads=4,
            num_key_value_heads=2, head_dim=64, max_position_embeddings=512, rms_norm_eps=1e-6, tie_word_embeddings=True,
            bos_token_id=501, eos_token_id=501, rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        )
        model = transformers.Qwen3ForCausalLM(config)
        for name, weight in model.named_parameters():
            torch.nn.init.normal_(weight, 1.0 if "norm" in name else 0.0, 0.1)
        folder = scratch / "tiny"
        folder.mkdir()
        state = {name: tensor for name, tensor in model.state_dict().items() if name != "lm_head.weight"}
        save_file({name: tensor.contiguous() for name, tensor in state.items()}, folder / "model.safetensors")
        settings = {**config.to_dict(), "architectures": ["Qwen3ForCausalLM"], "mask_token_id": 500, "rope_theta": 1e6}
        convert(folder, settings, scratch / "tiny.gguf")
        quantize(scratch / "tiny.gguf", HERE / "tiny_q4_k_m.gguf", 15)
        logits(HERE / "tiny_q4_k_m.gguf", model, HERE / "tiny_q4_k_m.safetensors")


main()
