"""Processor time of the front end per request, interface by interface: `python front_end_cpu.py before=URL after=URL`.

The servers run on this machine, with the demo model. One request at a time, servers and cases in turn, each answer 48 tokens, greedy.
A stream's frames are joined where a reader is late; the mean number of deltas of an answer is printed beside the time.
"""

import argparse
import http.client
import json
import statistics
import subprocess
from pathlib import Path

QUESTION = "count from 1 to 9"
MESSAGES = [{"role": "user", "content": QUESTION}]
PLAIN = {"max_tokens": 48, "temperature": 0}
OLLAMA = {"num_predict": 48, "temperature": 0}
# The path, the body, and what each text delta of a stream has.
CASES = {
    "/generate": ("/generate", {"prompt": QUESTION, **PLAIN}, None),
    "chat": ("/v1/chat/completions", {"messages": MESSAGES, **PLAIN}, None),
    "/generate, stream": (
        "/generate",
        {"prompt": QUESTION, "stream": True, "stream_mode": "block_append", **PLAIN},
        b'"event": "append"',
    ),
    "chat, stream": ("/v1/chat/completions", {"messages": MESSAGES, "stream": True, **PLAIN}, b'"content"'),
    "responses, stream": (
        "/v1/responses",
        {"input": QUESTION, "stream": True, "max_output_tokens": 48, "temperature": 0},
        b"event: response.output_text.delta",
    ),
    "messages, stream": ("/v1/messages", {"messages": MESSAGES, "stream": True, **PLAIN}, b"event: content_block_delta"),
    "/api/chat, stream": ("/api/chat", {"model": "diffulex-demo", "messages": MESSAGES, "options": OLLAMA}, b'"content"'),
}


class Server:
    def __init__(self, url):
        host, _, port = url.removeprefix("http://").partition(":")
        self.connection = http.client.HTTPConnection(host, int(port))
        # The front end is the process that listens.
        listening = subprocess.run(["ss", "-Hltnp", f"sport = :{port}"], capture_output=True, text=True, check=True).stdout
        self.tasks = Path("/proc", listening.split("pid=")[1].split(",")[0], "task")

    def seconds(self):
        """Processor time of all threads so far, in seconds."""
        return sum(int((task / "schedstat").read_text().split()[0]) for task in self.tasks.iterdir()) / 1e9

    def ask(self, path, body):
        self.connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
        answer = self.connection.getresponse()
        if answer.status != 200:
            raise RuntimeError(f"{path}: {answer.status} {answer.read()}")
        return answer.read()

    def serves(self, path):
        """An older server may not have the interface."""
        self.connection.request("GET", path)
        answer = self.connection.getresponse()
        answer.read()
        return answer.status == 405


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("servers", nargs="+", help="NAME=URL")
    p.add_argument("--rounds", type=int, default=9)
    p.add_argument("--requests", type=int, default=200)
    p.add_argument("--cases", nargs="+", default=list(CASES), choices=CASES)
    a = p.parse_args()
    servers = {name: Server(url) for name, url in (server.split("=", 1) for server in a.servers)}
    costs = {}
    for round_ in range(-1, a.rounds):      # The first one warms.
        for case in a.cases:
            path, body, mark = CASES[case]
            for name, server in servers.items():
                if not server.serves(path):
                    continue
                before, n_deltas = server.seconds(), 0
                for _ in range(a.requests):
                    answer = server.ask(path, body)
                    n_deltas += answer.count(mark) if mark else 1
                if round_ >= 0:
                    microseconds = 1e6 * (server.seconds() - before) / a.requests
                    costs.setdefault(case, {}).setdefault(name, []).append((microseconds, n_deltas / a.requests))
    names = list(servers)
    print(f"| answer | {' | '.join(f'{name}, µs (deltas)' for name in names)} | {names[-1]} / {names[0]} |")
    print("|" + "---|" * (len(names) + 2))
    for case, by_name in costs.items():
        cells = []
        for name in names:
            values = by_name.get(name)
            times = [time for time, _ in values] if values else []
            deltas = statistics.mean(n for _, n in values) if values else 0
            cells.append(f"{statistics.median(times):.0f} ({min(times):.0f} to {max(times):.0f}; {deltas:.1f})" if values else "")
        pairs = zip(by_name.get(names[0], []), by_name.get(names[-1], []))
        ratios = [after / before for (before, _), (after, _) in pairs]
        last = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})" if ratios and len(names) > 1 else ""
        print(f"| {case} | {' | '.join(cells)} | {last} |")


if __name__ == "__main__":
    main()
