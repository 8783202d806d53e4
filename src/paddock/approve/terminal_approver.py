"""Asks a person at the terminal.

The command has the terminal and reads from it. While a question is on the screen, our own process
group is in the foreground, so that we read the typed text. A process of the command that reads
meanwhile is stopped (SIGTTIN) and continues when the terminal is given back. An answer is a line,
not a key: a person who is typing something else must not answer by accident. An allowing answer is
a whole word: a process that has left the session can still read from the terminal, and could turn
``no`` into ``o`` by taking a letter.

Terminal settings change how typed text is read, and a background process that ignores SIGTTOU may
change them. So the core lets no process of the command change a terminal while a question is open
(``core/src/approve/open_questions.rs``). Typed text counts only if the terminal settings before and
after are those that we set.
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
from paddock.approve.questions import AnyQuestion, Verdict
from paddock.approve.remember_answer import approval_for, keep, written
from paddock.errors import PaddockError
from paddock.policy import Origin
from paddock.policy.trust.approved import approved_path

BY = "terminal"
TTY = "/dev/tty"
WITHDRAWN_NOTICE_S = (
    1.0  # time for a person who was answering a withdrawn question to see that it is gone
)
FOREGROUND_POLL_S = 0.5  # poll interval: no event reports that a job comes to the foreground
WINDOW_SIZE_POLL_S = 0.2  # poll interval for the size of a window that is too small
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
_PROMPT = "once, session, always or deny? (type the whole word; Enter: deny) "
_ENLARGE_PROMPT = "make the window larger to see the question (Enter: deny) "
_CONFIRM_PROMPT = "write this rule? yes, Enter: no "


class _NotOurs(Exception):  # noqa: N818 (not an error)
    """Another process group has taken the terminal. The question stays open."""


class _Withdrawn(Exception):  # noqa: N818
    pass


class _Resized(Exception):  # noqa: N818
    """The window has become larger."""


class _Disturbed(Exception):  # noqa: N818
    """Another process changed the terminal settings: the text that was read may not be the text
    that was typed.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Terminal:
    """``core``: the process that asks. The terminal is only taken from its descendants."""

    origin: Origin
    core: int

    def serve(self, inbox: Inbox) -> None:
        # Neither reading nor taking the terminal may stop this process, and no key may end it while
        # it has the terminal.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTIN, signal.SIGTTOU, signal.SIGTSTP})
        for key in (signal.SIGINT, signal.SIGQUIT):
            signal.signal(key, signal.SIG_IGN)
        fd = os.open(TTY, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
        announced = False
        while not inbox.closed:
            inbox.wait(timeout_s=FOREGROUND_POLL_S if announced else None)
            inbox.read()
            if not inbox.open():
                announced = False
            elif self._may_take(fd):
                announced = False
                # otherwise the question would not appear on the screen
                termios.tcflow(fd, termios.TCOON)
                last = None
                with contextlib.suppress(_NotOurs), _holding_terminal(fd, self.core):
                    last = self._ask_all(fd, inbox)
                if last:
                    inbox.answer(*last, BY)
            elif not announced:
                announced = True
                Screen(fd).write(
                    "\npaddock: a question waits for your answer; type `fg` to bring the job to "
                    "the foreground\n"
                )

    def _may_take(self, fd: int) -> bool:
        """If a background job of a shell asks, the shell keeps its terminal. It would take the loss
        for the end of its input.
        """
        holder = os.tcgetpgrp(fd)
        if holder == _group(self.core):
            return True
        # Check every member: a command can join the group of the shell.
        members = [pid for pid, group in _processes() if group == holder]
        return bool(members) and all(_descends(pid, self.core) for pid in members)

    def _ask_all(self, fd: int, inbox: Inbox) -> tuple[AnyQuestion, Verdict] | None:
        """Returns the last answer. It is sent after the terminal was given back. Until then the
        core knows that we have the terminal, and does not treat a stop as a stop by the person.
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
                    verdict = self._ask(fd, screen, inbox, question, more)
            except _Withdrawn:
                exchanged = True
                continue
            exchanged = False
            if inbox.open() == [question]:
                return question, verdict
            inbox.answer(question, verdict, BY)
        return None

    def _ask(
        self, fd: int, screen: Screen, inbox: Inbox, question: AnyQuestion, more: int
    ) -> Verdict:
        _set(
            fd
        )  # also for output: a program in raw mode leaves lines that do not start at the left
        fits = self._show(screen, question, more)
        while True:
            try:
                line = self._line(
                    fd,
                    screen,
                    inbox,
                    question,
                    _PROMPT if fits else _ENLARGE_PROMPT,
                    awaits_size=not fits,
                )
            except _Disturbed:
                screen.write("another program changed the terminal; the question again:\n")
                continue
            except _Resized:
                fits = self._show(screen, question, more)
                continue
            if line is None or _CHOICES.get(line) is Verdict.DENY:
                return Verdict.DENY
            if not fits:  # a question that was not completely on the screen can not be allowed
                continue
            if line in _CHOICES:
                return _CHOICES[line]
            if line == "always":
                if self._confirm_rule(fd, screen, inbox, question):
                    return Verdict.SESSION
            elif line in ("w", "whole"):
                self._show_all(screen, question, more)
            elif line in ("e", "explain", "?"):
                screen.write(EXPLAINED)

    def _show(self, screen: Screen, question: AnyQuestion, more: int) -> bool:
        """Returns whether the whole question fits. Then it is on the screen."""
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

    def _show_all(self, screen: Screen, question: AnyQuestion, more: int) -> None:
        columns = min(screen.size.columns, MAX_COLUMNS)
        text = shown(question, more, columns=columns, rows=None)
        self._write(screen, text, changed(question, columns=columns, rows=None))

    def _write(self, screen: Screen, text: str, diff: list[Coloured]) -> None:
        screen.write(text)
        for line in diff:
            screen.write(f"{line.text}\n", colour=line.colour)

    def _confirm_rule(self, fd: int, screen: Screen, inbox: Inbox, question: AnyQuestion) -> bool:
        try:
            approval = approval_for(question, self.origin)
            rule = framed(written(approval), columns=min(screen.size.columns, MAX_COLUMNS))
            screen.write(f"to {approved_path(self.origin)}:\n{rule}")
            if self._line(fd, screen, inbox, question, _CONFIRM_PROMPT) != "yes":
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
        question: AnyQuestion,
        asked: str,
        *,
        awaits_size: bool = False,
    ) -> str | None:
        """None: Ctrl-C or Ctrl-D."""
        settings, size = _set(fd), screen.size
        # Text typed before the question appeared does not answer it.
        termios.tcflush(fd, termios.TCIFLUSH)
        screen.write(asked)
        while True:
            ready = inbox.wait(fd, timeout_s=WINDOW_SIZE_POLL_S if awaits_size else None)
            inbox.read()
            if inbox.closed or not inbox.is_open(question):
                # The command must not read half an answer.
                termios.tcflush(fd, termios.TCIFLUSH)
                raise _Withdrawn
            if awaits_size and screen.size != size:
                screen.write("\n")
                raise _Resized
            if not ready:
                continue
            try:
                line = os.read(fd, 4096)
            except OSError:  # the terminal is gone, or we are not in the foreground any more
                raise _NotOurs from None
            if os.tcgetpgrp(fd) != os.getpgrp():
                raise _NotOurs
            if termios.tcgetattr(fd) != settings:
                raise _Disturbed
            screen.typed()
            if INTERRUPT in line or not line.endswith(
                b"\n"
            ):  # Ctrl-D also ends a line, and is not Enter
                return None
            return line.decode(errors="replace").strip().lower()


def _let_see(screen: Screen, inbox: Inbox, question: AnyQuestion) -> None:
    """Shows that the previous question is gone. Text typed meanwhile is discarded with everything
    else that was typed too early.
    """
    screen.write("the program withdrew the last question; this is another question:\n")
    deadline = time.monotonic() + WITHDRAWN_NOTICE_S
    while (left := deadline - time.monotonic()) > 0:
        inbox.wait(timeout_s=left)
        inbox.read()
        if inbox.closed or not inbox.is_open(question):
            raise _Withdrawn


@contextlib.contextmanager
def _holding_terminal(fd: int, core: int) -> Iterator[None]:
    """Takes the terminal and sets it for a person who types a line. Restores both afterwards."""
    holder, settings = os.tcgetpgrp(fd), termios.tcgetattr(fd)
    os.tcsetpgrp(fd, os.getpgrp())
    try:
        _interrupt_readers(holder, core)
        yield
    finally:
        # Another process may have taken the terminal meanwhile; then its settings are left alone.
        with contextlib.suppress(OSError, termios.error):
            if os.tcgetpgrp(fd) == os.getpgrp():
                termios.tcsetattr(fd, termios.TCSADRAIN, settings)
                try:
                    os.tcsetpgrp(fd, holder)
                except OSError:  # that group has ended
                    os.tcsetpgrp(fd, _group(core))
        with contextlib.suppress(OSError):
            os.killpg(holder, signal.SIGCONT)


_Settings = list[int | list[bytes | int]]
_UTF8 = 0o40000  # IUTF8, which Python does not name: erase removes one character, not one byte
_LINES = struct.pack("i", 0)  # N_TTY, the standard line discipline
_CHARACTERS = {
    termios.VEOF: b"\x04",
    # Ctrl-C ends a line like Enter and is part of the line, so no signal handling is needed.
    termios.VEOL: INTERRUPT,
    termios.VERASE: b"\x7f",
    termios.VKILL: b"\x15",
    termios.VWERASE: b"\x17",
    termios.VREPRINT: b"\x12",
    termios.VLNEXT: b"\x16",
}


def _set(fd: int) -> _Settings:
    """Sets line mode with echo. Returns the settings that the terminal accepted."""
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
    ):  # reading the settings does not wait for a reader, setting them does
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
    """The kernel does not wake a process that already waits for input when the terminal is taken,
    and that process would read the answer. Processes that are stopped for a moment start to read
    again and get SIGTTIN. Processes that do not stop for SIGTTIN (a shell at its prompt) would get
    an error and exit, so they stay stopped until the question is answered.
    """
    stopped = 1 << (signal.SIGTTIN - 1)
    for pid, its_group in _processes():
        if its_group != group or pid == core or not _descends(pid, core):
            continue
        with contextlib.suppress(OSError, KeyError, ValueError):
            facts = _status(pid)
            if facts["NSpid"].split()[1:][-1:] == ["1"]:
                continue  # the init of a sandbox reads nothing, and its work must continue
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
