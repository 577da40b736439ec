"""Diffulex's forwards beside those of its peers, in one interleaved run.

    python bench.py FOLDER --ours int8 --peers llama.cpp-q8_0 torch-int8 --cases 1x4x256 1x16x256

FOLDER is a checkpoint (see checkpoint.py). Cases are BATCHxBLOCKxCONTEXT. All programs stay loaded; in each round every
one of them does the case in turn, the others sleeping. Medians and ranges go to standard output as a table of milliseconds,
with the ratio of each peer's median to ours. A peer whose packages are missing is left out, and said so.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent


class Program:
    def __init__(self, name, command):
        self.name = name
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def read(self):
        line = self.process.stdout.readline()
        if not line:
            raise EOFError(f"{self.name} ended with {self.process.wait()}")
        return json.loads(line)

    def ask(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.read()


def add_binary(parser):
    parser.add_argument("--binary", default=str(HERE.parent.parent / "target/release/forward_bench"))


def leave_out(program, peers, error):
    print(f"left out: {program.name} ({error})", file=sys.stderr)
    peers.remove(program)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("folder")
    p.add_argument("--ours", nargs="+", default=["int8"], help="float32, bfloat16, int8, int4")
    p.add_argument("--peers", nargs="*", default=[])
    p.add_argument("--cases", nargs="+", default=["1x4x256", "1x16x256", "1x32x256"])
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--before", help="the binary of an earlier commit, a peer of its own")
    add_binary(p)
    a = p.parse_args()
    ours = [Program(f"diffulex-{hold}", [a.binary, a.folder, hold]) for hold in a.ours]
    for program in ours:
        start = program.read()
        print(f"{program.name}: {start['parameters'] / 1e6:.1f} M weights, loaded in {start['load_seconds']} s, {start['device']}")
    earlier = [Program(f"before-{hold}", [a.before, a.folder, hold]) for hold in a.ours if a.before]
    peers = earlier + [Program(name, [sys.executable, str(HERE / "peers.py"), name, a.folder]) for name in a.peers]
    for program in list(peers):
        try:
            program.read()      # loaded: a program that still loads would slow the others down
        except EOFError as error:
            leave_out(program, peers, error)
    for program in ours:
        probe = program.ask("probe")
        print(f"{program.name}: memory {probe['bytes_per_second'] / 1e9:.1f} GB/s, multiplications {probe['operations_per_second'] / 1e9:.0f} GOP/s")
    times, shares = {}, {}
    for round_ in range(a.rounds):
        for case in a.cases:
            for program in list(ours + peers):
                time.sleep(0.3)     # threads of the one before may still watch for work
                try:
                    answer = program.ask(case.replace("x", " "))
                except (EOFError, BrokenPipeError) as error:
                    leave_out(program, peers, error)
                    continue
                times.setdefault((case, program.name), []).append(statistics.median(answer["ms"]))
                if "share" in answer:
                    shares.setdefault((case, program.name), []).append(answer["share"])
                print(f"round {round_ + 1}  {case}  {program.name}  {answer}", file=sys.stderr)
    print("\n| batch x block x context | program | ms, median (range) | times ours | share of the roof |\n| --- | --- | --- | --- | --- |")
    for case in a.cases:
        for program in ours + peers:
            if (case, program.name) not in times:
                continue
            mine, theirs = times[case, ours[0].name], times[case, program.name]
            ratios = [t / m for t, m in zip(theirs, mine)]
            of_roof = shares.get((case, program.name))
            share = f"{statistics.median(of_roof):.0%} ({min(of_roof):.0%} to {max(of_roof):.0%})" if of_roof else ""
            print(f"| {case} | {program.name} | {statistics.median(theirs):.1f} ({min(theirs):.1f} to {max(theirs):.1f}) | {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}) | {share} |")
    for program in ours + peers:
        program.process.stdin.close()
        program.process.wait()


if __name__ == "__main__":
    main()
