"""Instructions of a request in the front end and in the worker, without and with profiling: `python profiling_cost.py NAME=BINARY...`.

Both processes run under Valgrind (callgrind), the worker started apart (`worker --listen`), because Valgrind has no `pidfd_open`, with
which a server watches a worker of its own. They serve the tiny checkpoint of tests/golden/sdar on one thread. A round is some seconds without a
request, which give the rate of heartbeats and timers, then equal greedy requests, one at a time; what remains above that rate is theirs. A
binary without profiling is measured with `--modes off`. Valgrind has no AVX-512, so the kernels are those for processors without it. Needs Linux
on x86-64.
"""

import argparse
import ctypes
import http.client
import json
import re
import statistics
import struct
import subprocess
import tempfile
import time
from pathlib import Path

MODEL = Path(__file__).resolve().parents[2] / "tests/golden/sdar"
BODY = {"prompt": list(range(5, 13)), "max_tokens": 8, "temperature": 0, "ignore_eos": True}
CHAT = {**{name: BODY[name] for name in BODY if name != "prompt"}, "messages": [{"role": "user", "content": "Hello there"}]}
KINDS = {
    "whole": ("/generate", BODY),
    "stream": ("/generate", {**BODY, "stream": True, "stream_mode": "block_append"}),
    "denoise": ("/generate", {**BODY, "stream": True, "stream_mode": "denoise"}),
    "chat": ("/v1/chat/completions", CHAT),
    "chat_stream": ("/v1/chat/completions", {**CHAT, "stream": True}),
}
# Bodies of /start_profile.
MODES = {"off": None, "events": {"run_id": "r", "enable_torch": False, "event_dir": "e"}, "events and trace": {"run_id": "r"}}


def hide_auxiliary_vector():
    """Makes prctl(PR_GET_AUXV) fail from here on. With it, rustix finds the kernel's vDSO, which is not there under Valgrind; without it, it
    reads /proc/self/auxv, which Valgrind has corrected."""
    prctl, get_auxv, refused, allowed = 157, 0x41555856, 0x00050000 | 22, 0x7FFF0000
    load, jump_if_equal, answer = 0x20, 0x15, 0x06
    # The number of the call, and the low half of its first argument (seccomp(2)).
    program = [(load, 0, 0, 0), (jump_if_equal, 0, 3, prctl), (load, 0, 0, 16), (jump_if_equal, 0, 1, get_auxv), (answer, 0, 0, refused),
               (answer, 0, 0, allowed)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in program))
    libc = ctypes.CDLL(None, use_errno=True)
    filter_of = struct.pack("HxxxxxxQ", len(program), ctypes.addressof(code))
    # PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP with SECCOMP_MODE_FILTER.
    if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, ctypes.create_string_buffer(filter_of), 0, 0):
        raise OSError(ctypes.get_errno(), "seccomp")


def under_callgrind(folder, name, command):
    grind = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={folder / name}.out", f"--log-file={folder / name}.log"]
    return subprocess.Popen([*grind, *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, preexec_fn=hide_auxiliary_vector)


def instructions(process):
    """Of all threads of a process so far."""
    told = subprocess.run(["callgrind_control", "-e", str(process.pid)], capture_output=True, text=True, check=True).stdout
    return sum(int(count.replace(",", "")) for count in re.findall(r"^ *Th +\d+ +([\d,]+)", told, re.M))


def call(connection, path, body):
    connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
    answer = connection.getresponse()
    text = answer.read()
    if answer.status != 200:
        raise RuntimeError(f"{path}: {answer.status} {text}")


def connected(port):
    """A connection to the server, which takes requests."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    for _ in range(600):
        connection.request("GET", "/ready")
        answer = connection.getresponse()
        answer.read()
        if answer.status == 200:
            return connection
        time.sleep(0.5)
    raise RuntimeError("the server did not become ready")


def run(binary, kind, mode, n_rounds, n_requests, idle_seconds):
    """Instructions of a request, round by round, in the front end and in the worker."""
    path, body = KINDS[kind]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        place = f"ipc://{folder / 'place'}"
        common = ["--log-level", "warn", "--model", str(MODEL)]
        common += ["--profile-dir", str(folder / "profiles")] if MODES[mode] else []
        worker = under_callgrind(folder, "worker", [binary, "worker", "--listen", place, "--threads", "1", *common])
        worker.stdout.readline()
        server = under_callgrind(folder, "server", [binary, "--connect", place, "--port", "0", *common])
        try:
            port = next(int(found[1]) for line in server.stdout if (found := re.search(r"http://127\.0\.0\.1:(\d+)", line)))
            connection = connected(port)
            if MODES[mode]:
                call(connection, "/start_profile", MODES[mode])
            for _ in range(5):
                call(connection, path, body)
            rounds = []
            for _ in range(n_rounds):
                marks = [mark(server, worker)]
                time.sleep(idle_seconds)
                marks.append(mark(server, worker))
                for _ in range(n_requests):
                    call(connection, path, body)
                marks.append(mark(server, worker))
                rounds.append([above_idle(*side) / n_requests for side in zip(*marks)])
            return zip(*rounds)
        finally:
            for process in (server, worker):
                process.kill()
                process.wait()


def mark(*processes):
    """Time and instructions of each."""
    return [(time.monotonic(), instructions(process)) for process in processes]


def above_idle(before, idle, after):
    rate = (idle[1] - before[1]) / (idle[0] - before[0])
    return after[1] - idle[1] - rate * (after[0] - idle[0])


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("binaries", nargs="+", help="NAME=BINARY")
    p.add_argument("--modes", nargs="+", default=list(MODES), choices=MODES)
    p.add_argument("--kinds", nargs="+", default=list(KINDS), choices=KINDS)
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--requests", type=int, default=20, help="of a round")
    p.add_argument("--idle-seconds", type=float, default=4)
    a = p.parse_args()
    print("| answer | binary, profile | front end, median (range) | worker, median (range) |")
    print("|---|---|---|---|")
    for kind in a.kinds:
        for binary in a.binaries:
            name, _, path = binary.partition("=")
            for mode in a.modes:
                sides = run(path, kind, mode, a.rounds, a.requests, a.idle_seconds)
                cells = (f"{statistics.median(side):,.0f} ({min(side):,.0f} to {max(side):,.0f})" for side in sides)
                print(f"| {kind} | {name}, {mode} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
