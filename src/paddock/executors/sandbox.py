"""Behind the fence: one sandbox for all commands of a session. They share its /tmp, loopback and
processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import fnmatch
import os
import re
import socket
import subprocess
import threading
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace

from paddock.approve import Approver
from paddock.approve.inbox import SocketInbox
from paddock.core import process as core
from paddock.errors import PaddockError
from paddock.executors.denials import Denials
from paddock.executors.exec_server import Attendant, AttendedProcess
from paddock.executors.interface import (
    CommandLine,
    Failure,
    NotStarted,
    Size,
    checked_environment,
    checked_words,
    dialect_of,
    shell_here,
)
from paddock.launch.prepare import Prepared, prepare
from paddock.plan.model import EnvironmentRules, GateMatch, GateRule, Plan
from paddock.policy import Origin, Request
from paddock.policy.model import Access, Action, Tier
from paddock.policy.request import GrantFlag

_MAX_COMPLAINT_BYTES = 64 * 1024  # of what the core said


class SandboxExecutor:
    """``request``: what the command line would ask for. ``approver`` answers what rules ask;
    without one they are denied. ``environ``: the caller's environment, of which commands get what
    the policy lets through.

    ``confines_writes`` is what the core measured when it set the fence up; before that it is False.
    With ``require_enforced = false`` a run can start without a fence.
    """

    name = "sandbox"

    def __init__(
        self,
        request: Request,
        *,
        workspace: str | os.PathLike[str],
        approver: Approver | None = None,
        shell: Sequence[str] | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self._request = request
        self._environ = environ
        self.workspace = os.path.realpath(workspace)
        self._approver = approver
        self._shell = shell_here() if shell is None else tuple(shell)
        self.dialect = dialect_of(self._shell)
        self._attendant: Attendant | None = None
        self._starting = asyncio.Lock()
        self._prepared: Prepared | None = None
        self._said: int | None = None
        self._denials: Denials | None = None
        self._confines = False
        self._warned = False

    @property
    def confines_writes(self) -> bool:
        return self._confines

    async def measure(self) -> None:
        await self._ready()

    async def spawn(
        self,
        command: CommandLine,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bool = False,
        tty: Size | None = None,
    ) -> AttendedProcess:
        words, environment = checked_words(command, self._shell), checked_environment(env)
        attendant = await self._ready()
        assert self._prepared is not None
        _refuse_denied(environment, self._prepared.plan.environment)
        where = None if cwd is None else os.path.join(self.workspace, cwd)
        return await attendant.spawn(words, environment, cwd=where, stdin=stdin, tty=tty)

    async def open(self, path: str, *, read: bool) -> int:
        """A descriptor of what a path without links leads to inside at this moment. OSError:
        commands can not open it. NotStarted: there is no sandbox to ask.
        """
        return await (await self._ready()).open(path, read=read)

    async def prepared(self) -> Prepared:
        """Policy, host and plan of this sandbox: what the errors are about that it can raise."""
        if self._prepared is None:
            self._prepared = await asyncio.to_thread(self._prepare)
        return self._prepared

    async def dispose(self) -> tuple[str, ...]:
        async with self._starting:
            attendant, self._attendant = self._attendant, None
            ended = attendant is None or await attendant.close()
            if self._said is not None:
                os.close(self._said)
                self._said = None
        return () if ended or attendant is None else (f"paddock-core {attendant.pid} does not end",)

    def said(self) -> str:
        """What the core said so far: its warnings, and a line for each thing that was refused."""
        if self._said is None:
            return ""
        size = os.fstat(self._said).st_size
        return os.pread(
            self._said, _MAX_COMPLAINT_BYTES, max(size - _MAX_COMPLAINT_BYTES, 0)
        ).decode(errors="replace")

    async def _ready(self) -> Attendant:
        attendant, denials = await self._started()
        confines = await denials.confines_writes()
        if confines is None:
            return attendant  # it has ended, and says why to the command
        if self._confines and not confines:
            # The core was started again, and a command may have been allowed because of what the
            # first one held.
            raise NotStarted(
                "the sandbox now enforces less than before",
                failure=Failure.UNAVAILABLE,
                hint="start a new session",
            )
        if not confines and not self._warned:
            self._warned = True
            warnings.warn(
                "commands of this session can write outside their workspace: the sandbox is "
                "incomplete on this machine",
                RuntimeWarning,
                stacklevel=2,
            )
        self._confines = confines
        return attendant

    async def _started(self) -> tuple[Attendant, Denials]:
        async with self._starting:
            if self._attendant is None or not self._attendant.alive:
                try:
                    prepared = await self.prepared()
                except NotStarted:
                    raise
                except PaddockError as error:
                    raise NotStarted(
                        error.message, failure=Failure.UNAVAILABLE, hint=error.hint
                    ) from error
                if self._said is None:
                    self._said = os.memfd_create("paddock-said", os.MFD_CLOEXEC)
                self._denials = denials = Denials(expected=_tells(prepared.plan))
                self._attendant = Attendant(
                    lambda line: self._start(prepared, line, denials.theirs),
                    self.said,
                    own_terminals=prepared.plan.tier is Tier.FULL,
                    denials=denials,
                )
            assert self._denials is not None
            return self._attendant, self._denials

    def _prepare(self) -> Prepared:
        if not os.path.isdir(self.workspace):
            raise NotStarted(f"{self.workspace} is not a directory", failure=Failure.NO_DIRECTORY)
        grant = GrantFlag(
            access=Access.EXEC,
            pattern=core.program(),
            flag="what starts its commands",
            implied=True,
        )
        request = replace(
            self._request, grants=(*self._request.grants, grant), command=self._shell[0]
        )
        prepared = prepare(request, replace(Origin.of_process(), cwd=self.workspace), to_run=True)
        return replace(prepared, plan=_with_attendant(prepared.plan))

    def _start(
        self, prepared: Prepared, line: socket.socket, holder: socket.socket
    ) -> subprocess.Popen[bytes]:
        assert self._said is not None
        with contextlib.ExitStack() as theirs:
            theirs.enter_context(holder)
            companion = None
            if self._approver is not None:
                ours, companion = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                theirs.enter_context(companion)
                threading.Thread(target=_answer, args=(self._approver, ours), daemon=True).start()
            return core.start_beside(
                prepared.plan,
                [core.program(), "attend"],
                cwd=self.workspace,
                stdin=line.fileno(),
                stderr=self._said,
                companion=None if companion is None else companion.fileno(),
                holder=holder.fileno(),
                environ=self._environ,
            )


def _tells(plan: Plan) -> bool:
    return plan.gate is not None or plan.network is not None or plan.observe


def _answer(approver: Approver, line: socket.socket) -> None:
    with line:
        approver.serve(SocketInbox(line))


def _with_attendant(plan: Plan) -> Plan:
    """Where programs need a rule, the one that starts them needs one as well."""
    if plan.gate is None:
        return plan
    exactly = f"^{re.escape(core.program())} attend$"
    rule = GateRule(
        id="paddock-attend",
        action=Action.ALLOW,
        reason=None,
        source="paddock",
        match=(
            GateMatch(key="exe", not_=False, values=(os.path.realpath(core.program()),)),
            GateMatch(key="argv_regex", not_=False, values=(exactly,)),
        ),
    )
    return replace(plan, gate=replace(plan.gate, rules=(rule, *plan.gate.rules)))


def _refuse_denied(environment: Mapping[str, str], rules: EnvironmentRules | None) -> None:
    """What the policy keeps out stays out, whoever brings it."""
    for name in environment if rules else ():
        assert rules is not None
        if name not in rules.keep and any(
            fnmatch.fnmatchcase(name, pattern) for pattern in rules.deny
        ):
            raise NotStarted(
                f"the policy denies the environment variable {name}", failure=Failure.DENIED
            )
