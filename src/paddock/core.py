"""The line between the two languages: where the native program is, and the three ways to start it.

A plan crosses in a sealed memfd, so that what was compiled is what the core reads. Python never forks: it
spawns the core to ask a question or to run a command beside it, or becomes the core to run a command.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import sys
import sysconfig
from collections.abc import Sequence
from functools import cache
from typing import Any, NoReturn

from paddock.errors import CoreError, HostError
from paddock.plan.model import Plan

NAME = "paddock-core"


@cache
def program() -> str:
    """The installed core: beside the scripts of the environment this package was installed into."""
    if not sys.platform.startswith("linux"):  # core/src/unsupported.rs says the same
        raise HostError(
            f"{sys.platform} is not supported: the fence is made of Landlock and seccomp, which are Linux's",
            hint="run it in a virtual machine or container with Linux 6.12 or newer on x86_64 or aarch64",
        )
    places = [sysconfig.get_path("scripts"), os.path.dirname(sys.executable)]
    # Installed for one user: found from where this package lies, not from what the caller's environment says.
    site = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    user = {"userbase": os.path.dirname(os.path.dirname(os.path.dirname(site)))}
    if sysconfig.get_path("purelib", "posix_user", user) == site:
        places.append(sysconfig.get_path("scripts", "posix_user", user))
    looked_at = [os.path.join(place, NAME) for place in dict.fromkeys(places)]
    for path in looked_at:
        if os.access(path, os.X_OK):
            return path
    raise CoreError(
        f"the native program {NAME} is not installed; looked at {', '.join(looked_at)}", hint="reinstall paddock"
    )


def ask(command: str, *arguments: str, plan: Plan | None = None, question: str | None = None) -> Any:
    """Run a command of the core that prints JSON; its refusal becomes a CoreError with the core's own words.

    ``question``: ASCII, for its stdin."""
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
            os.pwrite(asked, question.encode("ascii"), 0)
            actions.append((os.POSIX_SPAWN_DUP2, asked, 0))
        actions += [(os.POSIX_SPAWN_DUP2, answer, 1), (os.POSIX_SPAWN_DUP2, complaint, 2)]
        if plan_fd is not None:  # last: descriptor 3 may be one of the other two
            argv += ["--plan-fd", "3"]
            actions.append((os.POSIX_SPAWN_DUP2, plan_fd, 3))
        # The questions do not depend on the environment; the caller's may hold what no process can be started with.
        pid = os.posix_spawn(argv[0], [*argv, *arguments], {}, file_actions=actions)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if status != 0:
            raise _refusal(_content(complaint), status)
        return json.loads(_content(answer))


def become(plan: Plan, command: Sequence[str], *, quiet: bool) -> NoReturn:
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
            raise CoreError(f"can not start {path}: {error.strerror}") from error


def start(plan: Plan, command: Sequence[str], *, quiet: bool, companion: int | None) -> int:
    """The core beside this process, running ``command`` behind the fence: its process id. ``companion``: the socket by
    which it asks."""
    path = program()
    plan_at, companion_at = 3, 4
    with _sealed(plan) as plan_fd:
        actions = [(os.POSIX_SPAWN_DUP2, _out_of_the_way(plan_fd), plan_at)]
        argv = [NAME, "run", "--plan-fd", str(plan_at)]
        try:
            if companion is not None:
                actions.append((os.POSIX_SPAWN_DUP2, _out_of_the_way(companion), companion_at))
                argv += ["--companion", str(companion_at)]
            flags = ["--quiet"] if quiet else []
            return os.posix_spawn(path, [*argv, *flags, "--", *command], os.environ, file_actions=actions)
        except OSError as error:
            raise CoreError(f"can not start {path}: {error.strerror}") from error
        finally:
            for _, copy, _ in actions:
                os.close(copy)


def _out_of_the_way(fd: int) -> int:
    """A copy above the numbers that a new process gets: what is put there first must not be what is put there next."""
    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10)


@contextlib.contextmanager
def _sealed(plan: Plan | None) -> Any:
    if plan is None:
        yield None
        return
    fd = os.memfd_create("paddock-plan", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        with open(fd, "wb", closefd=False) as file:
            file.write(plan.canonical())
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


def _refusal(complaint: bytes, status: int) -> CoreError:
    """The core says ``paddock: what`` and ``hint: what to do``; keep both apart."""
    lines = complaint.decode(errors="backslashreplace").splitlines()
    said = [line.removeprefix("paddock: ") for line in lines if line.startswith("paddock: ")]
    hints = [line.removeprefix("hint: ") for line in lines if line.startswith("hint: ")]
    return CoreError(said[-1] if said else f"{NAME} ended with status {status}", hint=hints[-1] if hints else None)
