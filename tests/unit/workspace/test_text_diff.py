"""Two texts → hunks."""

from __future__ import annotations

import random
import time

import pytest

from paddock.workspace.text_diff import MAX_EDITS, DiffLine, Tag, count, is_binary, unified


def shown(old: bytes, new: bytes) -> list[str]:
    return [
        line.text if line.tag is Tag.HUNK else line.tag.value + line.text
        for line in unified(old, new)
    ]


def patched(old: bytes, lines: list[DiffLine]) -> bytes:
    """Applies the hunks to the old text, as ``patch`` does."""
    source = old.decode().split("\n")
    result: list[str] = []
    at = 0
    for number, line in enumerate(lines):
        match line.tag:
            case Tag.HUNK:
                start, length = (int(part) for part in line.text.split()[1][1:].split(","))
                begin = start - 1 if length else start
                result += [f"{text}\n" for text in source[at:begin]]
                at = begin
            case Tag.SAME | Tag.REMOVED:
                assert source[at] == line.text
                at += 1
                if line.tag is Tag.SAME:
                    result.append(f"{line.text}\n")
            case Tag.ADDED:
                result.append(f"{line.text}\n")
            case Tag.NOTE:
                if lines[number - 1].tag is not Tag.REMOVED:
                    result[-1] = result[-1][:-1]
    rest = source[at:]
    result += [f"{text}\n" for text in rest[:-1]] + [text for text in rest[-1:] if text]
    return "".join(result).encode()


def test_hunks_carry_three_lines_of_context_and_meet_when_they_touch() -> None:
    old = b"".join(b"%d\n" % n for n in range(30))
    new = (
        old.replace(b"\n4\n", b"\nfour\n").replace(b"\n10\n", b"\nten\n").replace(b"\n20\n", b"\n")
    )
    assert shown(old, new) == [
        "@@ -2,13 +2,13 @@",
        *[
            " 1",
            " 2",
            " 3",
            "-4",
            "+four",
            " 5",
            " 6",
            " 7",
            " 8",
            " 9",
            "-10",
            "+ten",
            " 11",
            " 12",
            " 13",
        ],
        "@@ -18,7 +18,6 @@",
        *[" 17", " 18", " 19", "-20", " 21", " 22", " 23"],
    ]
    assert count(unified(old, new)) == (2, 3)


@pytest.mark.parametrize(
    ("old", "new", "lines"),
    [
        (b"", b"", []),
        (b"", b"a\n", ["@@ -0,0 +1,1 @@", "+a"]),
        (b"a\n", b"", ["@@ -1,1 +0,0 @@", "-a"]),
        (b"a", b"a\n", ["@@ -1,1 +1,1 @@", "-a", "\\ No newline at end of file", "+a"]),
        (b"a\rb\x0bc\n", b"a\rb\x0bd\n", ["@@ -1,1 +1,1 @@", "-a\rb\x0bc", "+a\rb\x0bd"]),
        (b"\xff\n", b"\xfe\n", ["@@ -1,1 +1,1 @@", "-\udcff", "+\udcfe"]),
    ],
)
def test_first_and_last_lines_are_in_hunks(old: bytes, new: bytes, lines: list[str]) -> None:
    assert shown(old, new) == lines


def test_a_diff_of_random_texts_leads_from_one_to_the_other() -> None:
    for seed in range(500):
        chance = random.Random(seed)
        old, new = (
            "\n".join(chance.choice("abc") for _ in range(chance.randint(0, 40))).encode()
            + chance.choice([b"", b"\n"])
            for _ in range(2)
        )
        assert patched(old, unified(old, new)) == new, seed


@pytest.mark.parametrize("words", ["01", "0123456789"])
def test_a_diff_of_hostile_texts_takes_little_time(words: str) -> None:
    chance = random.Random(0)
    old, new = (
        "".join(f"{chance.choice(words)}\n" for _ in range(20000)).encode() for _ in range(2)
    )
    begin = time.process_time()
    lines = unified(old, new)
    assert time.process_time() - begin < 5
    assert count(lines)[0] > MAX_EDITS


def test_a_text_with_a_nul_near_its_beginning_is_binary() -> None:
    assert is_binary(b"a\0")
    assert not is_binary(b"a" * 9000 + b"\0")
    assert not is_binary("ä".encode("latin-1"))
