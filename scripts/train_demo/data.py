"""From conversations to packed training batches.

One sample becomes a row segment: the clean text up to the last answered block, then for every
block that holds part of an answer two noisy copies with complementary masks (one copy where
the whole block is masked). Only answers are noised, so the prompt is paid for once.
"""

import json
import multiprocessing
import os
import random
from pathlib import Path
from queue import Full

import numpy as np

import curriculum
import vocab

SHAPES = ((128, 32), (256, 16), (512, 8))   # row length, rows per batch: few static shapes, so few compiled graphs
TARGET_SHARE = 0.4                  # most of a batch's tokens that can be targets (a fixed size, for the compiler)


class Encoder:
    def __init__(self, tok):
        self.tok, self.cache = tok, {}

    def __call__(self, turns):
        """Token ids and the [start, end) spans of the answers, end token included."""
        ids, spans = [], []
        for role, text in turns:
            head = self.cache.get(role)
            if head is None:
                head = self.cache[role] = self.tok.encode(f"<|im_start|>{role}\n").ids
            ids += head
            start = len(ids)
            ids += self.tok.encode(text).ids + [vocab.EOS]
            if role == "assistant":
                spans.append((start, len(ids)))
            ids += self.cache.setdefault("\n", self.tok.encode("\n").ids)
        return ids, spans


def segment(ids, spans, r, block, limit):
    """One sample as (tokens, positions, streams, blocks, targets, weights), or None if it does not fit."""
    pieces, stream = [], 0
    todo = [(s, e, b) for s, e in spans for b in range(s // block, (e - 1) // block + 1)]
    todo = [x for x in todo if (x[2] + 2) * block <= limit]
    if not todo:
        return None
    last = r.choice(todo)[2] if (todo[-1][2] + 2 * len(todo)) * block > limit else todo[-1][2]
    todo = [x for x in todo if x[2] <= last]
    clean = last * block
    room = max(1, (limit - clean) // (2 * block))
    if len(todo) > room:            # a long answer: noise only some of its blocks, the last of them among these
        todo = sorted(r.sample(todo[:-1], room - 1) + todo[-1:], key=lambda x: x[2])
    tokens, position = ids[:clean], list(range(clean))
    streams, blocks = [0] * clean, [i // block for i in range(clean)]
    targets, weights = [0] * clean, [0.0] * clean
    ends = {e: b for _, e, b in todo}
    for s, e, b in todo:
        if (e - s) // block > 4 and b != ends[e] and r.random() > 3 * block / (e - s):
            continue                # the middle of a long answer is all alike; where it ends is what is hard
        lo = b * block
        truth = [ids[i] if i < e else vocab.EOS for i in range(lo, lo + block)]
        free = [i >= s for i in range(lo, lo + block)]
        worth = [1.0 if i < e else 0.1 for i in range(lo, lo + block)]
        if r.random() < 0.3:
            copies = [free]
        else:
            rate = r.random()
            m = [f and r.random() < rate for f in free]
            copies = [m, [f and not x for f, x in zip(free, m)]]
        for m in copies:
            if not any(m):
                continue
            stream += 1
            tokens = tokens + [vocab.MASK if x else t for x, t in zip(m, truth)]
            position = position + list(range(lo, lo + block))
            streams = streams + [stream] * block
            blocks = blocks + [b] * block
            targets = targets + truth
            weights = weights + [w if x else 0.0 for w, x in zip(worth, m)]
    return tokens, position, streams, blocks, targets, weights


def pack(segments, length, rows):
    """Best fit, longest first, into `rows` rows; returns the batch and what did not fit."""
    batch = {k: np.zeros((rows, length), np.int64 if k != "weight" else np.float32) for k in ("tokens", "position", "stream", "block", "target", "weight")}
    batch["tokens"][:] = vocab.PAD
    batch["sample"] = np.full((rows, length), -1, np.int64)
    used, rest = [0] * rows, []
    for n, seg in enumerate(sorted(segments, key=lambda s: -len(s[0]))):
        size = len(seg[0])
        row = max((i for i in range(rows) if used[i] + size <= length), key=lambda i: used[i], default=None)
        if row is None:
            rest.append(seg)
            continue
        at = slice(used[row], used[row] + size)
        for k, v in zip(("tokens", "position", "stream", "block", "target", "weight"), seg):
            batch[k][row, at] = v
        batch["sample"][row, at] = n
        used[row] += size
    size = int(length * rows * TARGET_SHARE)
    flat = batch["weight"].reshape(-1)
    index = np.flatnonzero(flat)[:size]
    batch["index"] = np.zeros(size, np.int64)
    batch["index"][:len(index)] = index
    batch["loss_weight"] = np.zeros(size, np.float32)
    batch["loss_weight"][:len(index)] = flat[index]
    batch["loss_target"] = batch.pop("target").reshape(-1)[batch["index"]]
    del batch["weight"]
    batch["used"] = np.array(sum(used))
    return batch, rest


def mixture(path):
    """Task weights; a JSON file may override some of them, and is read again while training runs."""
    weights = dict(curriculum.WEIGHTS)
    if path and Path(path).exists():
        weights.update(json.loads(Path(path).read_text()))
    return weights


def produce(queue, tok_path, seed, excluded, mixture_path):
    from tokenizers import Tokenizer
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    tok = Tokenizer.from_file(tok_path)
    curriculum.COMMON_WORDS[:] = vocab.common_words(tok)
    queue.cancel_join_thread()      # so that this process can end with batches nobody took
    encode, r = Encoder(tok), random.Random(seed)
    pools = [[] for _ in SHAPES]
    sizes = [0] * len(SHAPES)
    weights, drawn = mixture(mixture_path), 0
    while True:
        drawn += 1
        if drawn % 3000 == 0:
            try:
                weights = mixture(mixture_path)
            except ValueError:
                pass                # caught half-written; the next look will do
        turns = curriculum.sample(r, weights)
        if any(curriculum.prompt_key(turns[j:i]) in excluded for i in range(1, len(turns)) if turns[i][0] == "assistant" for j in {0, i - 1}):
            continue
        ids, spans = encode(turns)
        seg = segment(ids, spans, r, r.choice((4, 8, 8, 16)), SHAPES[-1][0])
        if seg is None:
            continue
        which = next(i for i, (length, _) in enumerate(SHAPES) if len(seg[0]) <= length)
        pools[which].append(seg)
        sizes[which] += len(seg[0])
        length, rows = SHAPES[which]
        if sizes[which] > length * rows * 1.15:
            batch, rest = pack(pools[which], length, rows)
            pools[which], sizes[which] = rest, sum(len(s[0]) for s in rest)
            while True:
                try:
                    queue.put(batch, timeout=10)
                    break
                except Full:
                    if os.getppid() == 1:       # the trainer is gone
                        return


def stream(tok_path, seed, excluded, mixture_path=None):
    """Batches from a background process, a few ahead, so that the trainer never waits."""
    context = multiprocessing.get_context("spawn")
    queue = context.Queue(maxsize=24)
    process = context.Process(target=produce, args=(queue, str(tok_path), seed, excluded, mixture_path), daemon=True)
    process.start()
    try:
        while True:
            yield queue.get()
    finally:
        process.kill()
