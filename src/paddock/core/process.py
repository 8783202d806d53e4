"""Finds the native program and starts it.

A plan is passed in a sealed memfd, so the core reads exactly the compiled bytes. Python never
forks. It spawns the core to ask a question or to run a command as a child, or it replaces itself by
the core to run a command.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from paddock.errors import CoreError, HostError

if TYPE_CHECKING:
    import subprocess

NAME = "paddock-core"


class CanonicalPlan(Protocol):
    """The parts of a plan that this package needs: the directory it was compiled for, and its
    bytes.
    """

    @property
    def cwd(self) -> str: ...

    def canonical(self) -> bytes: ...


@cache
def program() -> str:
    """The installed core, in the directory of the scripts of this package's environment."""
    if not sys.platform.startswith("linux"):  # core/bin/unsupported_system.rs prints the same
        raise HostError(
            f"{sys.platform} is not supported: the sandbox needs Landlock and seccomp, which only "
            "Linux has",
            hint="run paddock in a virtual machine or container with Linux 6.12 or newer on "
            "x86_64 or aarch64",
        )
    directories = [sysconfig.get_path("scripts"), os.path.dirname(sys.executable)]
    # Installed for one user: searched from the location of this package, not from the caller's
    # environment.
    site = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    user = {"userbase": os.path.dirname(os.path.dirname(os.path.dirname(site)))}
    if sysconfig.get_path("purelib", "posix_user", user) == site:
        directories.append(sysconfig.get_path("scripts", "posix_user", user))
    read_answer = [os.path.join(directory, NAME) for directory in dict.fromkeys(directories)]
    for path in read_answer:
        if os.access(path, os.X_OK):
            return path
    raise CoreError(
        f"the native program {NAME} is not installed; Paddock looked at {', '.join(read_answer)}",
        hint="reinstall paddock",
    )


def ask(
    command: str,
    *arguments: str,
    plan: CanonicalPlan | None = None,
    question: str | bytes | None = None,
) -> Any:
    """Runs a command of the core that prints JSON. A refusal of the core becomes a CoreError with
    the core's message.

    ``question``: the text for its stdin, in ASCII.
    """
    argv = [program(), command]
    actions: list[tuple[int, int] | tuple[int, int, int]] = []
    # Answers go to memfds, so no pipe has to be drained.
    with (
        _memfd("answer") as answer,
        _memfd("complaint") as complaint,
        _memfd("question") as asked,
        _sealed(plan) as plan_fd,
    ):
        if question is not None:
            os.write(asked, question.encode("ascii") if isinstance(question, str) else question)
            os.lseek(asked, 0, os.SEEK_SET)
            actions.append((os.POSIX_SPAWN_DUP2, asked, 0))
        if plan is not None and plan.cwd != os.getcwd():
            argv += ["--plan-fd", str(plan_fd), *arguments]
            status = _run_in(plan.cwd, argv, asked, answer, complaint, plan_fd)
            return _answered(status, answer, complaint)
        actions += [(os.POSIX_SPAWN_DUP2, answer, 1), (os.POSIX_SPAWN_DUP2, complaint, 2)]
        if plan_fd is not None:  # last, because descriptor 3 may be one of the other two
            argv += ["--plan-fd", "3"]
            actions.append((os.POSIX_SPAWN_DUP2, plan_fd, 3))
        # The questions do not depend on the environment, and the caller's may contain entries that
        # no process can be started with.
        pid = os.posix_spawn(argv[0], [*argv, *arguments], {}, file_actions=actions)
        return _answered(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), answer, complaint)


def _run_in(cwd: str, argv: list[str], stdin: int, stdout: int, stderr: int, passed: int) -> int:
    """For a plan that was compiled for another directory than ours: the core must start in that
    directory.
    """
    import subprocess  # `paddock run` does not need it

    try:
        return subprocess.call(
            argv, cwd=cwd, stdin=stdin, stdout=stdout, stderr=stderr, pass_fds=[passed], env={}
        )
    except OSError as error:
        raise CoreError(f"cannot start paddock-core in {cwd}: {error.strerror}") from error


def _answered(status: int, answer: int, complaint: int) -> Any:
    if status != 0:
        raise refusal(_content(complaint), status)
    return json.loads(_content(answer))


def become(plan: CanonicalPlan, command: Sequence[str], *, quiet: bool) -> NoReturn:
    """Replaces this process by the core, which runs ``command`` in the sandbox."""
    path = program()
    with _sealed(plan) as plan_fd:
        assert plan_fd is not None
        os.set_inheritable(plan_fd, True)
        flags = ["--quiet"] if quiet else []
        sys.stdout.flush()
        sys.stderr.flush()
        try:
            os.execv(path, [NAME, "run", "--plan-fd", str(plan_fd), *flags, "--", *command])
        except OSError as error:
            # E2BIG: the arguments of the command and ours together exceed the limit of the kernel.
            raise CoreError(f"cannot start {path}: {error.strerror}") from error


def start_exec_server(
    stdin: int, environment: Mapping[str, str], *, grace_s: int
) -> subprocess.Popen[bytes]:
    """Starts the exec server outside of any sandbox. It starts commands for the owner of the other
    end of its stdin. When that end is closed, running commands get ``grace_s`` to end by
    themselves.
    """
    import subprocess  # `paddock run` does not need it

    null = subprocess.DEVNULL
    argv = [program(), "attend", "--grace", str(grace_s)]
    return subprocess.Popen(
        argv, stdin=stdin, stdout=null, stderr=null, env=environment, start_new_session=True
    )


def start_beside(
    plan: CanonicalPlan,
    command: Sequence[str],
    *,
    cwd: str,
    stdin: int,
    stderr: int,
    approver_sock: int | None,
    owner_sock: int,
    environ: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """Starts the core as a child that runs ``command`` in the sandbox, with its own descriptors and
    directory. ``approver_sock``: the socket for its questions. ``owner_sock``: the socket on which
    it reports denials; the run ends when this socket is closed. ``environ`` replaces our
    environment; the plan passes a part of it.
    """
    import subprocess

    argv = [NAME, "run", "--plan-fd"]
    with _sealed(plan) as plan_fd:
        argv.append(str(plan_fd))
        passed = [plan_fd]
        if approver_sock is not None:
            argv += ["--companion", str(approver_sock)]
            passed.append(approver_sock)
        argv += ["--holder", str(owner_sock)]
        passed.append(owner_sock)
        return subprocess.Popen(
            [*argv, "--quiet", "--", *command],
            executable=program(),
            cwd=cwd,
            env=environ,
            stdin=stdin,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            pass_fds=passed,
            start_new_session=True,
        )


class Recording:
    """The core as a child that writes the events from ``line`` to the journal of a plan, until
    ``line`` is closed. ``on_stderr``: the journal and its errors are also printed there.
    """

    def __init__(self, plan: CanonicalPlan, line: int, *, on_stderr: bool) -> None:
        self._complaint = os.memfd_create("paddock-complaint", os.MFD_CLOEXEC)
        plan_at, line_at = 3, 4
        first = [] if on_stderr else [(os.POSIX_SPAWN_DUP2, self._complaint, 2)]
        actions: list[tuple[int, int, int]] = []
        try:
            with _sealed(plan) as plan_fd:
                actions.append((os.POSIX_SPAWN_DUP2, _above_passed_numbers(plan_fd), plan_at))
                actions.append((os.POSIX_SPAWN_DUP2, _above_passed_numbers(line), line_at))
                argv = [NAME, "record", "--plan-fd", str(plan_at), "--line", str(line_at)]
                # In its own process group, so that signals from the terminal do not reach it.
                self._pid: int | None = os.posix_spawn(
                    program(), argv, {}, file_actions=[*first, *actions], setpgroup=0
                )
        except BaseException:
            os.close(self._complaint)
            raise
        finally:
            for _, copy, _ in actions:
                os.close(copy)

    def refusal(self) -> CoreError:
        """The reason of its end. Call it after end of file on the socket."""
        status = self._wait()
        return refusal(_content(self._complaint), status)

    def end(self) -> None:
        """Call it after the socket was closed."""
        if self._complaint >= 0:
            self._wait()
            os.close(self._complaint)
            self._complaint = -1

    def _wait(self) -> int:
        if self._pid is not None:
            self._status = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
            self._pid = None
        return self._status


def _above_passed_numbers(fd: int) -> int:
    """Duplicates a descriptor above the numbers that the new process uses, so that no dup2
    overwrites a descriptor that is still needed.
    """
    import fcntl

    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10)


@contextlib.contextmanager
def _sealed(plan: CanonicalPlan | None) -> Any:
    if plan is None:
        yield None
        return
    fd = os.memfd_create("paddock-plan", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        with open(fd, "wb", closefd=False) as file:
            file.write(plan.canonical())
        import fcntl

        seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
        yield fd
    finally:
        os.close(fd)


@contextlib.contextmanager
def _memfd(name: str) -> Any:
    fd = os.memfd_create(f"paddock-{name}", os.MFD_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def _content(fd: int) -> bytes:
    size = os.fstat(fd).st_size
    return os.pread(fd, size, 0)


def refusal(complaint: bytes, status: int) -> CoreError:
    """Splits the core's output: ``paddock: what`` and ``hint: what to do``."""
    lines = complaint.decode(errors="backslashreplace").splitlines()
    messages = [line.removeprefix("paddock: ") for line in lines if line.startswith("paddock: ")]
    hints = [line.removeprefix("hint: ") for line in lines if line.startswith("hint: ")]
    return CoreError(
        messages[-1] if messages else f"{NAME} ended with status {status}",
        hint=hints[-1] if hints else None,
    )
