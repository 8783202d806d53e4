"""A question on the screen. Whatever the command had a hand in is escaped: it must not steer the terminal, add a line,
or look like something else."""

from __future__ import annotations

import contextlib
import os
import shlex
import unicodedata
from collections.abc import Iterator, Sequence

from paddock.approve.model import Question
from paddock.cli.text import printable

FEWEST_LINES = 4  # of the arguments, however small the screen
OTHERS = 12  # lines that are not arguments
MOST_LINES = 3  # of anything else that is long
MARGIN = "  "
LABEL = 9


def quoted(word: str) -> str:
    """As a shell would read it back. What can not be shown is written as in ``$'…'``."""
    if printable(word) == word and "\n" not in word:
        return shlex.quote(word)
    return "$'" + "".join(map(_escaped, word)) + "'"


def _escaped(letter: str) -> str:
    if letter in "\\'":
        return f"\\{letter}"
    if letter == "\n":
        return "\\n"
    shown = printable(letter)
    # A character, where ``\\xNN`` would be a byte.
    return f"\\u{ord(letter):04x}" if 0x80 <= ord(letter) <= 0xFF and shown != letter else shown


def command(argv: Sequence[str]) -> str:
    return " ".join(map(quoted, argv)) or "(no arguments, not even a name)"


def shown(question: Question, more: int, *, columns: int, rows: int | None) -> str:
    """``rows``: what does not fit is counted and left out of the middle. None: everything."""
    room = None if rows is None else max(FEWEST_LINES, rows - OTHERS)
    some = None if rows is None else MOST_LINES
    waiting = f" ({more} more {'waits' if more == 1 else 'wait'})" if more else ""
    lines = [f"paddock: may this run?{waiting}"]
    lines += _folded("", command(question.argv), columns, room)
    for label, text in _facts(question):
        lines += _folded(label, text, columns, some)
    return "".join(f"{line}\n" for line in lines)


def _facts(question: Question) -> Iterator[tuple[str, str]]:
    yield "program", f"{quoted(question.exe)} (process {question.pid})"
    if question.chain[1:]:
        yield "run by", ", ".join(map(quoted, question.chain[1:]))
    yield "in", quoted(question.cwd)
    if question.parent:
        yield "from", f"{command(question.parent.argv)} ({quoted(question.parent.exe)})"
    by = "default_action" if question.rule is None else f"rule {quoted(question.rule)}"
    reason = f": {_line(question.reason)}" if question.reason else ""
    where = f" ({_line(question.source)})" if question.source else ""
    yield "because", f"{by}{where}{reason}"


def _line(text: str) -> str:
    return printable(text).replace("\n", "\\n")


def _folded(label: str, text: str, columns: int, room: int | None) -> list[str]:
    start = MARGIN + (f"{label:{LABEL}} " if label else "")
    pieces = _pieces(text, max(10, columns - len(start) - 1))
    if room is not None and len(pieces) > room:
        head, tail = pieces[: room // 2], pieces[-(room - room // 2 - 1) :]
        hidden = sum(map(len, pieces[len(head) : len(pieces) - len(tail)]))
        pieces = [*head, f"… {hidden} characters are not shown here; w shows the whole …", *tail]
    return [(start if index == 0 else " " * len(start)) + piece for index, piece in enumerate(pieces)]


def _pieces(text: str, width: int) -> list[str]:
    """Cut by what the terminal shows: some characters take two places, some none."""
    pieces, taken = [""], 0
    for letter in text:
        wide = _width(letter)
        if taken + wide > width:
            pieces.append("")
            taken = 0
        pieces[-1] += letter
        taken += wide
    return pieces


def _width(letter: str) -> int:
    if unicodedata.combining(letter):
        return 0
    return 2 if unicodedata.east_asian_width(letter) in "WF" else 1


class Screen:
    """What we wrote on the terminal, so that it can be taken away again."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._lines = 0
        self._erases = os.environ.get("TERM", "dumb") not in ("", "dumb")

    @property
    def size(self) -> os.terminal_size:
        found = os.terminal_size((0, 0))
        with contextlib.suppress(OSError):
            found = os.get_terminal_size(self._fd)
        return found if min(found) > 0 else os.terminal_size((80, 24))

    def write(self, text: str) -> None:
        """Escaped, but for the ends of lines."""
        plain = printable(text)
        columns = self.size.columns
        for line in plain.split("\n")[:-1]:
            self._lines += max(1, -(-sum(map(_width, line)) // columns))
        self._put(plain)

    def typed(self) -> None:
        """The person ended a line, and the terminal showed that."""
        self._lines += 1

    def ring(self) -> None:
        self._put("\a")

    @contextlib.contextmanager
    def page(self) -> Iterator[None]:
        """Everything that is written meanwhile leaves the screen again."""
        self._put("\n")  # the command may have left the cursor anywhere
        self._lines = 0
        try:
            yield
        finally:
            up = f"\x1b[{self._lines}A" if self._lines else ""
            self._put(f"\r{up}\x1b[J" if self._erases else "\n")

    def _put(self, text: str) -> None:
        data = text.encode(errors="backslashreplace")
        with contextlib.suppress(OSError):  # a terminal that is gone has nobody to read it
            while data:
                data = data[os.write(self._fd, data) :]
