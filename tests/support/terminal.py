"""A real terminal (tmux): tests type keys and read the screen."""

from __future__ import annotations

import os
import secrets
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.support.features import need_program
from tests.support.outside_targets import alive
from tests.support.tester import Tester
from tests.support.waiting import wait_for

COLUMNS, ROWS = 100, 30
# A look at the screen starts a program, which takes longer than the usual time between two looks.
LOOK_S = 0.08


@dataclass(frozen=True, slots=True, kw_only=True)
class Screen:
    tester: Tester
    socket: str

    def tmux(self, *words: str) -> str:
        outcome = self.tester.run(
            ["tmux", "-L", self.socket, "-f", "/dev/null", *words], env={"TERM": "screen"}
        )
        assert outcome.exit_code == 0, str(outcome)
        return outcome.stdout

    def text(self) -> str:
        return self.tmux("capture-pane", "-p", "-t", "0")

    def type(self, text: str) -> None:
        self.tmux("send-keys", "-t", "0", "-l", text)

    def key(self, *names: str) -> None:
        self.tmux("send-keys", "-t", "0", *names)

    def line(self, text: str) -> None:
        enter = ("send-keys", "-t", "0", "Enter")
        self.tmux("send-keys", "-t", "0", "-l", text, ";", *enter)

    def shows(self, text: str) -> str:
        """Waits until a whole line of the screen is the text. A part is not enough, because the
        screen also shows the typed command.
        """
        return self._until(f"the screen shows {text!r}", lambda lines: text in lines)

    def prompts(self, text: str) -> None:
        """Waits for the prompt after a key that ends or stops a job. Keys that are typed earlier
        may be lost with the job.
        """
        self._until(
            f"the screen ends with {text!r}", lambda lines: bool(lines) and lines[-1].endswith(text)
        )

    def continues(self, then: str = ":") -> None:
        """Brings the stopped job of a shell to the foreground. Then waits until the shell has ended
        line editing: a line that is typed earlier has no end for the job.
        """
        self.line(f"echo on-$((1+1)); fg > /dev/null; {then}")
        self.shows("on-2")

    def _until(self, what: str, found: Callable[[list[str]], bool]) -> str:
        last = ""

        def look() -> str | None:
            nonlocal last
            last = self.text()
            lines = [line.strip() for line in last.splitlines()]
            return last if found([line for line in lines if line]) else None

        try:
            return wait_for(look, what, interval_s=LOOK_S)
        except AssertionError as missing:
            raise AssertionError(f"{missing}\n{last}") from None

    def processes(self) -> list[int]:
        """All processes with this controlling terminal."""
        try:
            device = os.stat(
                self.tmux("display-message", "-p", "-t", "0", "#{pane_tty}").strip()
            ).st_rdev
        except FileNotFoundError:  # the last process has ended, and the terminal with it
            return []
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(FileNotFoundError, ProcessLookupError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(fields[4]) == device:
                    found.append(int(entry.name))
        return found

    def resize(self, columns: int, rows: int) -> None:
        self.tmux("resize-window", "-t", "0", "-x", str(columns), "-y", str(rows))


@contextmanager
def opened(tester: Tester, argv: Sequence[str | Path], *, cwd: Path) -> Iterator[Screen]:
    """Runs the command alone in a new terminal. The pane stays when the command ends, so that tests
    can read its last output.
    """
    need_program("tmux")
    screen = Screen(tester=tester, socket=f"paddock-{secrets.token_hex(4)}")
    command = shlex.join(map(str, argv))
    screen.tmux(
        "new-session", "-d", "-x", str(COLUMNS), "-y", str(ROWS), "-c", str(cwd), f"exec {command}",
        ";", "set-option", "-g", "remain-on-exit", "on", ";", "set-option", "-g", "window-size",
        "manual",
    )  # fmt: skip
    try:
        yield screen
    finally:
        left = screen.processes()
        screen.tmux("kill-server")
        wait_for(lambda: not any(map(alive, left)), "everything on the terminal ended with it")
