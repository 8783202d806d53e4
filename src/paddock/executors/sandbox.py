"""The Paddock sandbox: one for all commands of a session. They share its /tmp, loopback and
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
from paddock.executors.exec_server import ExecServer, ExecServerProcess, FileWrite
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
from paddock.plan.grants import TMP
from paddock.plan.path_containment import with_parents, within
from paddock.plan.plan import EnvironmentRules, GateMatch, GateRule, Plan
from paddock.plan.rights import WRITES
from paddock.plan.widened import widened
from paddock.policy import Origin, Request
from paddock.policy.command_line import GrantFlag
from paddock.policy.model import Access, Action, Tier
from paddock.policy.trust.workspace_path import resolved_workspace

_MAX_COMPLAINT_BYTES = 64 * 1024  # bytes of the core's messages


class SandboxExecutor:
    """``request``: the policy request, as from the command line. ``approver`` answers the questions
    of rules; without one they are denied. ``environ``: the caller's environment; the policy passes
    a part of it to commands.

    ``confines_writes`` is the core's measurement at the start of the sandbox; before that it is
    False. With ``require_enforced = false`` a run can start without a sandbox.
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
        self.workspace = resolved_workspace(workspace, Origin.of_process().writable_history)
        self._approver = approver
        self._shell = shell_here() if shell is None else tuple(shell)
        self.dialect = dialect_of(self._shell)
        self._exec_server: ExecServer | None = None
        self._starting = asyncio.Lock()
        self._prepared: Prepared | None = None
        self._stderr_fd: int | None = None
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
    ) -> ExecServerProcess:
        words, environment = checked_words(command, self._shell), checked_environment(env)
        exec_server = await self._ready()
        assert self._prepared is not None
        _refuse_denied(environment, self._prepared.plan.environment)
        where = None if cwd is None else os.path.join(self.workspace, cwd)
        return await exec_server.spawn(words, environment, cwd=where, stdin=stdin, tty=tty)

    async def open(self, path: str, *, read: bool) -> int:
        """Returns a descriptor of the object at a path without links inside, at this moment.
        OSError: commands can not open it. NotStarted: there is no sandbox.
        """
        return await (await self._ready()).open(path, read=read)

    async def write(self, request: FileWrite) -> None:
        """Writes a file by a process inside, so the sandbox judges its name and its content.
        WriteError: nothing was written. NotStarted: there is no sandbox.
        """
        await (await self._ready()).write(request)

    async def prepared(self) -> Prepared:
        """Policy, host and plan of this sandbox. Raises the errors of preparing it."""
        if self._prepared is None:
            self._prepared = await asyncio.to_thread(self._prepare)
        return self._prepared

    async def can_write(self, path: str) -> bool:
        """Whether a command can change where this path of the host leads."""
        plan = (await self.prepared()).plan
        if plan.files is None:
            return False
        read_only = (*plan.files.unwritable, *plan.files.closed)
        if any(within(os.path.realpath(path), tree) for tree in read_only):
            return False
        trees = [grant.path for grant in plan.files.grants if grant.access in WRITES]
        if plan.tier is Tier.FULL:
            trees = [path for path in trees if path != TMP]  # inside it is another directory
        reached = {os.path.realpath(tree) for tree in trees}
        return any(
            within(os.path.realpath(on), tree)
            for on in with_parents(os.path.abspath(path))
            for tree in reached
        )

    async def dispose(self) -> tuple[str, ...]:
        async with self._starting:
            exec_server, self._exec_server = self._exec_server, None
            ended = exec_server is None or await exec_server.close()
            if self._stderr_fd is not None:
                os.close(self._stderr_fd)
                self._stderr_fd = None
        return (
            ()
            if ended or exec_server is None
            else (f"paddock-core {exec_server.pid} does not end",)
        )

    def core_output(self) -> str:
        """The core's messages so far: warnings, and one line for each denial."""
        if self._stderr_fd is None:
            return ""
        size = os.fstat(self._stderr_fd).st_size
        return os.pread(
            self._stderr_fd, _MAX_COMPLAINT_BYTES, max(size - _MAX_COMPLAINT_BYTES, 0)
        ).decode(errors="replace")

    async def _ready(self) -> ExecServer:
        exec_server, denials = await self._started()
        confines = await denials.confines_writes()
        if confines is None:
            return exec_server  # it has ended, and its next command gets the reason
        if self._confines and not confines:
            # The core was started again. A command may have been allowed because of guarantees of
            # the first core.
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
        return exec_server

    async def _started(self) -> tuple[ExecServer, Denials]:
        async with self._starting:
            if self._exec_server is None or not self._exec_server.alive:
                self._refuse_spent_budget()
                try:
                    prepared = await self._prepared_now()
                except NotStarted:
                    raise
                except PaddockError as error:
                    raise NotStarted(
                        error.message, failure=Failure.UNAVAILABLE, hint=error.hint
                    ) from error
                if self._stderr_fd is None:
                    self._stderr_fd = os.memfd_create("paddock-said", os.MFD_CLOEXEC)
                self._denials = denials = Denials(expected=_reports_denials(prepared.plan))
                self._exec_server = ExecServer(
                    lambda sock: self._start(prepared, sock, denials.supervisor_sock),
                    self.core_output,
                    own_terminals=prepared.plan.tier is Tier.FULL,
                    denials=denials,
                )
            assert self._denials is not None
            return self._exec_server, self._denials

    def _refuse_spent_budget(self) -> None:
        """A new core would begin with a new budget. So a session with one does not get a second
        core, whatever ended the first.
        """
        if self._exec_server is None or self._prepared is None:
            return
        limits = self._prepared.plan.limits
        budgets = {"cpu_s": limits.cpu_s, "wall_s": limits.wall_s}
        named = " and ".join(name for name, budget in budgets.items() if budget is not None)
        if named:
            report = self.core_output().strip()
            raise NotStarted(
                "the sandbox of this session has ended, and another one would renew its limit "
                f"{named}{': ' + report if report else ''}",
                failure=Failure.DENIED,
                hint="start a new session",
            )

    async def _prepared_now(self) -> Prepared:
        """Each start of the core compiles again, because another run may have changed what a path
        leads to.
        """
        now = await asyncio.to_thread(self._prepare)
        before = self._prepared
        opened = None if before is None else widened(before.plan, now.plan, os.path.lexists)
        if opened is not None:
            raise NotStarted(
                "the sandbox is not started again, because it would now open more than at the "
                f"beginning of this session: {opened}",
                failure=Failure.DENIED,
                hint="find out what changed the policy or this path, then start a new session",
            )
        self._prepared = now
        return now

    def _prepare(self) -> Prepared:
        if not os.path.isdir(self.workspace):
            raise NotStarted(f"{self.workspace} is not a directory", failure=Failure.NO_DIRECTORY)
        origin = Origin.of_process()
        if resolved_workspace(self.workspace, origin.writable_history) != self.workspace:
            raise NotStarted(
                f"the workspace {self.workspace} now leads through a symlink",
                failure=Failure.NO_DIRECTORY,
                hint="start a new session in the directory that you want",
            )
        grant = GrantFlag(
            access=Access.READ,
            pattern=core.program(),
            flag="what starts its commands",
        )
        request = replace(
            self._request, grants=(*self._request.grants, grant), command=self._shell[0]
        )
        prepared = prepare(request, replace(origin, cwd=self.workspace), to_run=True)
        return replace(prepared, plan=_with_exec_server(prepared.plan))

    def _start(
        self, prepared: Prepared, sock: socket.socket, owner_sock: socket.socket
    ) -> subprocess.Popen[bytes]:
        assert self._stderr_fd is not None
        with contextlib.ExitStack() as supervisor_sock:
            supervisor_sock.enter_context(owner_sock)
            approver_sock = None
            if self._approver is not None:
                ours, approver_sock = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                supervisor_sock.enter_context(approver_sock)
                threading.Thread(
                    target=_serve_questions, args=(self._approver, ours), daemon=True
                ).start()
            return core.start_beside(
                prepared.plan,
                [core.program(), "attend"],
                cwd=self.workspace,
                stdin=sock.fileno(),
                stderr=self._stderr_fd,
                approver_sock=None if approver_sock is None else approver_sock.fileno(),
                owner_sock=owner_sock.fileno(),
                environ=self._environ,
            )


def _reports_denials(plan: Plan) -> bool:
    return plan.gate is not None or plan.network is not None or plan.observe


def _serve_questions(approver: Approver, sock: socket.socket) -> None:
    with sock:
        approver.serve(SocketInbox(sock))


def _with_exec_server(plan: Plan) -> Plan:
    """If programs need a rule, the exec server needs one too."""
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
    """Variables that the policy denies are refused from every source."""
    for name in environment if rules else ():
        assert rules is not None
        if name not in rules.keep and any(
            fnmatch.fnmatchcase(name, pattern) for pattern in rules.deny
        ):
            raise NotStarted(
                f"the policy denies the environment variable {name}", failure=Failure.DENIED
            )
