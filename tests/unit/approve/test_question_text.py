"""A question shows exactly the command that would run, whatever characters it has."""

from __future__ import annotations

import ctypes
import locale
import shlex
import subprocess
import sys

import pytest

from paddock.approve.question_text import _width, changed, command, quoted, shown
from paddock.approve.questions import Parent
from paddock.text.printable import printable
from tests.unit.approve.questions import host_question, question, tool

WIDE = 200


def test_a_question_says_everything() -> None:
    asked = question(
        argv=("git", "push", "a b"),
        chain=("/w/run", "/usr/bin/dash"),
        parent=Parent(exe="/usr/bin/bash", argv=("bash", "-l")),
        reason="leaves\nthe machine",
    )
    assert shown(asked, 2, columns=WIDE, rows=40).splitlines() == [
        "paddock: may this run? (2 more wait)",
        "  │ git push 'a b'",
        "  program   │ /usr/bin/git (process 123)",
        "  run by    │ /usr/bin/dash",
        "  in        │ /w",
        "  from      │ bash -l (/usr/bin/bash)",
        "  because   │ rule push-asks (paddock.toml:14): leaves\\nthe machine",
    ]
    plain = shown(question(rule=None), 0, columns=WIDE, rows=40)
    assert plain.startswith("paddock: may this run?\n")
    assert "because   │ default_action (paddock.toml:14)\n" in plain
    assert "1 more waits" in shown(question(), 1, columns=WIDE, rows=40)


def test_a_question_about_a_host_names_the_calling_program() -> None:
    assert shown(host_question(), 0, columns=WIDE, rows=40).splitlines() == [
        "paddock: may this be connected to?",
        "  │ new.example:443",
        "  program   │ /usr/bin/curl (process 123)",
        "  because   │ network.default (paddock.toml:3)",
    ]
    unknown = host_question(host="a\x1b[2J\nb", process=None, source="")
    assert shown(unknown, 1, columns=WIDE, rows=40).splitlines() == [
        "paddock: may this be connected to? (1 more waits)",
        "  │ a\\x1b[2J\\nb:443",
        "  because   │ network.default",
    ]


WORDS = [
    "a",
    "a b",
    "",
    "it's",
    "\x1b[2J",
    "a\nb",
    "a\\nb\t",
    "\u202ex",
    "'\n\\",
    "\u200b",
    "\x9b2J",
    "\udc9b2J",
    "\xad",
    "é",
    "a\u00a0b",
    "\u3164",
    "e\u034f\ufe0f",
    "\u2800\u3000",
]


@pytest.mark.parametrize(
    "unseen",
    "\u00a0\u034f\u115f\u1160\u17b4\u2003\u2800\u3000\u3164\ufe0f\uffa0\U00016fe4\U000e0100",
)
def test_invisible_characters_are_escaped(unseen: str) -> None:
    assert quoted(f"a{unseen}b").isascii()


@pytest.mark.parametrize("word", WORDS)
def test_a_quoted_word_can_be_read_back_and_has_no_control_characters(word: str) -> None:
    shown_word = quoted(word)
    assert "\n" not in shown_word
    assert shown_word.isprintable()
    if not shown_word.startswith("$'"):
        assert shlex.split(shown_word) == [word]
    else:
        environment = {"LC_ALL": "C.UTF-8"}
        read = subprocess.run(
            ["bash", "-c", f"printf %s {shown_word}"],
            env=environment,
            capture_output=True,
            check=True,
        ).stdout
        assert read == word.encode(errors="surrogateescape")


def test_two_commands_never_look_alike() -> None:
    lists = [("a", "b"), ("a b",), ("a", "", "b"), ("a\nb",), ("a\\nb",), ("$'a\\nb'",), (), ("",)]
    assert len({command(argv) for argv in lists}) == len(lists)


def test_no_field_adds_a_line_or_steers_the_terminal() -> None:
    evil = "x\n\x1b[2Jpaddock: allowed\r\u202e"
    asked = question(
        exe=evil, chain=(evil, evil), argv=(evil,), cwd=evil, rule=evil, source=evil, reason=evil,
        parent=Parent(exe=evil, argv=(evil,)),
    )  # fmt: skip
    text = shown(asked, 0, columns=10_000, rows=40)
    assert len(text.splitlines()) == 7
    assert all(line.isprintable() for line in text.split("\n"))


def test_lines_that_do_not_fit_are_counted_and_can_be_shown() -> None:
    argv = ("sh", "-c", "A" * 3000 + "B" * 3000 + "Z")
    some = shown(question(argv=argv), 0, columns=80, rows=24)
    assert len(some.splitlines()) < 24
    assert all(len(line) < 80 for line in some.splitlines())
    (hidden,) = [line for line in some.splitlines() if "not shown" in line]
    count = int(hidden.split()[1])
    assert count + sum(some.count(letter) for letter in "ABZ") == len("".join(argv)) - len(
        "sh-c"
    ) + some.count("Alwa")
    whole = shown(question(argv=argv), 0, columns=80, rows=None)
    assert (whole.count("A"), whole.count("B"), "not shown" in whole) == (3000, 3000, False)
    wide = shown(question(argv=("\u4e2d" * 100,)), 0, columns=40, rows=24)
    assert max(len(line) for line in wide.splitlines()[1:4]) <= 22


def test_lines_of_a_tool_call_do_not_look_like_ours() -> None:
    asked = tool(
        lines=("git status\n  because   rule harmless", "\x1b[2J"),
        diff="-old\n+new\n same",
        reason="r\n",
    )
    assert shown(asked, 0, columns=WIDE, rows=40).splitlines() == [
        "paddock: may bash do this?",
        "  │ git status",
        "  │   because   rule harmless",
        "  │ \\x1b[2J",
        "  in        │ /w",
        "  because   │ rule approve-execute: r\\n",
        (
            "  but       │ session and always allow bash to write any text to this file, "
            "not only "
            "this text"
        ),
    ]
    lines = changed(asked, columns=WIDE, rows=40)
    assert [(line.text, line.colour) for line in lines] == [
        ("  │ -old", "31"),
        ("  │ +new", "32"),
        ("  │  same", ""),
    ]
    assert changed(question(), columns=WIDE, rows=40) == []


def test_a_long_diff_is_counted_and_can_be_seen_whole() -> None:
    asked = tool(diff="\n".join(f"+{number}\x1b[2J" for number in range(500)))
    some = changed(asked, columns=80, rows=24)
    assert len(some) <= 24
    assert any("are not shown" in line.text for line in some)
    whole = changed(asked, columns=80, rows=None)
    assert (len(whole), all(line.text.isprintable() for line in whole)) == (500, True)


def test_a_possible_secret_is_hidden_until_the_whole_is_shown() -> None:
    parent = Parent(exe="/bin/sh", argv=("sh", "password=hunter2"))
    asked = question(argv=("curl", "--token", "hunter2", "\udcff"), parent=parent)
    assert "hunter2" not in shown(asked, 0, columns=WIDE, rows=40)
    assert shown(asked, 0, columns=WIDE, rows=None).count("hunter2") == 2


def test_no_letter_is_wider_on_a_terminal_than_it_is_counted() -> None:
    before = locale.setlocale(locale.LC_CTYPE)
    locale.setlocale(locale.LC_CTYPE, "C.UTF-8")
    try:
        libc = ctypes.CDLL(None)
        seen = [
            chr(code)
            for code in range(0x20, sys.maxunicode + 1)
            if printable(chr(code)) == chr(code)
        ]
        assert len(seen) > 100_000
        assert [
            letter for letter in seen if _width(letter) < max(1, libc.wcwidth(ord(letter)))
        ] == []
    finally:
        locale.setlocale(locale.LC_CTYPE, before)


def test_spacing_marks_do_not_overflow_a_line() -> None:
    asked = question(argv=("git status" + "\u1b44" * 200,))
    lines = shown(asked, 0, columns=80, rows=60).splitlines()
    assert len(lines) > 5
    assert all(len(line) <= 80 for line in lines)
