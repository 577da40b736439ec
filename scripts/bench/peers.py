"""The same forwards by other engines: `python peers.py NAME FOLDER`.

Each writes a line when its weights are loaded, then answers lines `BATCH BLOCK CONTEXT` on standard input with a line of
JSON, as `forward_bench` does: the milliseconds of forwards of BATCH sequences with CONTEXT tokens in the cache,
BLOCK rows each, logits of every row.
"""

import json
import os
import sys
import time
from pathlib import Path

N_RUNS = 5
MAX_SECONDS = 10    # forwards that take longer than this together are not repeated
THREADS = len(os.sched_getaffinity(0))


def answer(forward_of):
    """Serve standard input; `forward_of(batch, block, context)` returns a function that runs one forward."""
    print(json.dumps({"loaded": True}), flush=True)
    for line in sys.stdin:
        forward = forward_of(*map(int, line.split()))
        times = []
        for run in range(N_RUNS + 1):
            start = time.perf_counter()
            forward()
            if run:
                times.append(round(1e3 * (time.perf_counter() - start), 3))
            if sum(times) > 1e3 * MAX_SECONDS:
                break
        print(json.dumps({"ms": times}), flush=True)


def lean_torch(folder, kind):
    """The network in as few torch operations as it takes: products, fused attention over a cache, nothing else."""
    import torch
    import torch.nn.functional as F
    from safetensors.torch import load_file
    torch.set_num_threads(THREADS)
    torch.set_grad_enabled(False)
    c = json.loads((Path(folder) / "config.json").read_text())
    dtype = torch.bfloat16 if kind == "bfloat16" else torch.float32
    w = load_file(Path(folder) / "model.safetensors")
    heads, kv, d, hidden = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"], c["hidden_size"]

    def product(*names):
        weight = torch.cat([w.pop(n) for n in names]).to(dtype)
        if kind != "int8":
            return lambda x: F.linear(x, weight)
        linear = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False)
        linear.weight.data = weight
        return torch.ao.quantization.quantize_dynamic(torch.nn.Sequential(linear), {torch.nn.Linear}, dtype=torch.qint8)[0]

    layers = []
    for i in range(c["num_hidden_layers"]):
        p, a, m = f"model.layers.{i}.", f"model.layers.{i}.self_attn.", f"model.layers.{i}.mlp."
        layers.append((w[p + "input_layernorm.weight"].to(dtype), product(a + "q_proj.weight", a + "k_proj.weight", a + "v_proj.weight"), w[a + "q_norm.weight"].to(dtype),
                       w[a + "k_norm.weight"].to(dtype), product(a + "o_proj.weight"), w[p + "post_attention_layernorm.weight"].to(dtype),
                       product(m + "gate_proj.weight", m + "up_proj.weight"), product(m + "down_proj.weight")))
    embedding, norm = w["model.embed_tokens.weight"].to(dtype), w["model.norm.weight"].to(dtype)
    head = product("model.embed_tokens.weight")
    rms = lambda x, weight: F.rms_norm(x, (x.shape[-1],), weight, c["rms_norm_eps"])

    def turn(x, cos, sin):
        a, b = x.chunk(2, -1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)

    def forward_of(batch, block, context):
        cache = [torch.zeros(2, batch, kv, context + block, d, dtype=dtype) for _ in layers]
        ids = torch.arange(batch * block).view(batch, block)
        angle = torch.outer(torch.arange(context, context + block).float(), c["rope_theta"] ** (-torch.arange(0, d, 2).float() / d))
        cos, sin = angle.cos().to(dtype), angle.sin().to(dtype)

        def forward():
            x = F.embedding(ids, embedding)
            for (n1, qkv, qn, kn, o, n2, gu, down), (k_cache, v_cache) in zip(layers, cache):
                q, k, v = qkv(rms(x, n1)).view(batch, block, heads + 2 * kv, d).transpose(1, 2).split((heads, kv, kv), 1)
                k_cache[:, :, context:], v_cache[:, :, context:] = turn(rms(k, kn), cos, sin), v
                y = F.scaled_dot_product_attention(turn(rms(q, qn), cos, sin), k_cache, v_cache, enable_gqa=True)
                x = x + o(y.transpose(1, 2).reshape(batch, block, heads * d))
                g, u = gu(rms(x, n2)).chunk(2, -1)
                x = x + down(F.silu(g) * u)
            return head(rms(x, norm))
        return forward
    answer(forward_of)


def transformers(folder):
    """transformers' Qwen3 in bfloat16."""
    import torch
    from safetensors.torch import load_file
    from transformers import DynamicCache, Qwen3Config, Qwen3ForCausalLM
    torch.set_num_threads(THREADS)
    torch.set_grad_enabled(False)
    config = json.loads((Path(folder) / "config.json").read_text()) | {"model_type": "qwen3"}
    config = Qwen3Config(**{k: v for k, v in config.items() if k not in ("architectures", "torch_dtype")})
    # No path: what is there is not transformers' layout. Otherwise it would fill every weight with random numbers first.
    model = Qwen3ForCausalLM.from_pretrained(None, config=config, state_dict=load_file(Path(folder) / "model.safetensors"), dtype=torch.bfloat16)

    def forward_of(batch, block, context):
        past = DynamicCache(config=model.config)
        if context:
            model(torch.zeros(batch, context, dtype=torch.long), past_key_values=past, logits_to_keep=1)
        ids = torch.arange(batch * block).view(batch, block)

        def forward():
            model(ids, past_key_values=past)
            past.crop(-block)
        return forward
    answer(forward_of)


def llama_cpp(folder, kind):
    """llama.cpp with its KV cache, through llama-cpp-python."""
    import ctypes

    import llama_cpp as L
    silence = L.llama_log_callback(lambda *_: None)     # llama.cpp keeps no reference of its own
    L.llama_log_set(silence, ctypes.c_void_p(0))
    L.llama_backend_init()
    model = L.llama_model_load_from_file(str(gguf_file(folder, kind)).encode(), L.llama_model_default_params())

    def forward_of(batch, block, context):
        params = L.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = batch * (context + block + 32), 2048, 512
        params.n_seq_max, params.n_threads, params.n_threads_batch = batch, THREADS, THREADS
        ctx = L.llama_init_from_model(model, params)
        memory = L.llama_get_memory(ctx)

        def rows(positions, logits):
            b = L.llama_batch_init(batch * len(positions), 0, 1)
            b.n_tokens = batch * len(positions)
            for s in range(batch):
                for i, position in enumerate(positions):
                    at = s * len(positions) + i
                    b.token[at], b.pos[at], b.n_seq_id[at], b.logits[at] = 100 + at % 1000, position, 1, logits
                    b.seq_id[at][0] = s
            return b
        for start in range(0, context, 256 // batch or 1):
            if L.llama_decode(ctx, rows(range(start, min(context, start + (256 // batch or 1))), 0)):
                sys.exit("llama.cpp could not decode")
        block_rows = rows(range(context, context + block), 1)

        def forward():
            if L.llama_decode(ctx, block_rows):
                sys.exit("llama.cpp could not decode")
            L.llama_synchronize(ctx)
            for s in range(batch):
                L.llama_memory_seq_rm(memory, s, context, -1)
        forward.keep = ctx
        return forward
    answer(forward_of)


def candle(folder):
    """candle-transformers' quantized Qwen3: a Rust program beside this file, built here."""
    project, gguf = Path(__file__).resolve().parent / "candle", gguf_file(folder, "q8_0").resolve()
    # From inside the folder, where cargo finds the project's flags.
    os.chdir(project)
    os.execvp("cargo", ["cargo", "run", "--release", "--quiet", "--locked", "--", str(gguf)])


def gguf_file(folder, kind, architecture="qwen3"):
    """The checkpoint as a GGUF file beside it, written where there is none; other kinds than bf16 and q8_0 are quantized by llama.cpp."""
    prefix = "" if architecture == "qwen3" else architecture + "-"
    source, target = Path(folder) / f"{prefix}bf16.gguf", Path(folder) / f"{prefix}{kind}.gguf"
    if target.exists():
        return target
    if kind == "q8_0":
        write_gguf(folder, target, architecture, quantized=True)
    elif not source.exists():
        write_gguf(folder, source, architecture)
    if target.exists():
        return target
    import ctypes

    import llama_cpp as L
    params = L.llama_model_quantize_default_params()
    params.ftype = {"q4_k_m": L.LLAMA_FTYPE_MOSTLY_Q4_K_M}[kind]
    params.nthread = THREADS
    if L.llama_model_quantize(str(source).encode(), str(target).encode(), ctypes.byref(params)):
        sys.exit("llama.cpp could not quantize")
    return target


def write_gguf(folder, target, architecture="qwen3", quantized=False):
    """The checkpoint as a GGUF file, its matrices in Q8_0 if quantized. As `dream`: without the norms of q and k, with biases of q, k and v, and a mask."""
    import gguf
    import numpy as np
    c = json.loads((Path(folder) / "config.json").read_text())
    w = gguf.GGUFWriter(str(target), architecture)
    w.add_block_count(c["num_hidden_layers"])
    w.add_context_length(c["max_position_embeddings"])
    w.add_embedding_length(c["hidden_size"])
    w.add_feed_forward_length(c["intermediate_size"])
    w.add_head_count(c["num_attention_heads"])
    w.add_head_count_kv(c["num_key_value_heads"])
    w.add_key_length(c["head_dim"])
    w.add_value_length(c["head_dim"])
    w.add_rope_freq_base(c["rope_theta"])
    w.add_layer_norm_rms_eps(c["rms_norm_eps"])
    w.add_vocab_size(c["vocab_size"])
    w.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0 if quantized else gguf.LlamaFileType.MOSTLY_BF16)
    t = json.loads((Path(folder) / "tokenizer.json").read_text())
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("qwen2")
    names = sorted(t["model"]["vocab"], key=t["model"]["vocab"].get)
    special = {token["id"] for token in t["added_tokens"]}
    w.add_token_list(names)
    w.add_token_types([gguf.TokenType.CONTROL if i in special else gguf.TokenType.NORMAL for i in range(len(names))])
    w.add_token_merges(["! !"])     # llama.cpp loads no vocabulary without; no text has it
    w.add_eos_token_id(c["eos_token_id"])
    if architecture == "dream":
        w.add_mask_token_id(c["mask_token_id"])
        w.add_chat_template("{{ messages[-1].content }}")
    names = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
             "self_attn.k_norm": "attn_k_norm", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
             "mlp.down_proj": "ffn_down"}
    for name, raw in bfloat16_tensors(Path(folder) / "model.safetensors"):
        if architecture == "dream" and name.endswith(("q_norm.weight", "k_norm.weight")):
            continue
        if name.startswith("model.layers."):
            _, _, i, rest = name.split(".", 3)
            new = f"blk.{i}.{names[rest.removesuffix('.weight')]}.weight"
            if architecture == "dream" and rest.startswith(("self_attn.q_", "self_attn.k_", "self_attn.v_")):
                w.add_tensor(new.removesuffix("weight") + "bias", np.zeros(raw.shape[0], np.float32))
        else:
            new = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}[name]
        if raw.ndim == 1:
            w.add_tensor(new, widened(raw))
        elif quantized:
            q8_0 = gguf.GGMLQuantizationType.Q8_0
            w.add_tensor(new, gguf.quantize(widened(raw), q8_0), raw_dtype=q8_0)
        else:
            raw = raw.view("uint8")
            w.add_tensor(new, raw, raw_shape=raw.shape, raw_dtype=gguf.GGMLQuantizationType.BF16)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def bfloat16_tensors(file):
    """Name and bits of each tensor of a safetensors file: numpy has no bfloat16."""
    import numpy as np
    with open(file, "rb") as f:
        n_header = int.from_bytes(f.read(8), "little")
        header = json.loads(f.read(n_header))
    for name, tensor in header.items():
        if name != "__metadata__":
            begin, end = tensor["data_offsets"]
            yield name, np.memmap(file, np.uint16, "r", 8 + n_header + begin, ((end - begin) // 2,)).reshape(tensor["shape"])


def widened(bits):
    """bfloat16 as float32."""
    return (bits.astype("uint32") << 16).view("float32")


PEERS = {
    "torch-float32": lambda folder: lean_torch(folder, "float32"),
    "torch-bfloat16": lambda folder: lean_torch(folder, "bfloat16"),
    "torch-int8": lambda folder: lean_torch(folder, "int8"),
    "transformers-bfloat16": transformers,
    "llama.cpp-q8_0": lambda folder: llama_cpp(folder, "q8_0"),
    "llama.cpp-q4_k_m": lambda folder: llama_cpp(folder, "q4_k_m"),
    "candle-q8_0": candle,
}

if __name__ == "__main__":
    PEERS[sys.argv[1]](sys.argv[2])
