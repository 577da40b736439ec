"""Train the demonstration model: `python scripts/train_demo/train.py --out models/demo --minutes 120`.

The learning rate is driven by the clock: it falls to zero when the minutes are over, however
fast the machine is. A checkpoint in --work makes the run resumable; `--minutes` counts the
training time of all runs together.

`torchrun --nproc-per-node 2 scripts/train_demo/train.py ...` trains in two processes that average
their gradients, each on chats of its own: on a CPU that does other work too, processes of one
thread lose only the time that was taken from them, while threads of one process wait at every product.
"""

import argparse
import os
import signal
import sys
import time
from pathlib import Path

# Threads that spin at a barrier starve each other as soon as anything else uses the machine.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch
import torch.distributed as dist
import torch.nn.functional as F
from tokenizers import Tokenizer

sys.path.insert(0, str(Path(__file__).parent))
import curriculum
import data
import evaluate
import export
import vocab
from model import Config, Model, visible


def orthogonal(g, steps=5):
    """Newton-Schulz: the nearest (semi-)orthogonal matrices to a stack of gradients, as Muon uses them."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = g.bfloat16()
    tall = x.size(-2) > x.size(-1)
    if tall:
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        s = x @ x.mT
        x = a * x + (b * s + c * s @ s) @ x
    return (x.mT if tall else x).to(g.dtype)


class Optimiser:
    """Muon for the matrices inside the layers, Adam for the embedding and the norms."""

    def __init__(self, model, lr_muon, lr_adam):
        self.lr_muon, self.lr_adam = lr_muon, lr_adam
        named = model.named()
        self.matrices = {}
        for n, t in named.items():
            if t.dim() == 2 and "embed" not in n:
                self.matrices.setdefault(tuple(t.shape), []).append(t)
        self.rest = [t for n, t in named.items() if t.dim() == 1 or "embed" in n]
        self.momentum = {s: torch.zeros(len(ts), *s, device=ts[0].device) for s, ts in self.matrices.items()}
        self.m, self.v = ([torch.zeros_like(t) for t in self.rest] for _ in range(2))
        self.steps = 0

    def state(self):
        return {"momentum": self.momentum, "m": self.m, "v": self.v, "steps": self.steps}

    def load(self, s):
        self.momentum, self.m, self.v, self.steps = s["momentum"], s["m"], s["v"], s["steps"]

    @torch.no_grad()
    def step(self, scale):
        self.steps += 1
        for shape, ts in self.matrices.items():
            g, m = torch.stack([t.grad for t in ts]), self.momentum[shape]
            m.lerp_(g, 0.05)
            u = orthogonal(g.lerp(m, 0.95)) * max(1, shape[0] / shape[1]) ** 0.5
            for t, d in zip(ts, u):
                t.mul_(1 - 0.02 * self.lr_muon * scale).sub_(d, alpha=self.lr_muon * scale)
        grads = [t.grad for t in self.rest]
        b1, b2 = 0.9, 0.98
        torch._foreach_lerp_(self.m, grads, 1 - b1)
        torch._foreach_mul_(self.v, b2)
        torch._foreach_addcmul_(self.v, grads, grads, 1 - b2)
        c1, c2 = 1 - b1 ** self.steps, 1 - b2 ** self.steps
        for t, m, v in zip(self.rest, self.m, self.v):
            t.addcdiv_(m / c1, (v / c2).sqrt().add_(1e-8), value=-self.lr_adam * scale)


def together(tensors, rank, loss, used, stop, elapsed):
    """Average the gradients of all processes; returns the mean loss, all tokens, whether any was told to stop, and the first one's clock."""
    figures = torch.tensor([loss, used, stop, elapsed if rank == 0 else 0.0], dtype=torch.float32, device=tensors[0].device)
    flat = torch.cat([t.grad.flatten() for t in tensors] + [figures])
    dist.all_reduce(flat)
    at = 0
    for t in tensors:
        t.grad.copy_(flat[at:at + t.numel()].view_as(t)).div_(dist.get_world_size())
        at += t.numel()
    loss, used, stop, elapsed = flat[at:].tolist()
    return loss / dist.get_world_size(), int(used), stop, elapsed


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--out", default="models/demo", help="folder of the exported model")
    p.add_argument("--work", default=None, help="folder for checkpoints (default: OUT/train)")
    p.add_argument("--minutes", type=float, default=120)
    p.add_argument("--init", nargs="+", default=None, help="folders of exported models; a new run starts from the mean of their weights")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--hidden", type=int, default=256)
    p.add_argument("--mlp", type=int, default=576)
    p.add_argument("--layers", type=int, default=7)
    p.add_argument("--lr-muon", type=float, default=0.025)
    p.add_argument("--lr-adam", type=float, default=4e-3)
    p.add_argument("--lr-peak", type=float, default=1.0, help="scale of both rates; lower it to continue a finished run")
    p.add_argument("--lr-from", type=float, default=0.0, help="minute at which the decay starts")
    p.add_argument("--mixture", default=None, help="JSON file of task weights, read again during training")
    p.add_argument("--threads", type=int, default=0)
    p.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float16", "float32"), help="of the products; some CPUs are fastest in float32")
    p.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    p.add_argument("--save-minutes", type=float, default=5)
    p.add_argument("--steps", type=int, default=0, help="stop after so many steps (for trials)")
    p.add_argument("--no-compile", action="store_true")
    a = p.parse_args()

    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    if world > 1:
        dist.init_process_group("nccl" if a.device == "cuda" else "gloo")
    out, work = Path(a.out), Path(a.work or Path(a.out) / "train")
    work.mkdir(parents=True, exist_ok=True)
    if a.threads:
        torch.set_num_threads(a.threads)
    torch.manual_seed(a.seed)
    tok_path = work / "tokenizer.json"
    if not tok_path.exists() and rank == 0:
        vocab.save(Tokenizer.from_file(str(Path(a.init[0]) / "tokenizer.json")) if a.init else vocab.build(seed=a.seed), work)
    if world > 1:
        dist.barrier()
    excluded = {curriculum.prompt_key([(m["role"], m["content"]) for m in e["messages"]]) for e in evaluate.load_prompts()}

    config = Config(vocab_size=Tokenizer.from_file(str(tok_path)).get_vocab_size(), hidden_size=a.hidden, intermediate_size=a.mlp, num_hidden_layers=a.layers, num_attention_heads=a.hidden // 32, num_key_value_heads=a.hidden // 64)
    model = (export.mean(a.init).train() if a.init else Model(config)).to(a.device)
    opt = Optimiser(model, a.lr_muon, a.lr_adam)
    ema = [t.detach().clone() for t in model.tensors]
    step, elapsed, tokens, runs = 0, 0.0, 0, 0
    saved = work / "checkpoint.pt"
    if saved.exists():
        c = torch.load(saved, map_location=a.device, weights_only=False)
        for t, s in zip(model.tensors, c["model"]):
            t.data.copy_(s)
        ema, step, elapsed, tokens, runs = c["ema"], c["step"], c["elapsed"], c["tokens"], c["runs"] + 1
        opt.load(c["opt"])
        torch.set_rng_state(c["rng"].cpu())
        print(f"resumed at step {step}, minute {elapsed / 60:.1f}", flush=True)
    print(f"{sum(t.numel() for t in model.tensors) / 1e6:.2f} M parameters on {a.device}", flush=True)

    def loss_of(tokens, position, sample, stream, block, index, target, weight):
        states = model(tokens, position, visible(sample, stream, block), getattr(torch, a.dtype))
        logits = model.logits(states.flatten(0, 1)[index]).float()
        ce = F.cross_entropy(logits, target, reduction="none")
        return (ce * weight).sum() / weight.sum().clamp(min=1)

    if not a.no_compile:
        loss_of = torch.compile(loss_of, dynamic=False)

    def save():
        state = {"model": [t.detach() for t in model.tensors], "ema": ema, "opt": opt.state(), "step": step, "elapsed": elapsed, "tokens": tokens, "runs": runs,
                 "rng": torch.get_rng_state(), "config": config.__dict__}
        torch.save(state, str(saved) + ".new")
        os.replace(str(saved) + ".new", saved)

    total, mean, last_save, last_print = a.minutes * 60, None, time.time(), 0.0
    batches = data.stream(tok_path, a.seed * 1000 + runs + 100 * rank, excluded, a.mixture)
    clock = time.time()
    stop = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.append(1))
    while elapsed < total and not (a.steps and step >= a.steps) and not stop:
        b = next(batches)
        t = {k: torch.from_numpy(v).to(a.device) for k, v in b.items()}
        loss = loss_of(t["tokens"], t["position"], t["sample"], t["stream"], t["block"], t["index"], t["loss_target"], t["loss_weight"])
        loss.backward()
        value, used = loss.item(), int(b["used"])
        if world > 1:
            value, used, stopping, elapsed = together(model.tensors, rank, value, used, len(stop), elapsed)
            stop += [1] * (stopping > 0)
        warm = min(1.0, (step + 1) / 200)
        start = a.lr_from * 60
        scale = a.lr_peak * warm * max(0.0, min(1.0, (total - elapsed) / max(1.0, total - start)))
        opt.step(scale)
        for q in model.tensors:
            q.grad = None
        torch._foreach_lerp_(ema, [q.detach() for q in model.tensors], min(0.002 if step > 500 else 0.02, 1.0))
        step += 1
        tokens += used
        mean = value if mean is None else mean * 0.98 + value * 0.02
        now = time.time()
        elapsed += now - clock
        speed = used / (now - clock)
        clock = now
        if rank > 0:
            continue
        if now - last_print > 10 or step < 5:
            last_print = now
            print(f"step {step}  loss {mean:.4f}  lr {scale:.3f}  {tokens / 1e6:.2f} M tokens  {speed / 1000:.1f} k/s  {elapsed / 60:.1f} min  ETA {(total - elapsed) / 60:.1f} min", flush=True)
        if now - last_save > a.save_minutes * 60:
            last_save = now
            save()
    if rank > 0:
        batches.close()
        return
    save()
    if elapsed >= total:
        export.write(work / "checkpoint.pt", out, which="model", tokenizer=tok_path)
        print(f"exported to {out}", flush=True)
    batches.close()


if __name__ == "__main__":
    main()
