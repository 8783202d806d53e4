"""A pseudo-terminal: a test types keys, reads the output, resizes it and closes it.

tests/support/terminal.py (tmux) shows a screen as a person sees it. This one is faster, and can be
closed like a window.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.tester import Tester
from tests.support.waiting import DEADLINE_S, NeverHappened

_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r|\a")


@dataclass(slots=True, kw_only=True)
class PtyScreen:
    master: int
    process: subprocess.Popen[bytes]
    output: str = ""
    _seen: int = field(default=0)

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def shows(self, text: str) -> None:
        """Waits until the text comes after everything that was waited for earlier."""
        end = time.monotonic() + DEADLINE_S
        while (at := self.output.find(text, self._seen)) < 0:
            if not self.read(end - time.monotonic()):
                raise NeverHappened(f"the terminal never showed {text!r}:\n{self.output[-4000:]}")
        self._seen = at + len(text)

    def read(self, timeout_s: float = 0.0) -> bool:
        if not select.select([self.master], [], [], max(0.0, timeout_s))[0]:
            return False
        with contextlib.suppress(OSError):  # every process has closed the terminal
            self.output += _CONTROL.sub("", os.read(self.master, 65536).decode(errors="replace"))
            return True
        return False

    def foreground(self) -> int:
        return os.tcgetpgrp(self.master)

    def resize(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def close(self) -> None:
        if self.master >= 0:
            os.close(self.master)
            self.master = -1


@contextlib.contextmanager
def opened(
    tester: Tester, argv: Sequence[str | Path], *, cwd: Path, env: Mapping[str, str]
) -> Iterator[PtyScreen]:
    """Runs the command as the leader of a session with this terminal. The end of the block closes
    the terminal.
    """
    master, slave = pty.openpty()
    drop = os.getuid() == 0
    process = subprocess.Popen(
        ["setsid", "--ctty", "--wait", *map(str, argv)],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        cwd=cwd,
        env=tester.environment(env),
        user=tester.uid if drop else None,
        group=tester.gid if drop else None,
        extra_groups=[] if drop else None,
    )
    os.close(slave)
    screen = PtyScreen(master=master, process=process)
    screen.resize(100, 30)
    with process:
        try:
            yield screen
        finally:
            screen.close()
            process.wait(timeout=DEADLINE_S)
