"""Measure the demonstration model per task, over HTTP against a running server or locally with torch.

    python evaluate.py --url http://127.0.0.1:8000 --concurrency 8
    python evaluate.py --local models/demo --block 8 --threshold 0.9
    python evaluate.py --make-prompts           # writes eval_prompts.jsonl, before training

An answer counts when it equals one of the accepted ones exactly (stories: when it fits the
story grammar). Over HTTP only the standard library is needed.
"""

import argparse
import concurrent.futures
import json
import random
import re
import sys
import time
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
PROMPTS = Path(__file__).with_name("eval_prompts.jsonl")
MAIN = """add subtract multiply compare count sort reverse spell letters weekday date unit json upper facts reading memory chat
unknown story""".split()


def make_prompts(per_task=100, seed=20):
    """Draw the prompts from the curriculum; training leaves out every prompt with the same hash."""
    import curriculum
    r = random.Random(seed)
    curriculum.COMMON_WORDS[:] = r.sample(curriculum.WORDS, 2000)
    curriculum.LONG = 0
    # The plain greetings and questions are what everybody types: they stay in training.
    plain = {curriculum.prompt_key([("user", f)]) for forms, _ in curriculum.CHAT for f in forms}
    seen, lines = set(), []
    for task in list(MAIN) + [t for t in curriculum.TASKS if t not in MAIN]:
        got = 0
        limit = per_task if task in MAIN else per_task // 2
        for _ in range(20000):
            if got == limit:
                break
            turns = curriculum.TASKS[task](r)
            prompt, answer = turns[:-1], turns[-1][1]
            key = curriculum.prompt_key(prompt)
            if key in seen or (task == "chat" and key in plain):
                continue
            if task in ("facts", "month", "rhyme", "story", "position") and r.random() < 0.5 and prompt[0][1][0].islower():
                continue
            seen.add(key)
            line = {"task": task, "messages": [{"role": a, "content": b} for a, b in prompt], "accept": [answer]}
            if task == "story":
                asked = [k for k in curriculum.STORY_KINDS if re.search(rf"\b{k}\b", prompt[-1][1].lower())]
                line["pattern"] = curriculum.STORY_PATTERN % {"kind": "|".join(asked or curriculum.STORY_KINDS)}
            lines.append(json.dumps(line))
            got += 1
    PROMPTS.write_text("\n".join(lines) + "\n")


def load_prompts():
    return [json.loads(line) for line in PROMPTS.read_text().splitlines()]


def correct(entry, text):
    if "pattern" in entry:
        return re.fullmatch(entry["pattern"], text.strip()) is not None
    return text.strip() in entry["accept"]


# ---------------------------------------------------------------- over HTTP

def over_http(entries, url, concurrency, model, max_tokens, extra):
    def one(entry):
        body = {"messages": entry["messages"], "temperature": 0, "max_tokens": max_tokens, "stream": False, **({"model": model} if model else {}), **extra}
        request = urllib.request.Request(url.rstrip("/") + "/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=600) as reply:
            r = json.load(reply)
        stats = r.get("diffulex") or {}
        return (r["choices"][0]["message"]["content"] or "", r.get("usage", {}).get("completion_tokens", 0),
                stats.get("nfe_denoise", 0), stats.get("nfe", 0))
    with concurrent.futures.ThreadPoolExecutor(concurrency) as pool:
        return list(pool.map(one, entries))


# ---------------------------------------------------------------- local

def decode(model, raw, prompts, block=8, threshold=0.9, sequential=False, max_tokens=400, batch=128, dtype=None):
    """Block by block: accept every masked position above the threshold, always at least the best.

    No cache: all rows of a batch are recomputed, each under its own block-causal mask. With
    `sequential`, exactly the most confident position is taken per step.
    """
    import torch
    eos, mask_id, pad = raw["eos_token_id"], raw["mask_token_id"], raw["pad_token_id"]
    dtype = dtype or torch.float32
    results = [None] * len(prompts)
    todo = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    device = model.tensors[0].device
    live = []
    while todo or live:
        while todo and len(live) < batch:
            i = todo.pop(0)
            ids = list(prompts[i])
            n = (len(ids) // block + 1) * block
            live.append({"i": i, "start": len(ids), "ids": ids + [mask_id] * (n - len(ids)), "nfe": 0})
        width = max(len(s["ids"]) for s in live)
        ids = torch.full((len(live), width), pad)
        for row, s in enumerate(live):
            ids[row, :len(s["ids"])] = torch.tensor(s["ids"])
        pos = torch.arange(width)
        mask = (pos[None, :] // block <= pos[:, None] // block).expand(len(live), -1, -1)
        with torch.no_grad():
            states = model(ids.to(device), pos.expand(len(live), -1).to(device), mask.to(device), dtype)
            tail = torch.stack([states[row, len(s["ids"]) - block:len(s["ids"])] for row, s in enumerate(live)])
            probs = model.logits(tail).float().softmax(-1)
        conf, best = (t.cpu().tolist() for t in probs.max(-1))
        keep = []
        for row, s in enumerate(live):
            lo = len(s["ids"]) - block
            s["nfe"] += 1
            open_ = [j for j in range(block) if s["ids"][lo + j] == mask_id]
            top = max(open_, key=lambda j: conf[row][j])
            take = [top] if sequential else [j for j in open_ if conf[row][j] > threshold or j == top]
            for j in take:
                s["ids"][lo + j] = best[row][j]
            answer = s["ids"][s["start"]:]
            end = answer.index(eos) if eos in answer else None
            if end is not None and mask_id not in answer[:end]:
                results[s["i"]] = (answer[:end], s["nfe"])
            elif len(answer) >= max_tokens or len(s["ids"]) + block > raw["max_position_embeddings"]:
                results[s["i"]] = (answer, s["nfe"])
            else:
                if mask_id not in answer:
                    s["ids"] += [mask_id] * block
                keep.append(s)
        live = keep
    return results


def locally(entries, folder, block, threshold, sequential, max_tokens, dtype):
    import torch
    from tokenizers import Tokenizer
    import export
    import vocab
    model, raw = export.load(folder)
    tok = Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))
    prompts = [tok.encode(vocab.render([(m["role"], m["content"]) for m in e["messages"]]) + "<|im_start|>assistant\n").ids for e in entries]
    out = decode(model, raw, prompts, block, threshold, sequential, max_tokens, dtype=torch.bfloat16 if dtype == "bf16" else torch.float32)
    return [(tok.decode(ids), len(ids), nfe, nfe) for ids, nfe in out]


def report(entries, results, show):
    tasks = {}
    for e, (text, tokens, nfe, all_nfe) in zip(entries, results):
        t = tasks.setdefault(e["task"], [0, 0, 0, 0])
        good = correct(e, text)
        t[0] += good
        t[1] += 1
        t[2] += tokens
        t[3] += nfe
        if not good and show > 0:
            show -= 1
            print(f"  {e['task']}: {e['messages'][-1]['content']!r} -> {text!r} (wanted {e['accept'][0]!r})")
    print("| task | accuracy | n | tokens per denoise forward |\n| --- | --- | --- | --- |")
    for name, (good, n, tokens, nfe) in tasks.items():
        print(f"| {name} | {good / n:.2f} | {n} | {tokens / max(nfe, 1):.2f} |")
    for title, names in (("main tasks", [t for t in tasks if t in MAIN]), ("all tasks", list(tasks))):
        if names:
            rates = [tasks[t][0] / tasks[t][1] for t in names]
            tokens, nfe = (sum(tasks[t][k] for t in names) for k in (2, 3))
            print(f"\n{title}: mean {sum(rates) / len(rates):.4f}, lowest {min(rates):.2f} ({names[rates.index(min(rates))]}), {tokens / max(nfe, 1):.2f} tokens per denoise forward")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--make-prompts", action="store_true")
    p.add_argument("--url")
    p.add_argument("--model", help="the name to ask for; the served model otherwise")
    p.add_argument("--concurrency", type=int, default=4)
    p.add_argument("--extra", default="{}", help="JSON merged into each request")
    p.add_argument("--local", metavar="FOLDER")
    p.add_argument("--block", type=int, default=8)
    p.add_argument("--threshold", type=float, default=0.9)
    p.add_argument("--sequential", action="store_true", help="one token a step")
    p.add_argument("--dtype", default="f32", choices=("f32", "bf16"))
    p.add_argument("--threads", type=int, default=0)
    p.add_argument("--limit", type=int, default=0, help="prompts per task")
    p.add_argument("--max-tokens", type=int, default=400)
    p.add_argument("--tasks", help="only these, comma-separated")
    p.add_argument("--show", type=int, default=0, help="print so many wrong answers")
    p.add_argument("--seed", type=int, default=20)
    a = p.parse_args()
    if a.make_prompts:
        make_prompts(seed=a.seed)
        return
    entries, seen = [], {}
    for e in load_prompts():
        seen[e["task"]] = seen.get(e["task"], 0) + 1
        if (not a.limit or seen[e["task"]] <= a.limit) and (not a.tasks or e["task"] in a.tasks.split(",")):
            entries.append(e)
    start = time.time()
    if a.local:
        if a.threads:
            import torch
            torch.set_num_threads(a.threads)
        results = locally(entries, a.local, a.block, a.threshold, a.sequential, a.max_tokens, a.dtype)
    elif a.url:
        results = over_http(entries, a.url, a.concurrency, a.model, a.max_tokens, json.loads(a.extra))
    else:
        p.error("give --url or --local")
    report(entries, results, a.show)
    print(f"{len(entries)} prompts in {time.time() - start:.1f} s")


if __name__ == "__main__":
    main()
