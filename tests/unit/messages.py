"""The messages of Paddock, read from the source of both languages.

A message is a string of at least three words, or of two words and a value, or the help text of an
option. Docstrings, comments, Rust test modules and the contract of executors have none. A value in
a message is written as ``{}``.

    python -m tests.unit.messages            prints the list, with the files of each message
    python -m tests.unit.messages --write    writes the list to golden/messages.txt
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
GOLDEN = Path(__file__).with_name("golden") / "messages.txt"

_WORDS = re.compile(r"(?<![\w/.*-])[A-Za-z']{2,}(?![\w/*])")
_VALUE = re.compile(r"(?<!\{)\{(?!\{)[^{}]*\}")
_TEST_MODULE = re.compile(r"#\[cfg\(test\)\]\s*(?:pub(?:\([a-z]+\))?\s+)?mod\s+(\w+);")
_RUST_TOKEN = re.compile(
    r"""//[^\n]*
    | /\*.*?\*/
    | b?r(?P<hashes>\#*)"(?P<raw>.*?)"(?P=hashes)
    | b?"(?P<text>(?:[^"\\]|\\.)*)"
    | b?'(?:[^'\\\n]|\\[^\n]{1,8}?)'
    | \#\[cfg\(test\)\]\s*(?:pub(?:\([a-z]+\))?\s+)?mod\s+\w+\s*(?P<tests>\{)
    | (?P<brace>[{}])""",
    re.DOTALL | re.VERBOSE,
)


def messages() -> dict[str, list[str]]:
    """Each message, and the files that have it."""
    found: dict[str, set[str]] = defaultdict(set)
    skipped = {"testing"} | {
        name
        for path in (ROOT / "core/src").rglob("*.rs")
        for name in _TEST_MODULE.findall(path.read_text())
    }
    for folder, suffix, read in (
        ("src/paddock", "*.py", python_messages),
        ("core/src", "*.rs", rust_messages),
        ("core/bin", "*.rs", rust_messages),
    ):
        for path in sorted((ROOT / folder).rglob(suffix)):
            if skipped & {path.stem, *path.relative_to(ROOT / folder).parts}:
                continue
            for message in read(path.read_text()):
                found[message].add(str(path.relative_to(ROOT)))
    return {message: sorted(found[message]) for message in sorted(found)}


def python_messages(text: str) -> Iterator[str]:
    tree = ast.parse(text)
    skipped = {id(part) for part in _docstrings(tree)}
    helps = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.keyword) and node.arg == "help"
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            skipped.update(id(part) for part in node.values)
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        match node:
            case ast.JoinedStr(values=values):
                message = "".join(
                    str(part.value) if isinstance(part, ast.Constant) else "{}" for part in values
                )
            case ast.Constant(value=str(message)):
                pass
            case _:
                continue
        if id(node) in helps or _is_prose(message):
            yield _one_line(message)


def _docstrings(tree: ast.Module) -> Iterator[ast.AST]:
    """Every string that is a statement: nothing reads it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield node.value


def rust_messages(text: str) -> Iterator[str]:
    depth = 0
    tests_end_at: int | None = None
    for token in _RUST_TOKEN.finditer(text):
        if token["tests"]:
            tests_end_at = depth if tests_end_at is None else tests_end_at
            depth += 1
        elif token["brace"]:
            depth += 1 if token["brace"] == "{" else -1
            if depth == tests_end_at:
                tests_end_at = None
        elif tests_end_at is None:
            message = token["raw"]
            if token["text"] is not None:
                message = re.sub(r"\\\n\s*", "", token["text"]).replace('\\"', '"')
            if message and _is_prose(message):
                yield _one_line(_VALUE.sub("{}", message))


def _is_prose(message: str) -> bool:
    words = len(_WORDS.findall(message))
    return words > 2 or (words == 2 and " " in message and _VALUE.search(message) is not None)


def _one_line(message: str) -> str:
    return message.replace("\n", "\\n").replace("\t", "\\t")


def main() -> None:
    found = messages()
    if sys.argv[1:] == ["--write"]:
        GOLDEN.parent.mkdir(exist_ok=True)
        GOLDEN.write_text("".join(f"{message}\n" for message in found))
        return
    for message, files in found.items():
        print(f"{message}\n    {' '.join(files)}")


if __name__ == "__main__":
    main()
