"""A session for programs that build on Paddock: policy, executor, tools, approver, journal."""

from __future__ import annotations

import asyncio
import contextlib
import os
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from types import TracebackType

from paddock.approve import AnyQuestion, Approver, Callback, Verdict
from paddock.approve.tool_approvals import Approvals
from paddock.core.redact import Redactor
from paddock.errors import UsageError
from paddock.executors.background_shells import Shells
from paddock.executors.interface import Closable, CommandExecutor, CommandLine, Process, Size
from paddock.executors.private_dir import refuse_writable
from paddock.executors.run import MAX_OUTPUT_BYTES, Result, Stream, end, run
from paddock.executors.sandbox import SandboxExecutor
from paddock.journal.recorder import Recorder
from paddock.launch.prepare import Prepared, prepare, remember_journal
from paddock.policy import Origin, Request
from paddock.policy.formats.agent_config import configured
from paddock.policy.model import Tier
from paddock.policy.trust.workspace_path import resolved_workspace
from paddock.session import shutdown
from paddock.session.tools import tools_of
from paddock.session.worktree import make_worktree
from paddock.tools.commands import CommandResult, Commands
from paddock.tools.dispatch import Handler, Tools

_GRACE_S = 2.0


class Sandbox:
    """The commands and tool calls of an agent, until the end of the block.

    ``profile`` and ``policy`` as on the command line; with neither it is ``ai-agent``.
    ``workspace``: the directory of the host in which commands and file tools work. ``worktree``:
    the name of a branch; the session then works in its own worktree of that repository, which stays
    when the session ends. ``executor`` replaces the sandbox; ``exec_cwd`` is the path of the
    workspace there. ``approver`` is called with each question of a rule or about a tool, in its own
    thread, or is one of ``paddock.approve``; without one the answer is deny. ``journal``: its path,
    also if the policy asks for none. ``handlers``: tools of the caller. ``closed_tool_set``: only
    these tools exist. ``redactor`` knows the caller's secrets.
    """

    def __init__(
        self,
        *,
        profile: str | None = None,
        policy: str | os.PathLike[str] | None = None,
        workspace: str | os.PathLike[str] = ".",
        worktree: str | None = None,
        executor: CommandExecutor | None = None,
        exec_cwd: str | None = None,
        approver: Callable[[AnyQuestion], Verdict | Awaitable[Verdict]] | Approver | None = None,
        tier: Tier | None = None,
        journal: str | os.PathLike[str] | None = None,
        handlers: Mapping[str, Handler] | None = None,
        closed_tool_set: Collection[str] | None = None,
        redactor: Redactor | None = None,
    ) -> None:
        if executor is not None and tier is not None:
            raise UsageError("tier applies to the sandbox executor only, not to this executor")
        self._request = Request(
            profiles=() if profile is None else (profile,),
            policies=() if policy is None else (os.path.abspath(policy),),
            tier=tier,
            audit_dir=None if journal is None else os.path.abspath(journal),
            command="/bin/sh",
        )
        self.workspace = resolved_workspace(workspace, Origin.of_process().writable_history)
        self._worktree = worktree
        self._own_executor = executor
        self._exec_cwd = exec_cwd
        self._approver: Approver | None = Callback(approver) if callable(approver) else approver
        self._handlers = handlers
        self._only = closed_tool_set
        self._redactor = redactor or Redactor()
        self._parts: _Parts | None = None
        self._prepared: Prepared | None = None
        self._tools: Tools | None = None

    async def __aenter__(self) -> Sandbox:
        if self._parts is not None:
            raise UsageError("a session can be entered only once")
        if self._worktree is not None:
            self.workspace = await make_worktree(self.workspace, self._worktree)
        if self._own_executor is None:
            sandbox = SandboxExecutor(
                self._request, workspace=self.workspace, approver=self._approver
            )
            self._prepared = await sandbox.prepared()
            executor: CommandExecutor = sandbox
        else:
            executor = self._own_executor
            sandbox = SandboxExecutor(self._request, workspace=self.workspace)
            if self._request.audit_dir is not None:
                self._prepared = await asyncio.to_thread(self._judged)
        recorder = None
        if self._prepared is not None and self._prepared.plan.journal is not None:
            recorder = await asyncio.to_thread(Recorder, self._prepared.plan)
        approvals = Approvals(self._approver, redactor=self._redactor, origin=self._origin)
        self._parts = _Parts(
            executor=executor,
            files=sandbox,
            shells=Shells(executor, workspace=self.workspace),
            approvals=approvals,
            recorder=recorder,
        )
        shutdown.hold(id(self._parts), self._parts.dispose)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        await self.dispose()

    @property
    def executor(self) -> CommandExecutor:
        return self._living.executor

    @property
    def shells(self) -> Shells:
        return self._living.shells

    @property
    def tools(self) -> Tools:
        """Tool calls, judged by the policy, approved and journaled. A process in the sandbox opens
        and writes the files of file tools; ``bash`` runs in the executor.
        """
        parts = self._living
        if self._tools is None:
            self._prepared = self._prepared or self._judged()
            try:
                self._tools = tools_of(
                    self._prepared,
                    configured(self._origin, policy=self._prepared.policy.tools),
                    self._origin,
                    approvals=parts.approvals,
                    executor=_Bash(parts.executor, self.workspace, self._exec_cwd),
                    files=parts.files,
                    recorder=parts.recorder,
                    redactor=self._redactor,
                    handlers=self._handlers,
                    only=self._only,
                )
            except ValueError as error:
                raise UsageError(str(error)) from error
        return self._tools

    async def run(
        self,
        command: CommandLine,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes | str = b"",
        tty: Size | None = None,
        timeout_s: float | None = None,
        idle_timeout_s: float | None = None,
        on_output: Callable[[Stream, bytes], None] | None = None,
        cap: int = MAX_OUTPUT_BYTES,
        spool: str | os.PathLike[str] | None = None,
    ) -> Result:
        """A string is a line of shell; a list is passed to execve without a shell. See
        :func:`paddock.executors.run.run`.
        """
        if spool is not None:
            await refuse_writable(spool, self.executor, self.workspace)
        return await run(
            self.executor,
            command,
            cwd=cwd if cwd is not None else self._exec_cwd,
            env=env,
            stdin=stdin,
            tty=tty,
            timeout_s=timeout_s,
            idle_timeout_s=idle_timeout_s,
            on_output=on_output,
            cap=cap,
            spool=spool,
        )

    @contextlib.asynccontextmanager
    async def spawn(
        self,
        command: CommandLine,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bool = False,
        tty: Size | None = None,
    ) -> AsyncIterator[Process]:
        """A process with its pipes. It and its descendants end with the block."""
        where = cwd if cwd is not None else self._exec_cwd
        process = await self.executor.spawn(command, cwd=where, env=env, stdin=stdin, tty=tty)
        try:
            yield process
        finally:
            if process.returncode is None:
                await asyncio.shield(end(process, _GRACE_S))
            if isinstance(process, Closable):
                process.close()

    async def dispose(self) -> tuple[str, ...]:
        """Ends shells, the executor with its network, questions and the journal. Returns messages
        about what could not be ended. A second call does nothing.
        """
        return () if self._parts is None else await self._parts.dispose()

    def __del__(self) -> None:
        parts: _Parts | None = getattr(self, "_parts", None)
        if parts is not None and parts.ending is None:
            warnings.warn(
                f"a session in {self.workspace} was not closed",
                ResourceWarning,
                stacklevel=2,
                source=self,
            )
            parts.abandon()

    @property
    def _living(self) -> _Parts:
        if self._parts is None or self._parts.ending is not None:
            raise UsageError(
                "the session has ended"
                if self._parts
                else "the session has not started: use `async with`"
            )
        return self._parts

    @property
    def _origin(self) -> Origin:
        return replace(Origin.of_process(), cwd=self.workspace)

    def _judged(self) -> Prepared:
        """The policy of a session without a sandbox."""
        prepared = prepare(self._request, self._origin)
        remember_journal(prepared.policy, prepared.plan, self._origin)
        return prepared


@dataclass(kw_only=True, eq=False)
class _Parts:
    """The parts that must be ended. They are separate from the session object, which may be
    collected earlier.
    """

    executor: CommandExecutor
    # used by file tools; the executor itself, or a sandbox for this purpose only
    files: SandboxExecutor
    shells: Shells
    approvals: Approvals
    recorder: Recorder | None
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    ending: asyncio.Future[tuple[str, ...]] | None = None

    async def dispose(self) -> tuple[str, ...]:
        """A second caller waits for the first, and gets no messages."""
        first = self.ending is None
        self.ending = self.ending or asyncio.ensure_future(self._dispose())
        left = await asyncio.shield(self.ending)
        return left if first else ()

    def abandon(self) -> None:
        if self.loop.is_running():
            self.loop.call_soon_threadsafe(lambda: asyncio.ensure_future(self.dispose()))

    async def _dispose(self) -> tuple[str, ...]:
        left: list[str] = []
        steps: list[tuple[str, Callable[[], Awaitable[object]]]] = [
            ("shells", lambda: self.shells.dispose(_GRACE_S)),
            (self.executor.name, self._dispose_of_executor),
            ("file tools", self.files.dispose),
            ("questions", lambda: asyncio.to_thread(self.approvals.close)),
            (
                "journal",
                lambda: asyncio.to_thread(self.recorder.close if self.recorder else lambda: None),
            ),
        ]
        for name, step in steps:
            try:
                messages = await step()
            except Exception as error:  # the next part is ended too
                messages = (f"{name}: {error}",)
            left += messages if isinstance(messages, tuple) else ()
        shutdown.release(id(self), self.loop)
        return tuple(left)

    async def _dispose_of_executor(self) -> tuple[str, ...]:
        dispose = getattr(self.executor, "dispose", None)
        return () if dispose is None else await dispose()


class _Bash(Commands):
    """Translates the working directory if the workspace has another path in the executor."""

    def __init__(self, executor: CommandExecutor, workspace: str, exec_cwd: str | None) -> None:
        super().__init__(executor)
        self._workspace = workspace
        self._exec_cwd = exec_cwd

    async def run(self, command: str, *, cwd: str, timeout_s: float) -> CommandResult:
        where = os.path.relpath(os.path.realpath(cwd), self._workspace)
        if where.split(os.sep, 1)[0] == os.pardir:
            raise UsageError(f"{cwd} is not in the workspace, so commands cannot reach it")
        where = os.path.normpath(os.path.join(self._exec_cwd or "", where))
        return await super().run(command, cwd=where, timeout_s=timeout_s)
