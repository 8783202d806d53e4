"""The foreground of a terminal: the process group that may read from it.

The approver takes the foreground from the run while a question is open, and gives it back. Only
processes of the run lose it. A shell outside would take the loss for the end of its input.
"""

from __future__ import annotations

import contextlib
import os
import signal
import termios
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum, auto


class Lost(Exception):  # noqa: N818 (not an error)
    """A process outside of the run has taken the terminal. The question stays open."""


class HungUp(Exception):  # noqa: N818 (not an error)
    """The terminal was closed."""


class Holder(Enum):
    """The process group that has the terminal."""

    RUN = auto()
    OUTSIDE = auto()
    ENDED = auto()
    """It has no process. Its shell takes the terminal at once, if the shell is outside. If it is in
    the run, the core holds that call back as long as a question is open."""


@dataclass(slots=True, kw_only=True)
class Foreground:
    """``core``: the terminal is only taken from its descendants."""

    fd: int
    core: int
    _holders: list[int] = field(default_factory=list)  # the last one gets the terminal back

    def holder(self) -> Holder:
        group = self._current()
        if group == _group(self.core):
            return Holder.RUN
        # Check every member: a command can join the group of the shell.
        members = [pid for pid, its_group in _processes() if its_group == group]
        strangers = [pid for pid in members if not _descends(pid, self.core)]
        if any(_group(pid) == group for pid in strangers):
            return Holder.OUTSIDE
        return Holder.RUN if len(members) > len(strangers) else Holder.ENDED

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Takes the terminal. Restores its holder and its settings afterwards."""
        try:
            settings = termios.tcgetattr(self.fd)
        except termios.error:
            raise HungUp from None
        self._holders = []
        try:
            self._take(self._current())
            yield
        finally:
            self._give_back(settings)

    def keep(self) -> None:
        """Takes the terminal again if another process group of the run has it.

        A call that gives the terminal to a group may be under way when the question opens: a shell
        that starts a job makes such a call. The core can hold back only calls that begin later.
        """
        group = self._current()
        if group == os.getpgrp():
            return
        if self.holder() is not Holder.RUN:
            raise Lost
        self._take(group)

    def _current(self) -> int:
        try:
            return os.tcgetpgrp(self.fd)
        except OSError:
            raise HungUp from None

    def _take(self, holder: int) -> None:
        self._holders.append(holder)
        try:
            os.tcsetpgrp(self.fd, os.getpgrp())
        except OSError:
            raise HungUp from None
        _interrupt_readers(holder, self.core)

    def _give_back(self, settings: list[int | list[bytes | int]]) -> None:
        holders = dict.fromkeys(self._holders)
        try:
            # Another process may have taken the terminal meanwhile; then its settings are left
            # alone.
            if os.tcgetpgrp(self.fd) == os.getpgrp():
                termios.tcsetattr(self.fd, termios.TCSADRAIN, settings)
                try:
                    os.tcsetpgrp(self.fd, self._holders[-1])
                except OSError:  # that group has ended
                    os.tcsetpgrp(self.fd, _group(self.core))
        except (OSError, termios.error):
            # The terminal was closed. The kernel sends SIGHUP to the foreground group, which was
            # ours and not that of the run.
            _signal(holders, signal.SIGHUP)
        _signal(holders, signal.SIGCONT)


def _signal(groups: Iterable[int], number: signal.Signals) -> None:
    for group in groups:
        with contextlib.suppress(OSError):  # that group has ended
            os.killpg(group, number)


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
    """A process that has ended descends from no process."""
    at = pid
    while at > 1 and at != ancestor:
        try:
            with open(f"/proc/{at}/stat", "rb") as file:
                at = int(file.read().rpartition(b")")[2].split()[1])
        except OSError:
            if at == pid:
                return False
            at = pid  # this ancestor has ended, so there is another one
    return at == ancestor
