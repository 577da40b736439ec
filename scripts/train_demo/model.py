"""The network: SDAR, that is Qwen3 (pre-norm, per-head qk-norm, RoPE, GQA, SwiGLU, tied head) under a caller's mask.

Parameters carry the names of the checkpoint, so exporting is a cast. Attention is written
out, because the masked fused kernel has a very slow backward pass on CPUs.
"""

from dataclasses import asdict, dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class Config:
    vocab_size: int = 1280
    hidden_size: int = 256
    intermediate_size: int = 576
    num_hidden_layers: int = 7
    num_attention_heads: int = 8
    num_key_value_heads: int = 4
    head_dim: int = 32
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-6
    max_position_embeddings: int = 1024

    def checkpoint_json(self, eos, mask, pad):
        return {"architectures": ["SDARForCausalLM"], "model_type": "sdar", **asdict(self), "attention_bias": False, "attention_dropout": 0.0, "hidden_act": "silu", "initializer_range": 0.02,
                "rope_scaling": None, "sliding_window": None, "use_sliding_window": False, "max_window_layers": self.num_hidden_layers, "tie_word_embeddings": True, "torch_dtype": "bfloat16",
                "use_cache": False, "block_size": 8, "bos_token_id": None, "eos_token_id": eos, "mask_token_id": mask, "pad_token_id": pad}


def rms(x, weight, eps):
    h = x.float()
    return (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype) * weight.to(x.dtype)


def rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def visible(sample, stream, block):
    """Who sees whom in a packed row: [B, T] codes to a [B, T, T] boolean.

    Stream 0 is the clean text, block-causal; every other stream is one noisy block, which
    sees itself and the clean blocks before it.
    """
    q, k = (lambda x: x.unsqueeze(2)), (lambda x: x.unsqueeze(1))
    clean = (k(stream) == 0) & ((k(block) < q(block)) | ((q(stream) == 0) & (k(block) == q(block))))
    own = (q(stream) == k(stream)) & (q(stream) > 0)
    return (q(sample) == k(sample)) & (clean | own)


class Model(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = c = config
        shapes = {"model.embed_tokens.weight": (c.vocab_size, c.hidden_size), "model.norm.weight": (c.hidden_size,)}
        for i in range(c.num_hidden_layers):
            p = f"model.layers.{i}."
            shapes |= {p + "input_layernorm.weight": (c.hidden_size,), p + "post_attention_layernorm.weight": (c.hidden_size,),
                       p + "self_attn.q_proj.weight": (c.num_attention_heads * c.head_dim, c.hidden_size), p + "self_attn.k_proj.weight": (c.num_key_value_heads * c.head_dim, c.hidden_size),
                       p + "self_attn.v_proj.weight": (c.num_key_value_heads * c.head_dim, c.hidden_size), p + "self_attn.o_proj.weight": (c.hidden_size, c.num_attention_heads * c.head_dim),
                       p + "self_attn.q_norm.weight": (c.head_dim,), p + "self_attn.k_norm.weight": (c.head_dim,),
                       p + "mlp.gate_proj.weight": (c.intermediate_size, c.hidden_size), p + "mlp.up_proj.weight": (c.intermediate_size, c.hidden_size),
                       p + "mlp.down_proj.weight": (c.hidden_size, c.intermediate_size)}
        self.names = list(shapes)
        self.tensors = nn.ParameterList()
        for name, shape in shapes.items():
            t = torch.ones(shape)
            if len(shape) == 2:
                std = 0.02 if "embed" in name else shape[1] ** -0.5 * (0.2 if "o_proj" in name or "down" in name else 1.0)
                t = torch.randn(shape) * std
            self.tensors.append(nn.Parameter(t))

    def named(self):
        return dict(zip(self.names, self.tensors))

    def forward(self, tokens, position, mask, dtype=torch.float32):
        """[B, T] ids and positions and a [B, T, T] boolean mask to [B, T, H] normalised states."""
        c, w = self.config, {n: t.to(dtype) for n, t in zip(self.names, self.tensors)}
        B, T = tokens.shape
        K, G, D = c.num_key_value_heads, c.num_attention_heads // c.num_key_value_heads, c.head_dim
        freq = c.rope_theta ** (-torch.arange(0, D, 2, device=tokens.device).float() / D)
        angle = position.float().unsqueeze(-1) * freq
        cos, sin = angle.cos().to(dtype).unsqueeze(2), angle.sin().to(dtype).unsqueeze(2)
        bias = torch.where(mask, 0.0, -1e9).to(dtype).unsqueeze(1)
        x = F.embedding(tokens, w["model.embed_tokens.weight"])
        for i in range(c.num_hidden_layers):
            p = f"model.layers.{i}."
            a = p + "self_attn."
            h = rms(x, w[p + "input_layernorm.weight"], c.rms_norm_eps)
            qkv = F.linear(h, torch.cat((w[a + "q_proj.weight"], w[a + "k_proj.weight"], w[a + "v_proj.weight"])))
            q, k, v = qkv.split((K * G * D, K * D, K * D), -1)
            q = rotate(rms(q.view(B, T, K * G, D), w[a + "q_norm.weight"], c.rms_norm_eps), cos, sin) * D ** -0.5
            k = rotate(rms(k.view(B, T, K, D), w[a + "k_norm.weight"], c.rms_norm_eps), cos, sin)
            q = q.view(B, T, K, G, D).permute(0, 2, 3, 1, 4).reshape(B, K, G * T, D)
            s = (q @ k.permute(0, 2, 3, 1)).view(B, K * G, T, T) + bias
            s = s.float().softmax(-1).to(dtype).view(B, K, G * T, T)
            o = (s @ v.view(B, T, K, D).transpose(1, 2)).view(B, K, G, T, D).permute(0, 3, 1, 2, 4).reshape(B, T, K * G * D)
            x = x + F.linear(o, w[a + "o_proj.weight"])
            h = rms(x, w[p + "post_attention_layernorm.weight"], c.rms_norm_eps)
            gu = F.linear(h, torch.cat((w[p + "mlp.gate_proj.weight"], w[p + "mlp.up_proj.weight"])))
            g, u = gu.chunk(2, -1)
            x = x + F.linear(F.silu(g) * u, w[p + "mlp.down_proj.weight"])
        return rms(x, w["model.norm.weight"], c.rms_norm_eps)

    def logits(self, states):
        return F.linear(states, self.tensors[0].to(states.dtype))
