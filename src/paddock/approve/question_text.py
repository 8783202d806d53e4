"""A question on the screen. Whatever the command had a hand in is escaped: it must not steer the
terminal, add a line, or look like something else.

Foreign text stands to the right of a bar, on every line that shows some, and a line never reaches
the edge of the window. So no text, however it is padded, draws what stands to the left of the bar:
Paddock's own words.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from paddock.approve.model import Asked, HostQuestion, Question, ToolQuestion
from paddock.text.printable import printable

MIN_ARGUMENT_LINES = 4  # of the arguments, however small the screen
MIN_COLUMNS = 40
# The command can set the terminal's size. Where it claims more than there is, the terminal would
# break lines by itself, without a bar: so a line is never longer than the smallest window in use.
MAX_COLUMNS = 80
ANSWER_LINES = 2  # lines for the answer
MAX_OTHER_LINES = 3  # of anything else that is long
MARGIN = "  "
LABEL_COLUMNS = 9
BAR = "│ "
EXPLAINED = """\
once (or yes)   this alone; the same asks again
session         the same until the run ends: exactly this, in this directory; of a write, this file, whatever is written
always          a rule of your own, which is shown before it is written
deny (or no)    it is refused, as it is when nobody answers in time
w               shows the whole, with what looks like a secret
"""


_BLANKS = re.compile(r" {3,}")
_MANY_BLANKS = re.compile(r" {16,}")


def quoted(word: str) -> str:
    """As a shell would read it back. What can not be shown is written as in ``$'…'``, and so are
    blanks in a row.
    """
    if printable(word) == word and "\n" not in word and not _BLANKS.search(word):
        return shlex.quote(word)
    return "$'" + _BLANKS.sub(lambda run: "\\x20" * len(run[0]), "".join(map(_escaped, word))) + "'"


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A question as words: each text is one line, and nothing in it steers what shows it."""

    title: str
    lines: tuple[str, ...]  # what it is about
    facts: tuple[tuple[str, str], ...]  # what else there is to know: label, text
    diff: tuple[str, ...]


def words(question: Asked, *, whole: bool = False) -> Shown:
    """``whole``: with what looks like a secret in a command's arguments, which is left out else."""
    plain = tuple if whole else _without_secrets
    match question:
        case Question():
            title, lines, diff = "may this run?", [command(plain(question.argv))], ""
        case HostQuestion():
            title, lines, diff = (
                "may this be connected to?",
                [_line(f"{question.host}:{question.port}")],
                "",
            )
        case ToolQuestion():
            title, diff = f"may {quoted(question.tool)} do this?", question.diff or ""
            lines = [_line(line) for one in question.lines for line in one.split("\n")]
    return Shown(
        title=title,
        lines=tuple(lines),
        facts=tuple(_facts(question, plain)),
        diff=tuple(_line(line) for line in diff.split("\n")) if diff else (),
    )


def _without_secrets(argv: Sequence[str]) -> Sequence[str]:
    from paddock.text.redact import Redactor

    return tuple(Redactor().all_of(list(argv)))


def shown(question: Asked, more: int, *, columns: int, rows: int | None) -> str:
    """``rows``: what does not fit is counted and left out of the middle. None: everything."""
    some = None if rows is None else MAX_OTHER_LINES
    waiting = f" ({more} more {'waits' if more == 1 else 'wait'})" if more else ""
    said = words(question, whole=rows is None)
    title, facts = f"paddock: {said.title}{waiting}", list(said.facts)
    if (
        isinstance(question, ToolQuestion) and len(title) >= columns
    ):  # the name of the tool is foreign text
        title, facts = (
            f"paddock: may this be done?{waiting}",
            [("tool", quoted(question.tool)), *facts],
        )
    below = [line for label, text in facts for line in _some(_folded(label, text, columns), some)]
    room = None if rows is None else rows - 1 - len(below) - ANSWER_LINES
    if room is not None:
        room = max(MIN_ARGUMENT_LINES, room // 2 if said.diff else room)
    lines = _some([piece for line in said.lines for piece in _folded("", line, columns)], room)
    return "".join(f"{line}\n" for line in (title, *lines, *below))


def framed(text: str, *, columns: int) -> str:
    """A text of several lines, behind the bar."""
    lines = [piece for line in text.splitlines() for piece in _folded("", _line(line), columns)]
    return "".join(f"{line}\n" for line in lines)


@dataclass(frozen=True, slots=True)
class Coloured:
    text: str
    colour: str  # as SGR has it, or nothing


def changed(question: Asked, *, columns: int, rows: int | None) -> list[Coloured]:
    """The diff, as much of it as has room below the question."""
    room = None
    if rows is not None:
        above = shown(question, 0, columns=columns, rows=rows).count("\n")
        room = max(MIN_ARGUMENT_LINES, rows - above - ANSWER_LINES)
    diff = words(question).diff
    lines = _some([piece for line in diff for piece in _folded("", line, columns)], room)
    signs = {
        f"{MARGIN}{BAR}{sign}": colour for sign, colour in (("+", "32"), ("-", "31"), ("@", "36"))
    }
    return [Coloured(line, signs.get(line[: len(MARGIN) + len(BAR) + 1], "")) for line in lines]


def _facts(
    question: Asked, plain: Callable[[Sequence[str]], Sequence[str]]
) -> Iterator[tuple[str, str]]:
    if isinstance(question, HostQuestion):
        if question.process:
            yield "program", f"{quoted(question.process.exe)} (process {question.process.pid})"
        asks = f" ({_line(question.source)})" if question.source else ""
        yield "because", f"network.default{asks}"
        return
    source = ""
    if isinstance(question, Question):
        yield "program", f"{quoted(question.exe)} (process {question.pid})"
        if question.chain[1:]:
            yield "run by", ", ".join(map(quoted, question.chain[1:]))
        source = question.source
    yield "in", quoted(question.cwd)
    if isinstance(question, Question) and question.parent:
        yield "from", f"{command(plain(question.parent.argv))} ({quoted(question.parent.exe)})"
    by = "default_action" if question.rule is None else f"rule {quoted(question.rule)}"
    reason = f": {_line(question.reason)}" if question.reason else ""
    where = f" ({_line(source)})" if source else ""
    yield "because", f"{by}{where}{reason}"
    if isinstance(question, ToolQuestion) and question.diff is not None:
        yield (
            "but",
            f"session and always allow {quoted(question.tool)} to write any text to this file, "
            "not only this text",
        )


def _line(text: str) -> str:
    return _MANY_BLANKS.sub(lambda run: f"␠*{len(run[0])}", printable(text).replace("\n", "\\n"))


def _folded(label: str, text: str, columns: int) -> list[str]:
    start = MARGIN + (f"{label:{LABEL_COLUMNS}} " if label else "")
    pieces = _pieces(text, max(10, columns - len(start) - len(BAR) - 1))
    return [
        (start if index == 0 else " " * len(start)) + BAR + piece
        for index, piece in enumerate(pieces)
    ]


def _some(lines: list[str], room: int | None) -> list[str]:
    if room is None or len(lines) <= room:
        return lines
    head, tail = lines[: room // 2], lines[-(room - room // 2 - 1) :]
    hidden = sum(len(line.partition(BAR)[2]) for line in lines[len(head) : len(lines) - len(tail)])
    return [
        *head,
        f"{MARGIN}… {hidden} characters are not shown; w shows all",
        *tail,
    ]  # no bar: our own words


def _pieces(text: str, width: int) -> list[str]:
    """Cut by what the terminal shows at most."""
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
    """At most. Terminals differ about marks and about letters beyond ASCII: one that is wider than
    we count would end a line by itself, and what follows would stand without a bar.
    """
    return 1 if letter.isascii() or letter in BAR else 2


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

    def write(self, text: str, *, colour: str = "") -> None:
        """Escaped, but for the ends of lines."""
        plain = printable(text)
        columns = self.size.columns
        for line in plain.split("\n")[:-1]:
            self._lines += max(1, -(-sum(map(_width, line)) // columns))
        self._put(f"\x1b[{colour}m{plain}\x1b[0m" if colour and self._erases else plain)

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
