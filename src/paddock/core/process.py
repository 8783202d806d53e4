"""The line between the two languages: where the native program is, and the ways to start it.

A plan crosses in a sealed memfd, so that what was compiled is what the core reads. Python never
forks: it spawns the core to ask a question or to run a command beside it, or becomes the core to
run a command.
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
    """A plan, by what this package needs of it: the directory it was made in, and its bytes."""

    @property
    def cwd(self) -> str: ...

    def canonical(self) -> bytes: ...


@cache
def program() -> str:
    """The installed core: beside the scripts of the environment this package was installed into."""
    if not sys.platform.startswith("linux"):  # core/bin/unsupported.rs says the same
        raise HostError(
            f"{sys.platform} is not supported: the sandbox needs Landlock and seccomp, which only "
            "Linux has",
            hint="run paddock in a virtual machine or container with Linux 6.12 or newer on "
            "x86_64 or aarch64",
        )
    places = [sysconfig.get_path("scripts"), os.path.dirname(sys.executable)]
    # Installed for one user: found from where this package lies, not from what the caller's
    # environment says.
    site = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    user = {"userbase": os.path.dirname(os.path.dirname(os.path.dirname(site)))}
    if sysconfig.get_path("purelib", "posix_user", user) == site:
        places.append(sysconfig.get_path("scripts", "posix_user", user))
    looked_at = [os.path.join(place, NAME) for place in dict.fromkeys(places)]
    for path in looked_at:
        if os.access(path, os.X_OK):
            return path
    raise CoreError(
        f"the native program {NAME} is not installed; Paddock looked at {', '.join(looked_at)}",
        hint="reinstall paddock",
    )


def ask(
    command: str,
    *arguments: str,
    plan: CanonicalPlan | None = None,
    question: str | bytes | None = None,
) -> Any:
    """Run a command of the core that prints JSON; its refusal becomes a CoreError with the core's
    own words.

    ``question``: for its stdin; text is ASCII.
    """
    argv = [program(), command]
    actions: list[tuple[int, int] | tuple[int, int, int]] = []
    # Answers go to memfds: no pipe to drain, whatever their size.
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
        if plan_fd is not None:  # last: descriptor 3 may be one of the other two
            argv += ["--plan-fd", "3"]
            actions.append((os.POSIX_SPAWN_DUP2, plan_fd, 3))
        # The questions do not depend on the environment; the caller's may hold what no process can
        # be started with.
        pid = os.posix_spawn(argv[0], [*argv, *arguments], {}, file_actions=actions)
        return _answered(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), answer, complaint)


def _run_in(cwd: str, argv: list[str], stdin: int, stdout: int, stderr: int, passed: int) -> int:
    """Where a plan was compiled for another directory than ours: the core has to stand there."""
    import subprocess  # not on the way of `paddock run`

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
    """Replace this process by the core, which runs ``command`` behind the fence."""
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
            # E2BIG: the arguments of the command plus ours exceed the kernel's limit.
            raise CoreError(f"cannot start {path}: {error.strerror}") from error


def attend(stdin: int, environment: Mapping[str, str], *, grace_s: int) -> subprocess.Popen[bytes]:
    """A program that starts commands for whoever holds the other end of its stdin, behind no fence.
    What runs when that is closed gets ``grace_s`` to end by itself.
    """
    import subprocess  # not on the way of `paddock run`

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
    companion: int | None,
    holder: int,
    environ: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """The core beside this process, running ``command`` behind the fence, with descriptors and a
    directory of its own. ``companion``: the socket by which it asks. ``holder``: the one by which
    it tells of refusals, and whose end is the end of the run. ``environ``: instead of ours; the
    plan lets some of it through.
    """
    import subprocess

    argv = [NAME, "run", "--plan-fd"]
    with _sealed(plan) as plan_fd:
        argv.append(str(plan_fd))
        passed = [plan_fd]
        if companion is not None:
            argv += ["--companion", str(companion)]
            passed.append(companion)
        argv += ["--holder", str(holder)]
        passed.append(holder)
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
    """The core beside this process, writing events that come by ``line`` to the journal of a plan
    until that is closed. ``on_stderr``: the journal is shown there, and so are its complaints.
    """

    def __init__(self, plan: CanonicalPlan, line: int, *, on_stderr: bool) -> None:
        self._complaint = os.memfd_create("paddock-complaint", os.MFD_CLOEXEC)
        plan_at, line_at = 3, 4
        first = [] if on_stderr else [(os.POSIX_SPAWN_DUP2, self._complaint, 2)]
        actions: list[tuple[int, int, int]] = []
        try:
            with _sealed(plan) as plan_fd:
                actions.append((os.POSIX_SPAWN_DUP2, _out_of_the_way(plan_fd), plan_at))
                actions.append((os.POSIX_SPAWN_DUP2, _out_of_the_way(line), line_at))
                argv = [NAME, "record", "--plan-fd", str(plan_at), "--line", str(line_at)]
                # In a group of its own: what a terminal sends to ours is not for it.
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
        """Why it ended: call it when the line is at its end."""
        status = self._wait()
        return refusal(_content(self._complaint), status)

    def end(self) -> None:
        """Call it when the line is closed."""
        if self._complaint >= 0:
            self._wait()
            os.close(self._complaint)
            self._complaint = -1

    def _wait(self) -> int:
        if self._pid is not None:
            self._status = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
            self._pid = None
        return self._status


def _out_of_the_way(fd: int) -> int:
    """A copy above the numbers that a new process gets: what is put there first must not be what is
    put there next.
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
    """The core says ``paddock: what`` and ``hint: what to do``; keep both apart."""
    lines = complaint.decode(errors="backslashreplace").splitlines()
    said = [line.removeprefix("paddock: ") for line in lines if line.startswith("paddock: ")]
    hints = [line.removeprefix("hint: ") for line in lines if line.startswith("hint: ")]
    return CoreError(
        said[-1] if said else f"{NAME} ended with status {status}",
        hint=hints[-1] if hints else None,
    )
