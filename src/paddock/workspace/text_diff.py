"""Compares two texts line by line. Pure and bounded, because both texts come from an untrusted
program.

Myers' algorithm (O(ND), "An O(ND) Difference Algorithm and Its Variations", 1986) with a limit on
D: texts that differ in more places are shown as one replaced by the other. Python's difflib takes
minutes for hostile texts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum

from paddock.frozen import dataclass

CONTEXT_LINES = 3
MAX_EDITS = 1000  # about half a second for the worst pair of texts
_SNIFFED_BYTES = 8000  # as many as git checks


class Tag(Enum):
    SAME = " "
    REMOVED = "-"
    ADDED = "+"
    HUNK = "@"
    NOTE = "\\"


@dataclass(frozen=True, slots=True)
class DiffLine:
    tag: Tag
    text: str


def is_binary(content: bytes) -> bool:
    return b"\0" in content[:_SNIFFED_BYTES]


def unified(old: bytes, new: bytes) -> list[DiffLine]:
    """Hunks with their context. Bytes that are not UTF-8 are surrogates."""
    before, after = _lines(old), _lines(new)
    return list(_hunks(list(_edits(before, after))))


def count(lines: Sequence[DiffLine]) -> tuple[int, int]:
    """Returns the numbers of added and removed lines."""
    tags = [line.tag for line in lines]
    return tags.count(Tag.ADDED), tags.count(Tag.REMOVED)


def _lines(content: bytes) -> list[str]:
    """Each with its line end: a last line without one differs from the same line with one."""
    lines = [f"{line}\n" for line in content.decode("utf-8", "surrogateescape").split("\n")]
    last = lines.pop()[:-1]  # only \n ends a line: splitlines knows ten more
    return [*lines, last] if last else lines


def _edits(old: list[str], new: list[str]) -> Iterator[DiffLine]:
    start = 0
    while start < min(len(old), len(new)) and old[start] == new[start]:
        start += 1
    end = 0
    while end < min(len(old), len(new)) - start and old[-1 - end] == new[-1 - end]:
        end += 1
    for text in old[:start]:
        yield DiffLine(Tag.SAME, text)
    yield from _middle(old[start : len(old) - end], new[start : len(new) - end])
    for text in old[len(old) - end :]:
        yield DiffLine(Tag.SAME, text)


def _middle(old: list[str], new: list[str]) -> list[DiffLine]:
    trace = _search(old, new) if old and new else None
    if trace is None:
        return [
            *(DiffLine(Tag.REMOVED, text) for text in old),
            *(DiffLine(Tag.ADDED, text) for text in new),
        ]
    lines: list[DiffLine] = []
    x, y = len(old), len(new)
    for edits in range(len(trace) - 1, -1, -1):
        furthest = trace[edits]
        k = x - y
        down = k == -edits or (k != edits and furthest[k - 1] < furthest[k + 1])
        before_x = furthest[k + 1] if down else furthest[k - 1]
        before_y = before_x - (k + 1 if down else k - 1)
        if not edits:
            before_x = before_y = 0
        while x > before_x and y > before_y:
            x, y = x - 1, y - 1
            lines.append(DiffLine(Tag.SAME, old[x]))
        if edits:
            if down:
                y -= 1
                lines.append(DiffLine(Tag.ADDED, new[y]))
            else:
                x -= 1
                lines.append(DiffLine(Tag.REMOVED, old[x]))
    lines.reverse()
    return lines


def _search(old: list[str], new: list[str]) -> list[dict[int, int]] | None:
    """For each number of edits, the positions of the diagonals before them; None if there are too
    many.
    """
    furthest = {1: 0}
    trace: list[dict[int, int]] = []
    for edits in range(min(len(old) + len(new), MAX_EDITS) + 1):
        trace.append(dict(furthest))
        for k in range(-edits, edits + 1, 2):
            if k == -edits or (k != edits and furthest[k - 1] < furthest[k + 1]):
                x = furthest[k + 1]
            else:
                x = furthest[k - 1] + 1
            y = x - k
            while x < len(old) and y < len(new) and old[x] == new[y]:
                x, y = x + 1, y + 1
            furthest[k] = x
            if x >= len(old) and y >= len(new):
                return trace
    return None


def _hunks(lines: list[DiffLine]) -> Iterator[DiffLine]:
    changed = [at for at, line in enumerate(lines) if line.tag is not Tag.SAME]
    old_at = new_at = 1
    done = 0
    for first, last in _groups(changed):
        start, end = max(first - CONTEXT_LINES, done), min(last + CONTEXT_LINES + 1, len(lines))
        old_at, new_at = (
            old_at + start - done,
            new_at + start - done,
        )  # only unchanged lines between them
        shown = lines[start:end]
        old_count = sum(line.tag is not Tag.ADDED for line in shown)
        new_count = sum(line.tag is not Tag.REMOVED for line in shown)
        yield DiffLine(Tag.HUNK, f"@@ -{_range(old_at, old_count)} +{_range(new_at, new_count)} @@")
        for line in shown:
            yield DiffLine(line.tag, line.text.removesuffix("\n"))
            if not line.text.endswith("\n"):
                yield DiffLine(Tag.NOTE, " No newline at end of file")
        old_at, new_at, done = old_at + old_count, new_at + new_count, end


def _groups(changed: list[int]) -> Iterator[tuple[int, int]]:
    """Changed lines with touching contexts belong together."""
    at = 0
    while at < len(changed):
        first = changed[at]
        while at + 1 < len(changed) and changed[at + 1] - changed[at] <= 2 * CONTEXT_LINES:
            at += 1
        yield first, changed[at]
        at += 1


def _range(start: int, length: int) -> str:
    return f"{start if length else start - 1},{length}"
