"""The messages of Paddock, read from the source of both languages, the tables and the page.

A message is a string of at least three words, or of two words and a value, or the help text of an
option. Docstrings, comments, Rust test modules and the contract of executors have none. A value in
a message is written as ``{}``. The reasons in tables (``why``, and the last column of landlock.tsv)
and all texts of the approvals page are messages too.

    python -m tests.unit.messages            prints the list, with the files of each message
    python -m tests.unit.messages --write    writes the list to golden/messages.txt
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

ROOT = Path(__file__).parents[2]
GOLDEN = Path(__file__).with_name("golden") / "messages.txt"

_WORDS = re.compile(r"(?<![\w/.*-])[A-Za-z']{2,}(?![\w/*])")
_VALUE = re.compile(r"(?<!\{)\{(?!\{)[^{}]*\}")
_TEST_MODULE = re.compile(r"#\[cfg\(test\)\]\s*(?:pub(?:\([a-z]+\))?\s+)?mod\s+(\w+);")
_JS_TOKEN = re.compile(r"""//[^\n]*|"(?P<text>[^"\n]*)"|`(?P<template>[^`]*)`""")
_JS_VALUE = re.compile(r"\$\{[^{}]*\}")
_JS_SHOWN = re.compile(r"(?:\.textContent|document\.title) = [^;]*;")
_READ_ALOUD = ("alt", "aria-label", "placeholder", "title")
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
        ("src/paddock", "*.toml", toml_messages),
        ("src/paddock", "landlock.tsv", tsv_messages),
        ("src/paddock", "*.html", html_messages),
        ("src/paddock", "*.js", js_messages),
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


def toml_messages(text: str) -> Iterator[str]:
    """The value of ``why`` of each table."""
    for table in tomllib.loads(text).values():
        if isinstance(table, dict) and isinstance(table.get("why"), str):
            yield table["why"]


def tsv_messages(text: str) -> Iterator[str]:
    """The last column, without the rows that have none."""
    for line in text.splitlines():
        last = line.rpartition("\t")[2]
        if not line.startswith("#") and last != "-":
            yield last


def html_messages(text: str) -> Iterator[str]:
    page = _Page()
    page.feed(text)
    page.close()
    yield from (one for one in page.texts if len(one) > 1)  # one letter: a key


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.texts += [value for name, value in attrs if name in _READ_ALOUD and value]

    def handle_data(self, data: str) -> None:
        self.texts.append(" ".join(data.split()))


def js_messages(text: str) -> Iterator[str]:
    """Prose, and every string in an assignment that shows text."""
    shown = [range(*found.span()) for found in _JS_SHOWN.finditer(text)]
    for token in _JS_TOKEN.finditer(text):
        message = token["text"] or _JS_VALUE.sub("{}", token["template"] or "")
        is_shown = any(token.start() in part for part in shown)
        if _is_prose(message) or (is_shown and re.search(r"(?<!\\)[A-Za-z]", message)):
            yield _one_line(message)


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
