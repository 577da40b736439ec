"""The file SPEED: static figures of each kernel and target, and which of them got worse."""

import re
from dataclasses import astuple, dataclass

HEAD = """\
# Static figures of the kernels, made by scripts/ptx of the machine code that ptxas 12.9 makes of the PTX. No GPU ran.
#
# instructions  of a warp in a turn of the main loop: of a product, a chunk of 64 inputs. The main loop is the smallest of those
#               with the most tensor-core instructions, or without any, the longest that has no loop inside. 0: there is no loop.
#               All branches are taken as if every row and output was there. An unrolled loop's turn is several of the source's.
# stalls        sum of the cycles that ptxas lets pass after each of them: the turn's time if it never waited for memory,
#               barriers or other warps
# tensor        HMMA and IMMA among them
# code          instructions of the kernel
# registers     of a thread
# blocks        that a multiprocessor holds at once, by threads, registers and, for products and attention (head size 128),
#               shared memory
#
# Not here: bank conflicts and sectors of memory accesses, which need addresses and so a run of the PTX.
"""
COLUMNS = ["instructions", "stalls", "tensor", "code", "registers", "blocks"]


@dataclass
class Figures:
    """A row of the table."""

    instructions: int
    stalls: int
    tensor: int
    code: int
    registers: int
    blocks: int


def parsed(text):
    """Figures by kernel and target."""
    rows = [line.split() for line in text.splitlines() if line and not line.startswith("#")]
    return {(row[0], row[1]): Figures(*map(int, row[2:])) for row in rows[1:]}


def in_order(key):
    """Kernels by name with numbers as numbers, targets by number."""
    return [[int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)] for name in key]


def table(figures):
    width = max(len(kernel) for kernel, _ in figures)
    head = f"{'kernel':{width}} target" + "".join(f" {column:>{len(column)}}" for column in COLUMNS)
    rows = [
        f"{kernel:{width}} {target:6}" + "".join(f" {value:{len(column)}}" for column, value in zip(COLUMNS, astuple(figures[kernel, target])))
        for kernel, target in sorted(figures, key=in_order)
    ]
    return HEAD + "\n".join(["", head, *rows]) + "\n"


def slower(before, after):
    """What got worse, a line each. Registers and size may grow as long as as many blocks fit."""
    problems = []
    for (kernel, target), now in after.items():
        was = before.get((kernel, target))
        if was is None:
            continue
        for what in ("instructions", "stalls"):
            if getattr(now, what) > getattr(was, what):
                problems.append(f"{kernel} for {target}: {getattr(now, what)} {what} of the main loop, {getattr(was, what)} before")
        if now.blocks < was.blocks:
            problems.append(f"{kernel} for {target}: {now.blocks} blocks a multiprocessor, {was.blocks} before")
    return problems


def most_registers(figures):
    """A Markdown table of the most registers in each family of kernels."""
    targets = sorted({target for _, target in figures}, key=lambda target: in_order([target]))
    families = {}
    for kernel, target in figures:
        family = re.match(r"(product_(?:q\d_[0k]|[a-z]+\d+)|attention_(?:join|bf16|f32)|[a-z]+)", kernel)[1]
        families.setdefault(family, set()).add(kernel)
    lines = ["| kernels | number | " + " | ".join(targets) + " |", "|---|---|" + "---|" * len(targets)]
    for family, kernels in sorted(families.items()):
        most = [max(figures[kernel, target].registers for kernel in kernels) for target in targets]
        lines.append(f"| `{family}*` | {len(kernels)} | " + " | ".join(map(str, most)) + " |")
    return "\n".join(lines)
