#!/usr/bin/env python3
"""Questions on one document, from forks of a context and without one: contexts.py BINARY MODEL

Starts the server itself and needs only Python. Every round has a document of its own, so that nothing of it is cached: eight
questions one after the other on a copy of the document that each encodes anew (a salt of its own), then a fill, and the same
questions one after the other on forks. Prints the medians and ranges of the times to the first token, and the rows that forks
forwarded of the document, which must be 0. Exits with 1 if a fork forwards a row of it, if an answer differs, or if the median
time to the first token of forks is over 5 % of the other.
"""

import argparse
import json
import random
import statistics
import subprocess
import sys
import time
import urllib.request

GOAL = 0.05


def call(url, body=None, method="POST"):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
    return urllib.request.urlopen(request)


def streamed(url, body):
    """Seconds to the first token, the token ids, and the cached tokens of the prompt."""
    started = time.perf_counter()
    first = None
    body = {**body, "stream": True, "stream_mode": "denoise", "temperature": 0, "ignore_eos": True}
    with call(url, body) as answer:
        for line in answer:
            if not line.startswith(b"data: ") or line.strip() == b"data: [DONE]":
                continue
            frame = json.loads(line[6:])
            is_written = frame["event"] == "final" or any(piece is not None for piece in frame["pieces"])
            if first is None and is_written:
                first = time.perf_counter() - started
            if frame["event"] == "final":
                return first, frame["token_ids"], frame["usage"]["prompt_tokens_details"]["cached_tokens"]
    raise SystemExit("a stream without an end")


def metric(base, name):
    with urllib.request.urlopen(f"{base}/metrics") as page:
        return next(float(line.split()[1]) for line in page.read().decode().splitlines() if line.startswith(f"diffulex_{name} "))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary")
    parser.add_argument("model")
    parser.add_argument("--document", type=int, default=1024, help="tokens of the document")
    parser.add_argument("--question", type=int, default=16, help="tokens of a question")
    parser.add_argument("--questions", type=int, default=8)
    parser.add_argument("--max-tokens", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    args, flags = parser.parse_known_args()
    command = [args.binary, "--model", args.model, "--port", "0", "--block-size", "4", *flags]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        base = server.stdout.readline().split()[-1]
        while True:
            try:
                with urllib.request.urlopen(f"{base}/ready"):
                    break
            except OSError:
                time.sleep(0.2)
        sys.exit(measure(base, args))
    finally:
        server.terminate()
        server.wait()


def measure(base, args):
    draw = random.Random(0)
    ids = lambda n: [draw.randrange(10, 500) for _ in range(n)]
    times = {"unforked": [], "fork": []}
    n_shared_rows = 0
    for number in range(args.rounds):
        document = ids(args.document)
        questions = [ids(args.question) for _ in range(args.questions)]
        want = []
        for index, question in enumerate(questions):
            body = {"prompt": document + question, "max_tokens": args.max_tokens, "cache_salt": f"{number}-{index}"}
            first, tokens, _ = streamed(f"{base}/generate", body)
            times["unforked"].append(first)
            want.append(tokens)
        with call(f"{base}/v1/contexts", {"token_ids": document}) as answer:
            context = json.load(answer)
        url = f"{base}/v1/contexts/{context['context_id']}"
        for question, tokens in zip(questions, want):
            with call(f"{url}/fork", {}) as answer:
                fork = f"{base}/v1/contexts/{json.load(answer)['context_id']}"
            first, got, cached = streamed(f"{fork}/generate", {"prompt": question, "max_tokens": args.max_tokens})
            times["fork"].append(first)
            n_shared_rows += len(document) - cached
            if got != tokens:
                print("a fork's answer differs", file=sys.stderr)
                return 1
            call(fork, method="DELETE").close()
        call(url, method="DELETE").close()
    for name, seconds in times.items():
        low, middle, high = min(seconds), statistics.median(seconds), max(seconds)
        print(f"{name}: time to first token {middle * 1e3:.1f} ms ({low * 1e3:.1f} to {high * 1e3:.1f}), n = {len(seconds)}")
    share = statistics.median(times["fork"]) / statistics.median(times["unforked"])
    print(f"fork / unforked: {share:.3f}; rows of the document forwarded by forks: {n_shared_rows}")
    print(f"context pages left: {metric(base, 'context_pages'):.0f}")
    return int(share > GOAL or n_shared_rows > 0)


if __name__ == "__main__":
    main()
