"""A person at the terminal answers.

The command has the terminal, and reads from it. For as long as a question is on the screen its
foreground is our own process group, so that what is typed comes to us; whoever of the command reads
meanwhile is stopped (SIGTTIN), and continued when the terminal goes back. An answer is a line, not
a key: a person who is typing something else when the question comes must not answer it by accident.
What lets something through is a whole word: a process that has left the session is not kept from
reading, and could make an ``o`` of a ``no`` by taking a letter.

Settings decide what becomes of what is typed, and a background process that ignores SIGTTOU may set
them. So the core lets none of the command's change a terminal while a question is open
(``core/src/approve/open_questions.rs``), and what was read counts only if the terminal is, before
and after, as we set it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import struct
import termios
import time
from collections.abc import Iterator
from dataclasses import dataclass

from paddock.approve.inbox import Inbox
from paddock.approve.model import Asked, Verdict
from paddock.approve.question_text import (
    ANSWER_LINES,
    EXPLAINED,
    MAX_COLUMNS,
    MIN_COLUMNS,
    Coloured,
    Screen,
    changed,
    framed,
    shown,
)
from paddock.approve.remember_answer import approval_for, keep, written
from paddock.errors import PaddockError
from paddock.policy import Origin
from paddock.policy.trust.approved import place

BY = "terminal"
TTY = "/dev/tty"
SETTLE_S = 1.0  # a person who was about to answer another question has to see that it is gone
BACKGROUND_S = 0.5  # nothing tells when a job comes to the foreground
SIZE_S = 0.2  # how often the size of a window is read that is too small
INTERRUPT = b"\x03"

_CHOICES = {
    "once": Verdict.ONCE,
    "yes": Verdict.ONCE,
    "session": Verdict.SESSION,
    "n": Verdict.DENY,
    "no": Verdict.DENY,
    "d": Verdict.DENY,
    "deny": Verdict.DENY,
    "": Verdict.DENY,
}
_ASKED = "once, session, always or deny? (type the whole word; Enter: deny) "
_LARGER = "make the window larger to see the question (Enter: deny) "
_CONFIRM = "write this rule? yes, Enter: no "


class _NotOurs(Exception):  # noqa: N818 (nothing went wrong)
    """The terminal went to somebody else. The question stays."""


class _Withdrawn(Exception):  # noqa: N818
    pass


class _Resized(Exception):  # noqa: N818
    """The window is larger than it was."""


class _Disturbed(Exception):  # noqa: N818
    """Somebody set the terminal otherwise: what was read may not be what was typed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terminal:
    """``core``: the process whose questions these are. Only from its own people the terminal is
    taken.
    """

    origin: Origin
    core: int

    def serve(self, inbox: Inbox) -> None:
        # Neither reading nor taking the terminal may stop us, and no key may end us while we have
        # it.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTIN, signal.SIGTTOU, signal.SIGTSTP})
        for key in (signal.SIGINT, signal.SIGQUIT):
            signal.signal(key, signal.SIG_IGN)
        fd = os.open(TTY, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
        told = False
        while not inbox.closed:
            inbox.wait(timeout_s=BACKGROUND_S if told else None)
            inbox.read()
            if not inbox.open():
                told = False
            elif self._may_take(fd):
                told = False
                termios.tcflow(fd, termios.TCOON)  # or the question would not come to the screen
                last = None
                with contextlib.suppress(_NotOurs), _taken(fd, self.core):
                    last = self._ask_all(fd, inbox)
                if last:
                    inbox.answer(*last, BY)
            elif not told:
                told = True
                Screen(fd).write(
                    "\npaddock: a question waits for your answer; type `fg` to bring the job to "
                    "the foreground\n"
                )

    def _may_take(self, fd: int) -> bool:
        """A shell whose background job asks keeps its terminal: it would take the loss for the end
        of its input.
        """
        holder = os.tcgetpgrp(fd)
        if holder == _group(self.core):
            return True
        # Every member: a command can join the group of the shell.
        members = [pid for pid, group in _processes() if group == holder]
        return bool(members) and all(_descends(pid, self.core) for pid in members)

    def _ask_all(self, fd: int, inbox: Inbox) -> tuple[Asked, Verdict] | None:
        """Returns the last answer. It is for when the terminal is back: until then the core knows
        that we have it, and takes no stop for the person's.
        """
        screen = Screen(fd)
        screen.ring()
        exchanged = False
        while questions := inbox.open():
            question, more = questions[0], len(questions) - 1
            try:
                with screen.page():
                    if exchanged:
                        _let_see(screen, inbox, question)
                    verdict = self._asked(fd, screen, inbox, question, more)
            except _Withdrawn:
                exchanged = True
                continue
            exchanged = False
            if inbox.open() == [question]:
                return question, verdict
            inbox.answer(question, verdict, BY)
        return None

    def _asked(self, fd: int, screen: Screen, inbox: Inbox, question: Asked, more: int) -> Verdict:
        _set(
            fd
        )  # also for what is written: a program in raw mode leaves lines that do not begin at the left
        fits = self._show(screen, question, more)
        while True:
            try:
                line = self._line(
                    fd, screen, inbox, question, _ASKED if fits else _LARGER, awaits_size=not fits
                )
            except _Disturbed:
                screen.write("another program changed the terminal; the question again:\n")
                continue
            except _Resized:
                fits = self._show(screen, question, more)
                continue
            if line is None or _CHOICES.get(line) is Verdict.DENY:
                return Verdict.DENY
            if not fits:  # nothing is allowed that was not on the screen
                continue
            if line in _CHOICES:
                return _CHOICES[line]
            if line == "always":
                if self._kept(fd, screen, inbox, question):
                    return Verdict.SESSION
            elif line in ("w", "whole"):
                self._show_all(screen, question, more)
            elif line in ("e", "explain", "?"):
                screen.write(EXPLAINED)

    def _show(self, screen: Screen, question: Asked, more: int) -> bool:
        """Whether it has room: then it is on the screen, from its first line to the answer."""
        columns, rows = screen.size
        columns = min(columns, MAX_COLUMNS)
        if columns >= MIN_COLUMNS:
            text = shown(question, more, columns=columns, rows=rows)
            diff = changed(question, columns=columns, rows=rows)
            if text.count("\n") + len(diff) + ANSWER_LINES <= rows:
                self._write(screen, text, diff)
                return True
        screen.write(
            "paddock: a question waits for your answer. This window is too small to show it "
            f"({screen.size.columns}x{rows}).\n"
        )
        return False

    def _show_all(self, screen: Screen, question: Asked, more: int) -> None:
        columns = min(screen.size.columns, MAX_COLUMNS)
        text = shown(question, more, columns=columns, rows=None)
        self._write(screen, text, changed(question, columns=columns, rows=None))

    def _write(self, screen: Screen, text: str, diff: list[Coloured]) -> None:
        screen.write(text)
        for line in diff:
            screen.write(f"{line.text}\n", colour=line.colour)

    def _kept(self, fd: int, screen: Screen, inbox: Inbox, question: Asked) -> bool:
        try:
            approval = approval_for(question, self.origin)
            rule = framed(written(approval), columns=min(screen.size.columns, MAX_COLUMNS))
            screen.write(f"to {place(self.origin)}:\n{rule}")
            if self._line(fd, screen, inbox, question, _CONFIRM) != "yes":
                return False
            keep(approval, self.origin)
        except _Disturbed:
            screen.write("another program changed the terminal: no rule was written\n")
            return False
        except PaddockError as error:
            screen.write(f"{error.message}: no rule was written\n")
            return False
        return True

    def _line(
        self,
        fd: int,
        screen: Screen,
        inbox: Inbox,
        question: Asked,
        asked: str,
        *,
        awaits_size: bool = False,
    ) -> str | None:
        """None: Ctrl-C, or Ctrl-D."""
        settings, size = _set(fd), screen.size
        # What was typed before the question was there is no answer to it.
        termios.tcflush(fd, termios.TCIFLUSH)
        screen.write(asked)
        while True:
            ready = inbox.wait(fd, timeout_s=SIZE_S if awaits_size else None)
            inbox.read()
            if inbox.closed or not inbox.is_open(question):
                # Half an answer is not for the command.
                termios.tcflush(fd, termios.TCIFLUSH)
                raise _Withdrawn
            if awaits_size and screen.size != size:
                screen.write("\n")
                raise _Resized
            if not ready:
                continue
            try:
                line = os.read(fd, 4096)
            except OSError:  # not our foreground any more, or no terminal
                raise _NotOurs from None
            if os.tcgetpgrp(fd) != os.getpgrp():
                raise _NotOurs
            if termios.tcgetattr(fd) != settings:
                raise _Disturbed
            screen.typed()
            if INTERRUPT in line or not line.endswith(
                b"\n"
            ):  # Ctrl-D ends a line too, and is no Enter
                return None
            return line.decode(errors="replace").strip().lower()


def _let_see(screen: Screen, inbox: Inbox, question: Asked) -> None:
    """That the question before is gone. What is typed meanwhile is thrown away with all that was
    typed too early.
    """
    screen.write("the program withdrew the last question; this is another question:\n")
    deadline = time.monotonic() + SETTLE_S
    while (left := deadline - time.monotonic()) > 0:
        inbox.wait(timeout_s=left)
        inbox.read()
        if inbox.closed or not inbox.is_open(question):
            raise _Withdrawn


@contextlib.contextmanager
def _taken(fd: int, core: int) -> Iterator[None]:
    """The terminal is ours, and is set as a person expects it; afterwards both are as before."""
    holder, settings = os.tcgetpgrp(fd), termios.tcgetattr(fd)
    os.tcsetpgrp(fd, os.getpgrp())
    try:
        _interrupt_readers(holder, core)
        yield
    finally:
        # Somebody else may have taken it meanwhile; then it is theirs to set.
        with contextlib.suppress(OSError, termios.error):
            if os.tcgetpgrp(fd) == os.getpgrp():
                termios.tcsetattr(fd, termios.TCSADRAIN, settings)
                try:
                    os.tcsetpgrp(fd, holder)
                except OSError:  # that group is gone
                    os.tcsetpgrp(fd, _group(core))
        with contextlib.suppress(OSError):
            os.killpg(holder, signal.SIGCONT)


_Settings = list[int | list[bytes | int]]
_UTF8 = 0o40000  # IUTF8, which Python does not name: one character is erased, not one byte
_LINES = struct.pack("i", 0)  # N_TTY, the discipline of lines
_CHARACTERS = {
    termios.VEOF: b"\x04",
    # Ctrl-C ends a line like Enter, and stands in it: no signal has to be waited for
    termios.VEOL: INTERRUPT,
    termios.VERASE: b"\x7f",
    termios.VKILL: b"\x15",
    termios.VWERASE: b"\x17",
    termios.VREPRINT: b"\x12",
    termios.VLNEXT: b"\x16",
}


def _set(fd: int) -> _Settings:
    """Lines with echo, whatever was set before. What the terminal made of it."""
    iflag, _, cflag, _, ispeed, ospeed, old = termios.tcgetattr(fd)
    characters: list[bytes | int] = [_CHARACTERS.get(index, b"\0") for index in range(len(old))]
    iflag = termios.ICRNL | (iflag & _UTF8)
    cflag = (cflag & ~(termios.CSIZE | termios.PARENB)) | termios.CS8 | termios.CREAD
    lflag = (
        termios.ICANON
        | termios.ECHO
        | termios.ECHOE
        | termios.ECHOK
        | termios.ECHOCTL
        | termios.IEXTEN
    )
    if (
        fcntl.ioctl(fd, termios.TIOCGETD, _LINES) != _LINES
    ):  # asking does not wait for whoever reads, setting does
        fcntl.ioctl(fd, termios.TIOCSETD, _LINES)
    plain: _Settings = [
        iflag,
        termios.OPOST | termios.ONLCR,
        cflag,
        lflag,
        ispeed,
        ospeed,
        characters,
    ]
    termios.tcsetattr(fd, termios.TCSANOW, plain)
    return termios.tcgetattr(fd)


def _interrupt_readers(group: int, core: int) -> None:
    """Whoever waits for input since before is not told by the kernel that the terminal has gone,
    and would get the answer. Those who are stopped for a moment begin to read anew, and stop. Those
    who do not stop for SIGTTIN (a shell at its prompt) would be told of an error, and leave: they
    are stopped for as long as it takes.
    """
    stopped = 1 << (signal.SIGTTIN - 1)
    for pid, its_group in _processes():
        if its_group != group or pid == core or not _descends(pid, core):
            continue
        with contextlib.suppress(OSError, KeyError, ValueError):
            facts = _status(pid)
            if facts["NSpid"].split()[1:][-1:] == ["1"]:
                continue  # the init of a sandbox reads nothing, and its work goes on
            deaf = any(int(facts[key], 16) & stopped for key in ("SigIgn", "SigCgt"))
            os.kill(pid, signal.SIGSTOP if deaf else signal.SIGTTIN)
            if not deaf:
                os.kill(pid, signal.SIGCONT)


def _status(pid: int) -> dict[str, str]:
    with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
        return dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)


def _group(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return 0


def _processes() -> Iterator[tuple[int, int]]:
    """Every process with its group."""
    for name in os.listdir("/proc"):
        if name.isdigit() and (group := _group(int(name))):
            yield int(name), group


def _descends(pid: int, ancestor: int) -> bool:
    while pid > 1 and pid != ancestor:
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                pid = int(file.read().rpartition(b")")[2].split()[1])
        except (OSError, IndexError):
            return False
    return pid == ancestor
