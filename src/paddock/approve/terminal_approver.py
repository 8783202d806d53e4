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
import select
import signal
import struct
import termios
import time
from dataclasses import dataclass

from paddock.approve.foreground import Foreground, Holder, HungUp, Lost
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
TERMINAL_POLL_S = 0.1  # poll interval: no event reports another window size or foreground job
MAX_DISCARD_S = 5.0  # a person who types for ever must not keep the terminal from the command
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


class _Withdrawn(Exception):  # noqa: N818 (not an error)
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
        # it has the terminal. It passes on the end of the terminal.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTIN, signal.SIGTTOU, signal.SIGTSTP})
        for ignored in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
            signal.signal(ignored, signal.SIG_IGN)
        fd = os.open(TTY, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
        try:
            self._serve(fd, Foreground(fd=fd, core=self.core), inbox)
        except (HungUp, termios.error):  # the terminal is closed: the core denies what is open
            return

    def _serve(self, fd: int, foreground: Foreground, inbox: Inbox) -> None:
        before: Holder | None = None  # the holder that the open questions wait for
        while not inbox.closed:
            inbox.wait(timeout_s=FOREGROUND_POLL_S if before else None)
            inbox.read()
            if not inbox.open():
                before = None
                continue
            holder = foreground.holder()
            if holder is Holder.RUN or holder is before is Holder.ENDED:
                # otherwise the question would not appear on the screen
                termios.tcflow(fd, termios.TCOON)
                last = None
                with contextlib.suppress(Lost), foreground.held():
                    last = self._ask_all(foreground, inbox)
                if last:
                    inbox.answer(*last, BY)
                # If the terminal was lost, the questions wait until it comes back.
                before = Holder.RUN if inbox.open() else None
                continue
            if holder is Holder.OUTSIDE and before is not holder:
                Screen(fd).write(
                    "\npaddock: a question waits for your answer; type `fg` to bring the job to "
                    "the foreground\n"
                )
            before = holder

    def _ask_all(self, foreground: Foreground, inbox: Inbox) -> tuple[AnyQuestion, Verdict] | None:
        """Returns the last answer. It is sent after the terminal was given back. Until then the
        core knows that we have the terminal, and does not treat a stop as a stop by the person.
        """
        screen = Screen(foreground.fd)
        screen.ring()
        exchanged = False
        while questions := inbox.open():
            question, more = questions[0], len(questions) - 1
            with screen.page():
                try:
                    if exchanged:
                        _let_see(screen, inbox, question)
                    verdict = self._ask(foreground, screen, inbox, question, more)
                except _Withdrawn:
                    exchanged = True
                    if not inbox.open():
                        _let_stop_typing(foreground, screen, inbox)
                    continue
            exchanged = False
            if inbox.open() == [question]:
                return question, verdict
            inbox.answer(question, verdict, BY)
        return None

    def _ask(
        self,
        foreground: Foreground,
        screen: Screen,
        inbox: Inbox,
        question: AnyQuestion,
        more: int,
    ) -> Verdict:
        # also for output: a program in raw mode leaves lines that do not start at the left
        _set(foreground.fd)
        fits = self._show(screen, question, more)
        while True:
            try:
                prompt = _PROMPT if fits else _ENLARGE_PROMPT
                line = self._line(foreground, screen, inbox, question, prompt)
                if line is None or _CHOICES.get(line) is Verdict.DENY:
                    return Verdict.DENY
                if not fits:  # a question that was not completely on the screen can not be allowed
                    continue
                if line in _CHOICES:
                    return _CHOICES[line]
                if line == "always":
                    if self._confirm_rule(foreground, screen, inbox, question):
                        return Verdict.SESSION
                elif line in ("w", "whole"):
                    self._show_all(screen, question, more)
                elif line in ("e", "explain", "?"):
                    screen.write(EXPLAINED)
            except _Disturbed:
                screen.write("another program changed the terminal; the question again:\n")
            except _Resized:
                fits = self._show(screen, question, more)

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

    def _confirm_rule(
        self, foreground: Foreground, screen: Screen, inbox: Inbox, question: AnyQuestion
    ) -> bool:
        try:
            approval = approval_for(question, self.origin)
            rule = framed(written(approval), columns=min(screen.size.columns, MAX_COLUMNS))
            screen.write(f"to {approved_path(self.origin)}:\n{rule}")
            if self._line(foreground, screen, inbox, question, _CONFIRM_PROMPT) != "yes":
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
        foreground: Foreground,
        screen: Screen,
        inbox: Inbox,
        question: AnyQuestion,
        asked: str,
    ) -> str | None:
        """None: Ctrl-C or Ctrl-D."""
        fd = foreground.fd
        settings, size = _set(fd), screen.size
        # Text typed before the question appeared does not answer it.
        termios.tcflush(fd, termios.TCIFLUSH)
        screen.write(asked)
        while True:
            ready = inbox.wait(fd, timeout_s=TERMINAL_POLL_S)
            inbox.read()
            foreground.keep()
            if inbox.closed or not inbox.is_open(question):
                raise _Withdrawn
            if screen.size != size:
                screen.write("\n")
                raise _Resized
            if not ready:
                continue
            try:
                line = os.read(fd, 4096)
            except OSError:  # closed, or the terminal was lost just now
                continue
            if termios.tcgetattr(fd) != settings:
                raise _Disturbed
            screen.typed()
            # Ctrl-D also ends a line, and is not Enter.
            if INTERRUPT in line or not line.endswith(b"\n"):
                return None
            return line.decode(errors="replace").strip().lower()


def _let_stop_typing(foreground: Foreground, screen: Screen, inbox: Inbox) -> None:
    """A person may be typing an answer when the question is withdrawn. The command must not read
    the rest of it.
    """
    screen.write("\npaddock: the question is gone: the time is over, or the program has ended\n")
    fd = foreground.fd
    _set(fd, lines=False)
    quiet = time.monotonic() + WITHDRAWN_NOTICE_S
    last = time.monotonic() + MAX_DISCARD_S
    while (left := min(quiet, last) - time.monotonic()) > 0:
        foreground.keep()
        if not inbox.closed:
            ready = inbox.wait(fd, timeout_s=min(left, TERMINAL_POLL_S))
            inbox.read()
            if inbox.closed:  # the core waits a moment for the terminal
                last = min(last, time.monotonic() + WITHDRAWN_NOTICE_S)
        else:
            ready = select.select([fd], [], [], min(left, TERMINAL_POLL_S))[0]
        if not ready:
            continue
        try:
            typed = os.read(fd, 4096)
        except OSError:  # closed, or the terminal was lost just now
            continue
        if b"\n" in typed or INTERRUPT in typed:
            break
        quiet = time.monotonic() + WITHDRAWN_NOTICE_S
    termios.tcflush(fd, termios.TCIFLUSH)


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


def _set(fd: int, *, lines: bool = True) -> _Settings:
    """Sets line mode with echo, or else single keys without echo. Returns the settings that the
    terminal accepted.
    """
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
    if not lines:
        plain[3] = 0
        characters[termios.VMIN] = 1
    termios.tcsetattr(fd, termios.TCSANOW, plain)
    return termios.tcgetattr(fd)
