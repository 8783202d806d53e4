"""Shows changes on the terminal. An untrusted program wrote the names and contents. So nothing in
them may control the terminal, and each line of a file begins with the sign of a diff, so that it
can not be taken for a line of Paddock.
"""

from __future__ import annotations

import os
import stat
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from paddock.policy.protected import is_flagged
from paddock.text.printable import printable
from paddock.workspace.change import Change, ChangeKind, Obstacle, TreeEntry, Type
from paddock.workspace.dir_fd_access import opened_file, parent_of
from paddock.workspace.replace_file import Roots
from paddock.workspace.text_diff import DiffLine, Tag, count, is_binary, unified

MAX_FILE_BYTES = 1 << 20  # bytes of one text
MAX_LINE_CHARS = 4096  # characters shown of one line
MAX_DIFF_CHARS = 8 << 20  # characters of one diff
FLAGGED = "executed outside the sandbox"
_RED, _GREEN, _CYAN, _BOLD, _YELLOW = "31", "32", "36", "1", "33"
_COLOURS = {Tag.ADDED: _GREEN, Tag.REMOVED: _RED, Tag.HUNK: _CYAN}


@dataclass(slots=True)
class DiffOutput:
    """The output of a diff: colours on a terminal, and a bound for the text that a hostile file can
    print.
    """

    coloured: bool
    left: int = MAX_DIFF_CHARS

    @classmethod
    def of_stdout(cls) -> DiffOutput:
        plain = "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb"
        return cls(coloured=sys.stdout.isatty() and not plain)

    def write(self, text: str, colour: str | None = None) -> None:
        safe = "\t".join(printable(part).replace("\n", "\\n") for part in text.split("\t"))
        self.left -= len(safe)
        sys.stdout.write(
            f"\033[{colour}m{safe}\033[0m\n" if self.coloured and colour and safe else f"{safe}\n"
        )


def show(change: Change, roots: Roots, output: DiffOutput) -> None:
    output.write(headline(change), _BOLD)
    if change.obstacle:
        output.write(f"  {change.obstacle.value}: {change.reason}", _YELLOW)
    if output.left <= 0:
        return
    lines = _lines(change, roots)
    if isinstance(lines, str):
        output.write(f"  {lines}")
        return
    for line in lines:
        if output.left <= 0:
            output.write("  … the rest is not shown; give the path to see it")
            return
        cut = "…" if len(line.text) > MAX_LINE_CHARS else ""
        sign = "" if line.tag is Tag.HUNK else line.tag.value
        output.write(f"{sign}{line.text[:MAX_LINE_CHARS]}{cut}", _COLOURS.get(line.tag))


def show_stat(changes: Sequence[Change], roots: Roots, output: DiffOutput) -> None:
    for change in changes:
        lines = _lines(change, roots)
        if isinstance(lines, str):
            amount = lines
        else:
            added, removed = count(lines)
            amount = " ".join(
                f"{sign}{number}" for sign, number in (("+", added), ("-", removed)) if number
            )
        obstacle = f"  {change.obstacle.value}: {change.reason}" if change.obstacle else ""
        output.write(f"{headline(change)}{f'  {amount}' if amount else ''}{obstacle}")
    output.write(summary(changes))


def is_flagged_change(change: Change) -> bool:
    """The change adds or changes a file that is executed outside of the sandbox."""
    new = change.new
    return (
        new is not None and new.type is not Type.DIRECTORY and is_flagged(change.path, new.target)
    )


def headline(change: Change) -> str:
    details = ", ".join(_details(change))
    return f"{_word(change):8} {_name(change)}{f'  ({details})' if details else ''}"


def summary(changes: Sequence[Change]) -> str:
    words = Counter(_word(change) for change in changes)
    obstacles = Counter(change.obstacle for change in changes if change.obstacle)
    kinds = ", ".join(f"{number} {word}" for word, number in words.items())
    held = ", ".join(f"{number} {one.value}" for one, number in obstacles.items())
    plural = "" if len(changes) == 1 else "s"
    return (
        f"{len(changes)} change{plural}{f': {kinds}' if kinds else ''}{f'; {held}' if held else ''}"
    )


def merged(changes: Sequence[Change]) -> list[Change]:
    """As a person sees them: a renamed file appears once, with its new name."""
    shown = {change.path for change in changes}
    return [change for change in changes if not (change.renamed_to and change.renamed_to in shown)]


def as_json(change: Change) -> dict[str, Any]:
    return {
        "path": change.path,
        "change": _word(change),
        "from": change.renamed_from,
        "old": _entry(change.old),
        "new": _entry(change.new),
        "obstacle": change.obstacle.value if change.obstacle else None,
        "reason": change.reason or None,
        "flagged": is_flagged_change(change),
    }


def _entry(entry: TreeEntry | None) -> dict[str, Any] | None:
    if entry is None:
        return None
    return {
        "type": entry.type.value,
        "mode": f"{entry.mode:04o}",
        "size": entry.size,
        "target": entry.target,
    }


def _word(change: Change) -> str:
    return "renamed" if change.renamed_from else change.kind.value


def _name(change: Change) -> str:
    directory = any(
        one and one.type is Type.DIRECTORY
        for one in (change.new, change.old if not change.new else None)
    )
    name = f"{change.path}/" if directory else change.path
    return f"{change.renamed_from} → {name}" if change.renamed_from else name


def _details(change: Change) -> Iterator[str]:
    old, new = change.old, change.new
    if old and new and old.type is not new.type:
        yield f"{old.type.value} → {new.type.value}"
    if new and new.type is Type.LINK:
        yield (
            f"symlink {old.target} → {new.target}"
            if old and old.target
            else f"symlink to {new.target}"
        )
    if (
        old
        and new
        and old.type is new.type
        and new.type is not Type.LINK
        and old.permissions != new.permissions
    ):
        yield f"mode {old.permissions:03o} → {new.permissions:03o}"
    elif (
        new
        and new.type is Type.FILE
        and change.kind in (ChangeKind.ADDED, ChangeKind.TYPE)
        and new.mode & 0o111
    ):
        yield f"mode {new.permissions:03o}"
    if new and new.type is Type.FILE and new.mode & (stat.S_ISUID | stat.S_ISGID):
        yield "apply ignores its set-user-id or set-group-id bit"
    if is_flagged_change(change):
        yield FLAGGED


def _lines(change: Change, roots: Roots) -> list[DiffLine] | str:
    """The lines of both versions, or the text that replaces them."""
    if change.kind is ChangeKind.MODE or change.obstacle is Obstacle.MASKED or change.renamed_from:
        return []
    old = _content(roots.lower, change.path, change.old)
    new = _content(roots.upper, change.path, change.new)
    for one in (old, new):
        if isinstance(one, str):
            return one
    assert isinstance(old, bytes)
    assert isinstance(new, bytes)
    if is_binary(old) or is_binary(new):
        return f"binary, {sizes(change)}"
    return unified(old, new)


def _content(root: int, path: str, entry: TreeEntry | None) -> bytes | str:
    if entry is None or entry.type is not Type.FILE:
        return b""
    if entry.size > MAX_FILE_BYTES:
        return f"too large to show, {size_text(entry.size)}"
    try:
        with parent_of(root, path) as (parent, name), opened_file(name, parent) as fd:
            return os.read(fd, MAX_FILE_BYTES)
    except OSError as error:
        return f"cannot be read: {error.strerror}"


def sizes(change: Change) -> str:
    return " → ".join(
        size_text(one.size) for one in (change.old, change.new) if one and one.type is Type.FILE
    )


def size_text(size: int) -> str:
    if size < 1000:
        return f"{size} B"
    value = float(size)
    for unit in ("kB", "MB", "GB", "TB"):
        value /= 1000
        if value < 999.5 or unit == "TB":
            break
    return f"{value:.3g} {unit}"
