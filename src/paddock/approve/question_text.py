"""A question as text on the screen. All text that the command influences is escaped, so that it can
not control the terminal, add a line or imitate other text.

Untrusted text stands to the right of a bar on every line, and no line reaches the edge of the
window. So no padding of the text can draw to the left of the bar, where Paddock's own text stands.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from paddock.approve.questions import AnyQuestion, HostQuestion, Question, ToolQuestion
from paddock.text.printable import printable

MIN_ARGUMENT_LINES = 4  # lines of the arguments, on any screen size
MIN_COLUMNS = 40
# The command can set the size of the terminal. If it claims a larger size than the real one, the
# terminal would wrap lines without a bar. So no line is longer than the smallest window in use.
MAX_COLUMNS = 80
ANSWER_LINES = 2  # lines reserved for the answer
MAX_OTHER_LINES = 3  # lines of any other long text
MARGIN = "  "
LABEL_COLUMNS = 9
BAR = "│ "
EXPLAINED = """\
once (or yes)   allow this one; paddock asks again about the next one
session         allow exactly this, in this directory, until the run ends; for a write: this file \
with any content
always          allow this in all runs; paddock shows the rule before it writes it
deny (or no)    deny; paddock also denies if there is no answer in time
w               show the whole text, also parts that look like secrets
"""


_BLANKS = re.compile(r" {3,}")
_MANY_BLANKS = re.compile(r" {16,}")


def quoted(word: str) -> str:
    """Quotes a word as a shell would read it. Unprintable characters are written as in ``$'…'``,
    and so are several blanks in a row.
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
    # This names a character; ``\\xNN`` would name a byte.
    return f"\\u{ord(letter):04x}" if 0x80 <= ord(letter) <= 0xFF and shown != letter else shown


def command(argv: Sequence[str]) -> str:
    return " ".join(map(quoted, argv)) or "(no arguments, not even a name)"


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionText:
    """A question as text. Each string is one line, and none can control the terminal or page that
    shows it.
    """

    title: str
    lines: tuple[str, ...]  # the subject of the question
    facts: tuple[tuple[str, str], ...]  # more facts: label, text
    diff: tuple[str, ...]


def text_of_question(question: AnyQuestion, *, whole: bool = False) -> QuestionText:
    """``whole``: also show arguments that look like secrets. Otherwise they are left out."""
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
    return QuestionText(
        title=title,
        lines=tuple(lines),
        facts=tuple(_facts(question, plain)),
        diff=tuple(_line(line) for line in diff.split("\n")) if diff else (),
    )


def _without_secrets(argv: Sequence[str]) -> Sequence[str]:
    from paddock.core.redact import Redactor

    return tuple(Redactor().all_of(list(argv)))


def shown(question: AnyQuestion, more: int, *, columns: int, rows: int | None) -> str:
    """``rows``: lines that do not fit are left out of the middle and counted. None: show
    everything.
    """
    some = None if rows is None else MAX_OTHER_LINES
    waiting = f" ({more} more {'waits' if more == 1 else 'wait'})" if more else ""
    content = text_of_question(question, whole=rows is None)
    title, facts = f"paddock: {content.title}{waiting}", list(content.facts)
    if (
        isinstance(question, ToolQuestion) and len(title) >= columns
    ):  # the name of the tool is untrusted text
        title, facts = (
            f"paddock: may this be done?{waiting}",
            [("tool", quoted(question.tool)), *facts],
        )
    below = [line for label, text in facts for line in _some(_folded(label, text, columns), some)]
    room = None if rows is None else rows - 1 - len(below) - ANSWER_LINES
    if room is not None:
        room = max(MIN_ARGUMENT_LINES, room // 2 if content.diff else room)
    lines = _some([piece for line in content.lines for piece in _folded("", line, columns)], room)
    return "".join(f"{line}\n" for line in (title, *lines, *below))


def framed(text: str, *, columns: int) -> str:
    """Puts a text of several lines behind the bar."""
    lines = [piece for line in text.splitlines() for piece in _folded("", _line(line), columns)]
    return "".join(f"{line}\n" for line in lines)


@dataclass(frozen=True, slots=True)
class Coloured:
    text: str
    colour: str  # SGR parameters, or empty


def changed(question: AnyQuestion, *, columns: int, rows: int | None) -> list[Coloured]:
    """The diff, cut to the room below the question."""
    room = None
    if rows is not None:
        above = shown(question, 0, columns=columns, rows=rows).count("\n")
        room = max(MIN_ARGUMENT_LINES, rows - above - ANSWER_LINES)
    diff = text_of_question(question).diff
    lines = _some([piece for line in diff for piece in _folded("", line, columns)], room)
    signs = {
        f"{MARGIN}{BAR}{sign}": colour for sign, colour in (("+", "32"), ("-", "31"), ("@", "36"))
    }
    return [Coloured(line, signs.get(line[: len(MARGIN) + len(BAR) + 1], "")) for line in lines]


def _facts(
    question: AnyQuestion, plain: Callable[[Sequence[str]], Sequence[str]]
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
    ]  # no bar: this is Paddock's own text


def _pieces(text: str, width: int) -> list[str]:
    """Cuts a text by the greatest width that a terminal may show."""
    pieces, used = [""], 0
    for letter in text:
        wide = _width(letter)
        if used + wide > width:
            pieces.append("")
            used = 0
        pieces[-1] += letter
        used += wide
    return pieces


def _width(letter: str) -> int:
    """The greatest width of a character. Terminals differ about combining marks and non-ASCII
    letters. If a character were wider than counted, the terminal would wrap the line, and the rest
    would stand without a bar.
    """
    return 1 if letter.isascii() or letter in BAR else 2


class Screen:
    """The text that we wrote on the terminal, so that it can be erased again."""

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
        """Writes text with everything escaped except line ends."""
        plain = printable(text)
        columns = self.size.columns
        for line in plain.split("\n")[:-1]:
            self._lines += max(1, -(-sum(map(_width, line)) // columns))
        self._put(f"\x1b[{colour}m{plain}\x1b[0m" if colour and self._erases else plain)

    def typed(self) -> None:
        """The person ended a line, and the terminal echoed it."""
        self._lines += 1

    def ring(self) -> None:
        self._put("\a")

    @contextlib.contextmanager
    def page(self) -> Iterator[None]:
        """Everything written inside this context is erased at its end."""
        self._put("\n")  # the command may have left the cursor in any column
        self._lines = 0
        try:
            yield
        finally:
            up = f"\x1b[{self._lines}A" if self._lines else ""
            self._put(f"\r{up}\x1b[J" if self._erases else "\n")

    def _put(self, text: str) -> None:
        data = text.encode(errors="backslashreplace")
        with contextlib.suppress(OSError):  # a closed terminal has no reader
            while data:
                data = data[os.write(self._fd, data) :]
