"""Git's configuration files are read as git reads them. A broken file is read up to the same
point.
"""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

import pytest

from paddock.host.git.config_file import entries

SEED = 20261115

SAMPLES = [
    ("[core]\n\tbare = false\n", [("core", None, "bare", "false")]),
    ("[Core]\n FileMode = True ; yes\n", [("core", None, "filemode", "True")]),
    ("[a] b = 1\n[c]d=2", [("a", None, "b", "1"), ("c", None, "d", "2")]),
    ('[remote "or\\"ig\\\\in"]\nurl = x\n', [("remote", 'or"ig\\in', "url", "x")]),
    ("[branch.Topic]\nmerge = y\n", [("branch", "topic", "merge", "y")]),
    ("[a]\nb\nc \n", [("a", None, "b", None), ("a", None, "c", None)]),
    ('[a]\nb = " x # y " # z\n', [("a", None, "b", " x # y ")]),
    ("[a]\nb = one\\\n two\n", [("a", None, "b", "one two")]),
    ('[a]\nb = "\\t\\"q\\"\\\\"\n', [("a", None, "b", '\t"q"\\')]),
    ("[a]\nb = x   \t\n", [("a", None, "b", "x")]),
    ("\ufeff[a]\r\nb = c\r\n", [("a", None, "b", "c")]),
    ("# nothing\n; at all\n\n", []),
    ("[a]\nb =\n", [("a", None, "b", "")]),
]

BROKEN = [
    ("[a]\nb = 1\n[c\nd = 2\n", ["b"]),
    ('[a]\nb = 1\nc = "open\n[d]\ne = 2\n', ["b"]),
    ("[a]\nb = 1\nc = \\q\nd = 2\n", ["b"]),
    ("b = 1\n[a]\nc = 2\n", []),
    ("[a]\nb = 1\n-c = 2\n", ["b"]),
    ('[a "x]\nb = 1\n', []),
    ("[a]\nb\nc # on\nd\n", ["b"]),
]


@pytest.mark.parametrize(("text", "found"), SAMPLES)
def test_configuration_is_read_as_git_reads_it(
    text: str, found: list[tuple[str, str | None, str, str | None]]
) -> None:
    assert [(one.section, one.subsection, one.key, one.value) for one in entries(text)] == found


@pytest.mark.parametrize(("text", "keys"), BROKEN)
def test_a_broken_file_ends_at_the_mistake(text: str, keys: list[str]) -> None:
    assert [one.key for one in entries(text)] == keys


@pytest.mark.parametrize("text", [text for text, _ in SAMPLES])
def test_installed_git_reads_the_same_values(text: str, tmp_path: Path) -> None:
    file = tmp_path / "config"
    file.write_text(text)
    listed = subprocess.run(
        ["git", "config", "--file", file, "--null", "--list"],
        capture_output=True,
        text=True,
        check=True,
        cwd="/",
    ).stdout
    theirs = [one.partition("\n")[::2] for one in listed.split("\0") if one]
    ours = [
        (
            f"{e.section}.{e.subsection}.{e.key}"
            if e.subsection is not None
            else f"{e.section}.{e.key}",
            e.value or "",
        )
        for e in entries(text)
    ]
    assert ours == theirs


def test_parsing_any_text_ends() -> None:
    chance = random.Random(SEED)
    letters = '[]"\\\n\r\t #;=abc.-\0é'
    for _ in range(3000):
        text = "".join(chance.choices(letters, k=chance.randrange(60)))
        for one in entries(text):
            assert one.key


def test_a_long_hostile_line_takes_linear_time() -> None:
    assert [one.key for one in entries("[a]\nb = " + '"x" ' * 200_000)] == ["b"]
    assert list(entries("[" * 500_000)) == []
