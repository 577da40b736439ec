"""Bytes of a stream in each of its forms: `python frame_bytes.py URL [--steps N] [--max-tokens N] [--ignore-eos] [PROMPT...]`.

The same greedy answer as `append`, as changes (`ops`) and as windows, on `/generate` and on chat.
`--steps` fixes the denoise steps of a block, and thereby the tokens per forward. Prints bytes of the whole stream and of its
frames without the answer at the end, and their ratio to `append`. Needs nothing but Python.
"""

import argparse
import json
import urllib.request

FORMS = {
    "append": {"stream_mode": "block_append"},
    "ops": {"stream_mode": "denoise", "snapshot": "ops"},
    "ops, text": {"stream_mode": "denoise", "snapshot": "ops", "denoise": {"detail": "text"}},
    "window": {"stream_mode": "denoise", "snapshot": "window"},
    "full": {"stream_mode": "denoise", "snapshot": "full"},
}


def post(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return answer.read().decode()


def measure(url, body):
    base = None
    for form, fields in FORMS.items():
        stream = post(url, {**body, **fields, "stream": True})
        frames = [frame for frame in stream.split("\n\n") if frame.startswith("data: {")]
        last = next(frame for frame in reversed(frames) if '"diffulex"' in frame)
        rate = json.loads(last.removeprefix("data: "))["diffulex"]["tokens_per_forward"]
        sizes = [len(stream.encode()), sum(len(frame.encode()) + 2 for frame in frames if frame != last)]
        base = base or sizes
        ratios = [size / of for size, of in zip(sizes, base)]
        print(f"  {form:10} {sizes[0]:8} ({ratios[0]:5.2f})  without the end {sizes[1]:8} ({ratios[1]:5.2f})  {len(frames) - 1:4} frames  {rate:.2f} tokens per forward")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("prompts", nargs="*", default=["Tell me a story about a dragon"])
    parser.add_argument("--steps", type=int)
    parser.add_argument("--max-tokens", type=int, default=256)
    parser.add_argument("--ignore-eos", action="store_true")
    arguments = parser.parse_intermixed_args()
    body = {"max_tokens": arguments.max_tokens, "temperature": 0, "ignore_eos": arguments.ignore_eos}
    if arguments.steps:
        body["decoding"] = {"accept_rule": "static", "denoising_steps": arguments.steps}
    for prompt in arguments.prompts:
        print(prompt)
        chat = {**body, "messages": [{"role": "user", "content": prompt}]}
        print(" /v1/chat/completions")
        measure(arguments.url + "/v1/chat/completions", chat)
        ids = json.loads(post(arguments.url + "/tokenize", {"messages": chat["messages"]}))["tokens"]
        print(" /generate")
        measure(arguments.url + "/generate", {**body, "prompt": ids})


if __name__ == "__main__":
    main()
