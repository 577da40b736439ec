"""The tables client x feature of docs/clients.md, made of what the tests of this folder have noted.

    python table.py RESULTS            compares; exit status 1 if the page has another table
    UPDATE_DOCS=1 python table.py RESULTS    writes it
"""

import json
import os
import sys
from pathlib import Path

from contract import EMBEDDING_FEATURES, EMBEDDINGS, FEATURES

PAGE = Path(__file__).resolve().parents[2] / "docs/clients.md"
BEGIN, END = "<!-- table: made by tests/clients/table.py -->", "<!-- end of the table -->"


def table(results):
    cells = {}
    for path in Path(results).glob("*.json"):
        cell = json.loads(path.read_text())
        cells.setdefault((cell["client"], cell["interface"]), set()).add(cell["feature"])
    lines = ["| client | interface | " + " | ".join(FEATURES) + " |", "|---" * (2 + len(FEATURES)) + "|"]
    for (client, interface), passed in sorted(cells.items()):
        if not passed <= set(FEATURES):
            continue
        asked = EMBEDDING_FEATURES if interface in EMBEDDINGS else FEATURES
        marks = ["yes" if feature in passed else "no" if feature in asked else "-" for feature in FEATURES]
        lines.append("| " + " | ".join([client, interface, *marks]) + " |")
    return "\n".join(lines + [""] + tools(cells))


def tools(cells):
    """The table of tools, which have features of their own."""
    lines = ["| tool | interface | runs |", "|---|---|---|"]
    for (client, interface), passed in sorted(cells.items()):
        if not passed <= set(FEATURES):
            lines.append(f"| {client} | {interface} | {', '.join(sorted(passed))} |")
    return lines


def main():
    page = PAGE.read_text()
    head, rest = page.split(BEGIN)
    written, tail = rest.split(END)
    made = table(sys.argv[1])
    if written.strip() == made:
        return
    if os.environ.get("UPDATE_DOCS"):
        PAGE.write_text(f"{head}{BEGIN}\n{made}\n{END}{tail}")
        return
    sys.exit(f"docs/clients.md has another table than this run; UPDATE_DOCS=1 writes this one:\n{made}")


main()
