"""Bytes of a stream in each of its forms: `python frame_bytes.py URL [--steps N] [--max-tokens N] [--ignore-eos] [PROMPT...]`.

The same greedy answer as `append`, as changes (`ops`, at the pace that a request gets and with every step) and as windows, on
`/generate` and on chat. `--steps` fixes the denoise steps of a block, and thereby the tokens per forward. Prints bytes of the whole stream and
of its frames without the answer at the end, their ratio to `append`, and the number of frames: medians (ranges) of `--rounds`, as the pace
depends on the engine's. Needs nothing but Python.
"""

import argparse
import json
import statistics
import urllib.request

FORMS = {
    "append": {"stream_mode": "block_append"},
    "ops": {"stream_mode": "denoise", "snapshot": "ops"},
    "ops, steps": {"stream_mode": "denoise", "snapshot": "ops", "denoise": {"max_fps": 1000}},
    "ops, text": {"stream_mode": "denoise", "snapshot": "ops", "denoise": {"detail": "text"}},
    "window": {"stream_mode": "denoise", "snapshot": "window"},
    "full": {"stream_mode": "denoise", "snapshot": "full"},
}


def post(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return answer.read().decode()


def measure(url, body, rounds):
    base = None
    for form, fields in FORMS.items():
        of_rounds = []
        for _ in range(rounds):
            stream = post(url, {**body, **fields, "stream": True})
            frames = [frame for frame in stream.split("\n\n") if frame.startswith("data: {")]
            last = next(frame for frame in reversed(frames) if '"diffulex"' in frame)
            rate = json.loads(last.removeprefix("data: "))["diffulex"]["tokens_per_forward"]
            without_end = sum(len(frame.encode()) + 2 for frame in frames if frame != last)
            of_rounds.append((len(stream.encode()), without_end, len(frames) - 1))
        whole, without_end, n_frames = zip(*of_rounds)
        base = base or (statistics.median(whole), statistics.median(without_end))
        ratios = [[size / of for size in sizes] for sizes, of in zip((whole, without_end), base)]
        shown = [f"{statistics.median(sizes):8.0f} ({spread(of_form)})" for sizes, of_form in zip((whole, without_end), ratios)]
        print(f"  {form:10} {shown[0]}  without the end {shown[1]}  {statistics.median(n_frames):4.0f} frames  {rate:.2f} tokens per forward")


def spread(values):
    return f"{statistics.median(values):5.2f}, {min(values):.2f} to {max(values):.2f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("prompts", nargs="*", default=["Tell me a story about a dragon"])
    parser.add_argument("--steps", type=int)
    parser.add_argument("--max-tokens", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--ignore-eos", action="store_true")
    arguments = parser.parse_intermixed_args()
    body = {"max_tokens": arguments.max_tokens, "temperature": 0, "ignore_eos": arguments.ignore_eos}
    if arguments.steps:
        body["decoding"] = {"accept_rule": "static", "denoising_steps": arguments.steps}
    for prompt in arguments.prompts:
        print(prompt)
        chat = {**body, "messages": [{"role": "user", "content": prompt}]}
        print(" /v1/chat/completions")
        measure(arguments.url + "/v1/chat/completions", chat, arguments.rounds)
        ids = json.loads(post(arguments.url + "/tokenize", {"messages": chat["messages"]}))["tokens"]
        print(" /generate")
        measure(arguments.url + "/generate", {**body, "prompt": ids}, arguments.rounds)


if __name__ == "__main__":
    main()
