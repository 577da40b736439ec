#!/usr/bin/env python3
"""Predicts the time of a denoise step on a GPU from bytes, FLOPs and launches, per kernel, so that a measurement can be held against it.

    scripts/bench/gpu_step_model.py            the tables of docs/gpu.md
    scripts/bench/gpu_step_model.py --kernels  every kernel of every case

A kernel takes the longest of its memory traffic, its arithmetic and the start of a graph node. Nothing overlaps. Nothing here was measured:
the cards' figures are those of their data sheets, lowered by the shares below.
"""
import argparse
from dataclasses import dataclass


@dataclass
class Card:
    name: str
    bandwidth: float   # bytes/s of a large copy
    bf16: float        # FLOP/s of mma.sync with 32-bit sums
    int8: float        # operations/s of the same
    f32: float         # FLOP/s without tensor cores
    node: float        # seconds between two dependent nodes of a graph


# H200: 4.8 TB/s on paper, 4.3 in copies; mma.sync reaches about 60 % of the 989 TFLOP/s that wgmma has. RTX 4090: 1.008 TB/s, 0.93 in copies.
CARDS = [
    Card("H200", 4.3e12, 0.6 * 989e12, 0.6 * 1979e12, 60e12, 1.5e-6),
    Card("RTX 4090", 0.93e12, 0.9 * 165e12, 0.9 * 330e12, 75e12, 1.5e-6),
]
# Shares of the card's figure that a kernel is expected to reach: a product of few rows streams weights; attention at some hundred keys is short.
STREAM, MATMUL, ATTENTION = 0.85, 0.65, 0.5


@dataclass
class Model:
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    qk_norm: bool = True
    experts: int = 0          # routed experts, beside the MLP where `shared` is above 0
    chosen: int = 0
    expert_width: int = 0
    shared: int = 0


SDAR = Model(2048, 28, 16, 8, 128, 6144, 151936)
LLADA = Model(4096, 32, 32, 32, 128, 12288, 126464, qk_norm=False)
# Sliding layers; the five full ones (2 heads of 512 without values) differ by less than 2 % of the weights.
GEMMA = Model(2816, 30, 16, 8, 256, 2112, 262144, experts=128, chosen=8, expert_width=704, shared=1)

WEIGHT_BYTES = {"bf16": 2, "int8": 1}


@dataclass
class Kernel:
    name: str
    bytes: float
    flops: float = 0
    kind: str = "stream"      # which figure bounds its arithmetic
    count: int = 1            # launches

    def seconds(self, card, dtype):
        rate = {"matmul": MATMUL * (card.bf16 if dtype == "bf16" else card.int8), "attention": ATTENTION * card.bf16,
                "stream": 0.5 * card.f32}[self.kind]
        return max(self.bytes / self.count / (STREAM * card.bandwidth), self.flops / self.count / rate, card.node) * self.count


def product(name, rows, n_out, n_in, dtype, count):
    # Blocks read weights once per 64 rows; those of the same outputs run side by side, so that all but the first find them in the L2.
    return Kernel(name, count * (n_out * n_in * WEIGHT_BYTES[dtype] + rows * (n_in * 2 + n_out * 4)), count * 2.0 * rows * n_out * n_in, "matmul", count)


def step(model, dtype, rows, sequences, context):
    """The kernels of a step of `rows` rows in `sequences` sequences, each with `context` cached positions."""
    m, n, act = model, model.layers, 4
    q, kv = m.heads * m.head_dim, m.kv_heads * m.head_dim
    keys = context + rows // sequences
    kernels = [
        Kernel("embed", rows * m.hidden * 6),
        Kernel("add + norm + round", n * 2 * rows * m.hidden * 4 * act, n * 2 * rows * m.hidden * 6, count=2 * n),
        product("q, k, v", rows, q + 2 * kv, m.hidden, dtype, n),
        Kernel("head norms, rope, K/V store", n * rows * (2 * q + 3 * kv) * act, count=n),
        Kernel("attention", n * (sequences * keys * 2 * kv * 2 + rows * q * 2 * act), n * 2 * 4.0 * rows * keys * q, "attention", n),
        Kernel("round attention", n * rows * q * 6, count=n),
        product("o", rows, m.hidden, q, dtype, n),
    ]
    if m.intermediate:
        kernels += [
            product("gate, up", rows, 2 * m.intermediate, m.hidden, dtype, n),
            Kernel("gate + round", n * rows * m.intermediate * 10, count=n),
            product("down", rows, m.hidden, m.intermediate, dtype, n),
        ]
    if m.experts:
        pairs = rows * m.chosen
        hit = m.experts * (1 - (1 - m.chosen / m.experts) ** rows)
        size = 3 * m.expert_width * m.hidden * WEIGHT_BYTES[dtype]
        flops = 2.0 * pairs * 3 * m.expert_width * m.hidden
        kernels += [
            Kernel("router, choice, grouping", n * (m.experts * m.hidden * 4 + rows * m.experts * 8), n * 2 * rows * m.experts * m.hidden, count=3 * n),
            Kernel("experts", n * (hit * size + pairs * (m.hidden + 3 * m.expert_width) * 4), n * flops / 0.5, "matmul", 2 * n),
            Kernel("expert gate, combine", n * pairs * (m.expert_width * 10 + m.hidden * 4), count=2 * n),
            Kernel("norms beside experts", n * 5 * rows * m.hidden * 3 * act, count=5 * n),
        ]
    kernels += [
        product("head", rows, m.vocab, m.hidden, dtype, -(-rows // 64)) if rows <= 64 else
        Kernel("head", -(-rows // 64) * m.vocab * m.hidden * WEIGHT_BYTES[dtype] + rows * m.vocab * 4, 2.0 * rows * m.vocab * m.hidden, "matmul", -(-rows // 64)),
        Kernel("scoring", 2 * rows * m.vocab * 4, 6.0 * rows * m.vocab, count=3 * -(-rows // 64)),
        Kernel("index lists up, candidates down", rows * 400, count=3),
    ]
    return kernels


# Goals of the design: a step over the weight-read bound, tokens/s, share of the peak, share outside products.
CASES = [
    ("G1 one sequence, block 4, SDAR-1.7B", SDAR, "bf16", 4, 1, 512),
    ("G1 one sequence, block 32", SDAR, "bf16", 32, 1, 512),
    ("G1 one sequence, block 4, int8", SDAR, "int8", 4, 1, 512),
    ("G2 64 sequences x block 4", SDAR, "bf16", 256, 64, 512),
    ("G3 LLaDA-8B shape, one sequence of 512", LLADA, "bf16", 512, 1, 0),
    ("G4 64 sequences x block 4, context 1024", SDAR, "bf16", 256, 64, 1024),
    ("G6 DiffusionGemma-26B-A4B shape, canvas of 256", GEMMA, "bf16", 256, 1, 512),
]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernels", action="store_true", help="print every kernel of every case")
    options = parser.parse_args()
    print("| case | launches | GB read | TFLOP |" + "".join(f" {card.name}, ms | bound, ms | of it products |" for card in CARDS))
    print("|---|---|---|---|" + "---|---|---|" * len(CARDS))
    for name, model, dtype, rows, sequences, context in CASES:
        kernels = step(model, dtype, rows, sequences, context)
        products = [kernel for kernel in kernels if kernel.kind == "matmul"]
        n_bytes, flops = (sum(getattr(kernel, what) for kernel in kernels) for what in ("bytes", "flops"))
        line = f"| {name} | {sum(kernel.count for kernel in kernels)} | {n_bytes / 1e9:.2f} | {flops / 1e12:.2f} |"
        for card in CARDS:
            total = sum(kernel.seconds(card, dtype) for kernel in kernels)
            rate = card.bf16 if dtype == "bf16" else card.int8
            bound = max(sum(kernel.bytes for kernel in products) / card.bandwidth, sum(kernel.flops for kernel in products) / rate)
            share = sum(kernel.seconds(card, dtype) for kernel in products) / total
            line += f" {total * 1e3:.2f} | {bound * 1e3:.2f} | {share:.0%} |"
        print(line)
        if options.kernels:
            for kernel in kernels:
                times = ", ".join(f"{card.name} {kernel.seconds(card, dtype) * 1e3:.3f} ms" for card in CARDS)
                print(f"|   {kernel.name} | {kernel.count} | {kernel.bytes / 1e9:.3f} | {kernel.flops / 1e12:.3f} | {times} |")


if __name__ == "__main__":
    main()
