"""The unprivileged user that tests the sandbox.

Continuous integration runs as root, and root passes checks that an ordinary user does not pass. So
tests that root starts make a system user (``paddock-tester``, with a home and without groups) and
run everything as that user. Tests that another user starts run as that user and keep the user's
files (``Tester.disposable`` is false; see saved_state.py). Two checkouts that are tested at the
same time need two users: ``PADDOCK_TESTER`` names another one. Each worker of a test run has its
own.
"""

from __future__ import annotations

import fcntl
import os
import pwd
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

NAME = "paddock-tester"
SEARCH_PATH = "/usr/local/bin:/usr/bin:/bin"
TIMEOUT_S = 120.0  # a command that takes longer hangs, also on a busy machine
# enough for the end of a run on a busy machine
GRACE_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Output and status of a command. ``exit_code`` is negative for a signal, as in
    ``subprocess``.
    """

    argv: tuple[str, ...]
    exit_code: int
    stdout: str
    stderr: str

    @property
    def started(self) -> bool:
        """Whether the probe printed its first line, so that a denial is not a probe that never
        ran.
        """
        return self.stdout.startswith("started\n")

    @property
    def answer(self) -> str:
        """The probe's last line: ``ok …`` or the name of an errno."""
        assert self.started, f"the probe never ran: {self}"
        lines = self.stdout.splitlines()
        return lines[-1] if len(lines) > 1 else ""

    def __str__(self) -> str:
        return (
            f"{' '.join(self.argv)} -> {self.exit_code}\n--- stdout\n{self.stdout}--- stderr\n"
            f"{self.stderr}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Tester:
    __test__: ClassVar[bool] = False  # pytest would collect a class named Test…

    name: str
    uid: int
    gid: int
    home: Path
    disposable: bool  # made for the tests: everything in the home may be written and removed

    def environment(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        return {
            "HOME": str(self.home),
            "USER": self.name,
            "LOGNAME": self.name,
            "SHELL": "/bin/bash",
            "PATH": SEARCH_PATH,
            "LANG": "C.UTF-8",
            "TERM": "dumb",
            **(extra or {}),
        }

    @contextmanager
    def starting(
        self,
        argv: Sequence[str | bytes | Path],
        *,
        cwd: Path | str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: int | None = subprocess.DEVNULL,
        pass_fds: Sequence[int] = (),
        umask: int = 0o022,
        as_root: bool = False,
    ) -> Iterator[subprocess.Popen[str]]:
        """Starts a command. The end of the block kills all processes that are left of its
        session.
        """
        drop = os.getuid() == 0 and not as_root
        process = subprocess.Popen(
            [part if isinstance(part, bytes) else str(part) for part in argv],
            cwd=cwd if cwd is not None else self.home,
            env=self.environment(env),
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            errors="surrogateescape",
            pass_fds=pass_fds,
            umask=umask,
            start_new_session=True,
            user=self.uid if drop else None,
            group=self.gid if drop else None,
            extra_groups=[] if drop else None,
        )
        with process:
            try:
                yield process
            finally:
                # SIGTERM first, so that paddock can clean up
                process.terminate()
                process.send_signal(signal.SIGCONT)  # a test may have stopped it
                try:
                    process.wait(timeout=GRACE_S)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)

    def run(
        self,
        argv: Sequence[str | bytes | Path],
        *,
        cwd: Path | str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: str | int | None = None,
        pass_fds: Sequence[int] = (),
        umask: int = 0o022,
        timeout_s: float = TIMEOUT_S,
        as_root: bool = False,
    ) -> Outcome:
        """``stdin`` is text, a descriptor, or None for /dev/null. ``as_root`` is for tests about
        root.
        """
        source = (
            subprocess.DEVNULL
            if stdin is None
            else subprocess.PIPE
            if isinstance(stdin, str)
            else stdin
        )
        starting = self.starting(
            argv, cwd=cwd, env=env, stdin=source, pass_fds=pass_fds, umask=umask, as_root=as_root
        )
        with starting as process:
            stdout, stderr = process.communicate(
                stdin if isinstance(stdin, str) else None, timeout=timeout_s
            )
        shown = tuple(os.fsdecode(part) for part in argv)
        return Outcome(argv=shown, exit_code=process.returncode, stdout=stdout, stderr=stderr)

    def give(self, path: Path) -> None:
        """Gives ``path`` and everything below it to the tester. A running command may remove files
        meanwhile.
        """
        if os.getuid() != 0:
            return
        os.lchown(path, self.uid, self.gid)
        for parent, directories, files in os.walk(path):
            for name in (*directories, *files):
                with suppress(FileNotFoundError):
                    os.lchown(os.path.join(parent, name), self.uid, self.gid)


def find_or_make(name: str | None = None) -> Tester:
    if os.getuid() != 0:
        entry = pwd.getpwuid(os.getuid())
        return _tester(entry, disposable=False)
    name = name or _own_name(
        os.environ.get("PADDOCK_TESTER", NAME), os.environ.get("PYTEST_XDIST_WORKER", "")
    )
    with accounts():
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            subprocess.run(
                [
                    "useradd",
                    "--system",
                    "--create-home",
                    "--user-group",
                    "--shell",
                    "/bin/bash",
                    name,
                ],
                check=True,
                capture_output=True,
            )
            entry = pwd.getpwnam(name)
    return _tester(entry, disposable=True)


def _own_name(name: str, worker: str) -> str:
    """A home as long as those of the other workers: lines on a screen break at the same column."""
    number = worker.removeprefix("gw")
    return name[: len(name) - len(number)] + number


@contextmanager
def accounts() -> Iterator[None]:
    """A lock around changes of accounts, because useradd does not wait for another one."""
    with open("/run/lock/paddock-tester", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def subordinate_numbers(tester: Tester, first: int) -> Iterator[None]:
    """The tester has 65,536 subordinate users and groups, from ``first`` on.

    The files are edited directly: usermod refuses while the user has a process, and podman leaves
    one.
    """
    line = f"{tester.name}:{first}:65536\n"
    files = (Path("/etc/subuid"), Path("/etc/subgid"))
    with accounts():
        for file in files:
            file.write_text(file.read_text() + line)
    try:
        yield
    finally:
        with accounts():
            for file in files:
                file.write_text(file.read_text().replace(line, ""))


def _tester(entry: pwd.struct_passwd, *, disposable: bool) -> Tester:
    return Tester(
        name=entry.pw_name,
        uid=entry.pw_uid,
        gid=entry.pw_gid,
        home=Path(entry.pw_dir),
        disposable=disposable,
    )
