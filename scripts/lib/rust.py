"""Rust sources, read far enough to count lines and to find functions and the paths between modules."""

import re
import tomllib

LEXEME = re.compile(
    r"""(?P<comment>//[^\n]*)
    |(?P<block>/\*)
    |(?P<raw>\bb?r(?P<hashes>\#*)"[\s\S]*?"(?P=hashes))
    |(?P<string>b?"(?:\\[\s\S]|[^"\\])*")
    |(?P<char>b?'(?:\\(?:x[0-9a-fA-F]{2}|u\{[^}]*\}|.)|[^\\'\n])')""",
    re.VERBOSE,
)


def blank(text):
    """Spaces for everything but line ends."""
    return re.sub(r"[^\n]", " ", text)


def only_code(text):
    """The text with comments and literals blanked. A lifetime is not a literal."""
    out, at = [], 0
    while match := LEXEME.search(text, at):
        end = match.end()
        if match["block"]:
            depth = 1
            while depth and (mark := re.compile(r"/\*|\*/").search(text, end)):
                depth, end = depth + (1 if mark[0] == "/*" else -1), mark.end()
        out += [text[at : match.start()], blank(text[match.start() : end])]
        at = end
    return "".join(out) + text[at:]


def closing(code, opening):
    """One past the brace that closes the one at `opening`."""
    depth = 0
    for at in range(opening, len(code)):
        depth += {"{": 1, "}": -1}.get(code[at], 0)
        if depth == 0:
            return at + 1
    return len(code)


def body_start(code, start):
    """Index of the brace that opens the body of the function whose signature begins at `start`, or None without a body."""
    depth = 0
    for at in range(start, len(code)):
        depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(code[at], 0)
        # A bracket too many or an arm ends a pattern of a macro that looks like a function.
        if depth < 0 or code[at : at + 2] == "=>":
            return None
        if depth == 0 and code[at] in "{;":
            return at if code[at] == "{" else None
    return None


def without_tests(text, code):
    """Both with their inline test modules blanked."""
    for match in re.finditer(r"#\[cfg\(test\)\]\s*(?:pub(?:\([^)]*\))? )?mod \w+ \{", code):
        end = closing(code, match.end() - 1)
        text = text[: match.start()] + blank(text[match.start() : end]) + text[end:]
        code = code[: match.start()] + blank(code[match.start() : end]) + code[end:]
    return text, code


class Function:
    """A function with a body: half-open ranges of characters, from `fn` on."""

    def __init__(self, code, match, body):
        self.name, self.start, self.body, self.end = match[1], match.start(), body, closing(code, body)
        self.is_const = bool(re.search(r"\bconst\s+(?:unsafe\s+)?$", code[: match.start()]))
        self.first_line = code.count("\n", 0, self.start) + 1
        self.last_line = code.count("\n", 0, self.end) + 1
        self.n_lines = self.last_line - self.first_line + 1


class Source:
    """A production file."""

    def __init__(self, root, path):
        self.name = str(path.relative_to(root))
        self.original = path.read_text()
        self.n_lines = len(self.original.splitlines())
        self.text, self.code = without_tests(self.original, only_code(self.original))
        self.n_code = sum(1 for line in self.code.splitlines() if line.strip())
        parts = list(path.relative_to(root).with_suffix("").parts)
        parts = parts[parts.index("src") + 1 :]
        self.module = tuple(parts[:-1] if parts[-1] in ("mod", "lib", "main") else parts)

    def functions(self):
        """Its functions, nested ones included, in order of their start."""
        for match in re.finditer(r"\bfn\s+(\$?\w+)", self.code):
            body = body_start(self.code, match.end())
            if body is not None:
                yield Function(self.code, match, body)


def product_crates(root):
    """Folders of the crates that are the product: the workspace's default members."""
    workspace = tomllib.loads((root / "Cargo.toml").read_text())["workspace"]
    return workspace.get("default-members", workspace["members"])


def production(root, crate):
    """The sources of a crate, without files of tests."""
    files = sorted((root / crate / "src").rglob("*.rs"))
    return [Source(root, path) for path in files if not path.name.endswith("tests.rs") and "tests" not in path.parts]
