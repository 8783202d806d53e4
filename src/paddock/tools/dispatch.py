"""The only path to a tool: judge by the policy, ask if needed, journal, do.

    ToolCall ─► policy.check ─► prepare ─► (ask) ─► journal: tool ─► do ─► journal: tool.end
                                                                                └─► ToolResult

A denied call is never prepared. A call that can not succeed is never asked about. If a journal is
required, a call that can not be journaled is not done. No call raises, except for the cancellation
of its task; then all its processes have ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar, cast

from paddock.approve.questions import ToolQuestion, Verdict
from paddock.approve.tool_approvals import NOBODY, Approvals
from paddock.core.redact import Redactor
from paddock.errors import Bug, JournalError, PaddockError
from paddock.executors.interface import CommandExecutor, Measured, dialect_in
from paddock.explain.file_rules import Operation, existing
from paddock.policy.model import Action, Effect
from paddock.shell.redacted_command import shown_command
from paddock.tools.commands import CommandResult, CommandRunner, Commands
from paddock.tools.file_tools import (
    Act,
    EditFile,
    Limits,
    ListDirectory,
    ReadFile,
    ToolFiles,
    WriteFile,
)
from paddock.tools.name_in_open_dir import (
    FilesOnHost,
    OpenDenial,
    os_errors_as_results,
    real_path,
    require_open,
)
from paddock.tools.name_in_sandbox import Ask, FilesInSandbox, SandboxFiles
from paddock.tools.policy.calls import BUILTIN_TOOLS, ToolCall, ToolSpec
from paddock.tools.policy.path_arguments import annotated_paths, takes_a_call
from paddock.tools.policy.tool_policy import Decision, Step, ToolPolicy
from paddock.tools.result import FileText, FileWritten, ToolFailure, ToolOutcome, ToolResult

if TYPE_CHECKING:
    from paddock.journal.recorder import Recorder

T = TypeVar("T")
Handler = Callable[..., Awaitable[object]]
"""A tool of the caller: an async function of the ToolCall, or of its arguments by name. A parameter
with the annotation ``Path`` is judged as a path."""
PolicyDenial = Callable[[str, Operation], str | None]
"""The reason why the policy denies the operation on a path; None: it is allowed."""
ObjectDenial = Callable[[str, Operation, os.stat_result], Awaitable[str | None]]
"""The reason why commands can not use this object of the host at this path; None: they can.
PaddockError: the sandbox can not be asked. Tools of the caller open files of the host."""
_OPERATIONS = {
    "read_file": Operation.READ,
    "list_directory": Operation.READ,
    "write_file": Operation.WRITE,
    "edit_file": Operation.WRITE,
}
ASK_TIMEOUT_S = 300


class Tools:
    """``approvals`` None: questions are denied. ``executor`` None: there is no ``bash``.
    ``handlers``: tools of the caller, by name; the policy judges them like any other. ``only``: no
    other tools exist. ``files``: the sandbox that opens and writes files for file tools; if it is
    None, the ``executor``, if that is a sandbox, else the host. ``policy_denial`` judges a path by
    the policy; ``host_denial`` judges one that a tool of the caller opens on the host;
    ``object_denial`` asks the sandbox about the opened object of the host. ``log_all_commands``:
    the journal also contains the text of commands without a question.
    """

    def __init__(
        self,
        policy: ToolPolicy,
        *,
        approvals: Approvals | None = None,
        executor: CommandRunner | CommandExecutor | None = None,
        recorder: Recorder | None = None,
        redactor: Redactor | None = None,
        handlers: Mapping[str, Handler] | None = None,
        only: Collection[str] | None = None,
        limits: Limits | None = None,
        files: SandboxFiles | None = None,
        policy_denial: PolicyDenial | None = None,
        host_denial: PolicyDenial | None = None,
        object_denial: ObjectDenial | None = None,
        ask_timeout_s: float = ASK_TIMEOUT_S,
        log_all_commands: bool = False,
    ) -> None:
        # The executor says whether commands are confined, for each call, because the policy can not
        # know it.
        self._policy = policy.confined(False)
        self._approvals = approvals
        self._executor: CommandRunner | None = (
            Commands(executor)
            if executor is not None and _spawns(executor)
            else cast("CommandRunner | None", executor)
        )
        self._files = files
        if files is None and isinstance(executor, SandboxFiles):
            self._files = executor
        self._recorder = recorder
        self._redactor = redactor or Redactor()
        self._handlers = dict(handlers or {})
        self._annotated = {
            name: annotated_paths(handler) for name, handler in self._handlers.items()
        }
        self._limits = limits or Limits()
        self._policy_denial = policy_denial
        self._host_denial = host_denial
        self._object_denial = object_denial
        self._ask_timeout_s = ask_timeout_s
        self._log_all_commands = log_all_commands
        self._numbers = itertools.count(1)
        built_in = sorted({tool.name for tool in BUILTIN_TOOLS} & set(self._handlers))
        if built_in:
            raise ValueError(f"{', '.join(built_in)}: a built-in tool cannot have another handler")
        known = [*(tool.name for tool in BUILTIN_TOOLS), *self._handlers]
        unknown = sorted(set(only or ()) - set(known))
        if unknown:
            raise ValueError(f"unknown tool {', '.join(unknown)}")
        self.names = tuple(name for name in known if only is None or name in only)

    async def call(self, call: ToolCall) -> ToolResult:
        one = _Call(next(self._numbers), call, await self._decision(call))
        most = self._limits.calls
        try:
            if most is not None and one.number > most:
                why = f"{most} calls were made already"
                one.decision = replace(
                    one.decision, action=Action.DENY, rule_id="limit", reason=why
                )
                await self._record_decision(one, Action.DENY)
                return one.result(
                    ToolOutcome.LIMIT, f"limit: {one.decision.reason}, and no more are allowed"
                )
            if one.decision.action is Action.DENY:
                outcome = (
                    ToolOutcome.INVALID_ARGUMENTS
                    if one.decision.step is Step.ARGUMENTS
                    else ToolOutcome.BLOCKED
                )
                await self._record_decision(one, Action.DENY)
                return one.result(
                    outcome, f"{outcome.value}: {one.decision.reason} ({one.decision.rule_id})"
                )
            return await self._judged(one)
        except JournalError as error:
            return one.result(ToolOutcome.UNAVAILABLE, f"nothing was done: {error.message}")

    async def specs(self) -> tuple[ToolSpec, ...]:
        """The tool descriptions for a model. ``bash`` names the shell that runs its lines, so its
        executor is started first.
        """
        policy = self._policy if self._executor is None else await self._measured(self._executor)
        return tuple(policy.spec(name) for name in self.names)

    async def _decision(self, call: ToolCall) -> Decision:
        decision = self._policy.check(call, annotated=self._annotated.get(str(call.name), ()))
        if (
            decision.action is not Action.DENY
            and call.name == "bash"
            and self._executor is not None
        ):
            # After the first check: a denied command starts nothing.
            decision = (await self._measured(self._executor)).check(call)
        return self._with_policy_denials(call, decision)

    async def _measured(self, executor: CommandRunner) -> ToolPolicy:
        """The policy for the current guarantees of this executor. An executor that can not be
        started guarantees nothing, and reports the reason when the command is run.
        """
        if isinstance(executor, Measured):
            with contextlib.suppress(PaddockError):
                await executor.measure()
        return self._policy.confined(executor.confines_writes, dialect_in(executor))

    def _with_policy_denials(self, call: ToolCall, decision: Decision) -> Decision:
        """Tools may not touch paths that commands may not touch. This is an early answer for file
        tools, and the only one for tools of the caller, which work outside of the sandbox.
        """
        if decision.action is Action.DENY:
            return decision
        denials = [self._policy_denial]
        if call.name in self._handlers:
            denials.insert(0, self._host_denial)
        for located, operation, denial in itertools.product(
            decision.paths, self._operations(decision.scope.tool), filter(None, denials)
        ):
            why = denial(located.real or located.written, operation)
            if why is not None:
                return replace(decision, action=Action.DENY, rule_id="fence", reason=why)
        return decision

    def _operations(self, tool: str) -> tuple[Operation, ...]:
        """The operations of a tool on its paths. A tool without a description may do both."""
        if tool in _OPERATIONS:
            return (_OPERATIONS[tool],)
        effects = self._policy.spec(tool).effects
        reads = (Operation.READ,) if not effects or Effect.READ in effects else ()
        return (*reads, Operation.WRITE) if not effects or Effect.WRITE in effects else reads

    async def _judged(self, one: _Call) -> ToolResult:
        with contextlib.ExitStack() as held:
            try:
                act = self._act(one)
                held.callback(act.close)
                await _in_thread(act.prepare)
            except ToolFailure as failed:
                await self._record_decision(one, one.decision.action)
                return await self._record_end(one, failed.outcome, failed.message, failed.content)
            action = Action.ALLOW
            if one.decision.action is Action.ASK:
                action = await self._ask(one, act)
            await self._record_decision(one, action)
            if action is Action.DENY:
                return one.result(
                    ToolOutcome.DENIED, f"denied: {one.decision.reason} ({one.decision.rule_id})"
                )
            return await self._done(one, act)

    async def _done(self, one: _Call, act: Act) -> ToolResult:
        one.began = time.monotonic()
        try:
            # A command and a caller's own tool are awaited; file tools run in a thread.
            content = await (act.run() if isinstance(act, _Waiting) else _in_thread(act.do))
        except ToolFailure as failed:
            return await self._record_end(one, failed.outcome, failed.message, failed.content)
        except asyncio.CancelledError:
            with contextlib.suppress(JournalError):
                await asyncio.shield(self._record(one.end(ToolOutcome.CANCELLED, None)))
            raise
        return await self._record_end(one, ToolOutcome.OK, "ok", content)

    def _act(self, one: _Call) -> Act:
        call, decision, limits = one.call, one.decision, self._limits
        located = decision.paths[0] if decision.paths else None
        files = self._files_for(_OPERATIONS.get(call.name, Operation.READ))
        if call.name not in self.names:
            raise ToolFailure(ToolOutcome.INVALID_ARGUMENTS, f"unknown tool {call.name!r}")
        match call.name:
            case "read_file" if located:
                return ReadFile(call, located, limits, files)
            case "write_file" if located:
                return WriteFile(
                    call, located, limits, files, self._may("write_file", {"content": ""})
                )
            case "edit_file" if located:
                return EditFile(
                    call, located, limits, files, self._may("write_file", {"content": ""})
                )
            case "list_directory" if located:
                return ListDirectory(call, located, limits, files, self._may("list_directory", {}))
            case "bash":
                return _Command(call, decision, self._executor, limits)
        checks = [
            (real_path(located), self._denial_for(operation))
            for located, operation in itertools.product(
                decision.paths, self._operations(decision.scope.tool)
            )
        ]
        return _OwnTool(
            call,
            self._handlers[call.name],
            limits.own_timeout_s,
            checks if self._object_denial else [],
        )

    def _files_for(self, operation: Operation) -> ToolFiles:
        if self._files is None:
            return FilesOnHost(self._denial_for(operation))
        return FilesInSandbox(self._files, _asker())

    def _denial_for(self, operation: Operation) -> OpenDenial:
        ask = _asker()

        def denial(path: str, facts: os.stat_result) -> str | None:
            if self._object_denial is None:
                return None
            return ask(self._object_denial(path, operation, facts))

        return denial

    def _may(self, name: str, arguments: dict[str, Any]) -> Callable[[str], bool]:
        """Whether the policy would allow a path. Questions about it were asked with the call
        itself.
        """

        def may(path: str) -> bool:
            call = ToolCall(name=name, arguments={"path": path, **arguments})
            return (
                self._with_policy_denials(call, self._policy.check(call)).action is not Action.DENY
            )

        return may

    async def _ask(self, one: _Call, act: Act) -> Action:
        if self._approvals is None:
            one.by = NOBODY
            return Action.DENY
        decision = one.decision
        diff = await _in_thread(act.diff) if isinstance(act, WriteFile | EditFile) else None
        question = ToolQuestion(
            tool=one.call.name,
            subject=decision.scope.subject,
            lines=act.summary,
            diff=diff,
            cwd=decision.scope.cwd,
            rule=decision.rule_id,
            reason=decision.reason,
            timeout_s=self._ask_timeout_s,
        )
        began = time.monotonic()
        verdict, one.by = await self._approvals.ask(question)
        await self._record(
            {
                "event": "approval",
                "call": one.number,
                "tool": one.decision.scope.tool,
                "verdict": verdict.value,
                "by": one.by,
                "ms": _ms(began),
            }
        )
        return Action.DENY if verdict is Verdict.DENY else Action.ALLOW

    # The journal

    async def _record_decision(self, one: _Call, action: Action) -> None:
        decision = one.decision
        subject: list[str] | None = self._redactor.all_of(list(decision.scope.subject))
        if one.is_command:
            unasked = decision.action is Action.ALLOW and not self._log_all_commands
            command, cwd = str(one.call.arguments["command"]), decision.scope.cwd
            subject = None if unasked else [shown_command(command, self._redactor, cwd=cwd)]
        await self._record(
            {
                "event": "tool",
                "call": one.number,
                "tool": one.decision.scope.tool,
                "action": action.value,
                "asked": decision.action is Action.ASK,
                "by": one.by,
                "rule_id": decision.rule_id,
                "reason": decision.reason,
                "cwd": decision.scope.cwd,
            },
            subject=subject,
        )

    async def _record_end(
        self, one: _Call, outcome: ToolOutcome, message: str, content: object | None
    ) -> ToolResult:
        result = one.result(outcome, message, content)
        try:
            await self._record(one.end(outcome, content))
        except JournalError as error:
            return replace(
                result,
                notes=(
                    *result.notes,
                    f"the result could not be written to the journal: {error.message}",
                ),
            )
        return result

    async def _record(self, event: dict[str, Any], **shown: Any) -> None:
        """``shown`` is redacted already."""
        if self._recorder is not None:
            recorder = self._recorder
            await _in_thread(lambda: recorder.record(self._redactor.all_of(event) | shown))


class _Call:
    """One running call."""

    def __init__(self, number: int, call: ToolCall, decision: Decision) -> None:
        self.number, self.call, self.decision = number, call, decision
        self.by: str | None = None
        self.began = time.monotonic()

    @property
    def is_command(self) -> bool:
        return self.call.name == "bash" and self.decision.step is not Step.ARGUMENTS

    def result(
        self, outcome: ToolOutcome, message: str, content: object | None = None
    ) -> ToolResult:
        notes = content.notes if isinstance(content, CommandResult) else ()
        return ToolResult(
            outcome=outcome, message=message, decision=self.decision, content=content, notes=notes
        )

    def end(self, outcome: ToolOutcome, content: object | None) -> dict[str, Any]:
        ran = content if isinstance(content, CommandResult) else None
        size = len(ran.stdout) + len(ran.stderr) if ran else None
        if isinstance(content, FileText | FileWritten):
            size = content.size
        return {
            "event": "tool.end",
            "call": self.number,
            "tool": self.decision.scope.tool,
            "outcome": outcome.value,
            "exit_code": ran.exit_code if ran else None,
            "bytes": size,
            "ms": _ms(self.began),
        }


class _Waiting(ABC):
    """An action that is awaited; file actions are immediate."""

    summary: tuple[str, ...] = ()

    def prepare(self) -> None:
        return  # there is nothing to check in advance

    def do(self) -> object:
        raise Bug(f"{type(self).__name__} must be awaited")

    def close(self) -> None:
        return  # it holds nothing open

    @abstractmethod
    async def run(self) -> object: ...


class _Command(_Waiting):
    def __init__(
        self, call: ToolCall, decision: Decision, executor: CommandRunner | None, limits: Limits
    ) -> None:
        self._command, self._cwd = str(call.arguments["command"]), decision.scope.cwd
        self._timeout_s = float(call.arguments.get("timeout_s", limits.timeout_s))
        self._longest_s = limits.longest_timeout_s
        self._executor = executor
        self.summary = tuple(self._command.split("\n"))

    def prepare(self) -> None:
        if self._executor is None:
            raise ToolFailure(ToolOutcome.UNAVAILABLE, "this session has no executor for commands")
        if not (math.isfinite(self._timeout_s) and 0 < self._timeout_s <= self._longest_s):
            raise ToolFailure(
                ToolOutcome.INVALID_ARGUMENTS,
                f"timeout_s must be between 0 and {self._longest_s:g}",
            )
        if not os.path.isdir(self._cwd):
            raise ToolFailure(ToolOutcome.NOT_FOUND, f"{self._cwd}: no such directory")

    async def run(self) -> CommandResult:
        assert self._executor is not None
        try:
            result = await self._executor.run(
                self._command, cwd=self._cwd, timeout_s=self._timeout_s
            )
        except PaddockError as error:
            raise ToolFailure(
                ToolOutcome.UNAVAILABLE, f"the command was not run: {error.message}"
            ) from error
        if result.timed_out:
            raise ToolFailure(
                ToolOutcome.TIMEOUT,
                f"the command did not finish within {self._timeout_s:g} s, and was ended",
                result,
            )
        return result


class _OwnTool(_Waiting):
    """``checks``: paths that the handler will open itself. Their current objects are checked; the
    handler may open others.
    """

    def __init__(
        self,
        call: ToolCall,
        handler: Handler,
        timeout_s: float | None,
        checks: list[tuple[str, OpenDenial]],
    ) -> None:
        self._call, self._handler, self._timeout_s, self._checks = call, handler, timeout_s, checks
        self.summary = (
            call.name,
            *(f"{name} = {value!r}" for name, value in call.arguments.items()),
        )

    def prepare(self) -> None:
        for path, denial in self._checks:
            # a missing path can only be created, in the directory above
            existing_path = existing(path)
            with os_errors_as_results(path):
                require_open(existing_path, os.lstat(existing_path), denial, path)

    async def run(self) -> object:
        try:
            async with asyncio.timeout(self._timeout_s) as waiting:
                if takes_a_call(self._handler):
                    return await self._handler(self._call)
                return await self._handler(**self._call.arguments)
        except Exception as error:
            if waiting.expired():
                raise ToolFailure(
                    ToolOutcome.TIMEOUT,
                    f"the command did not finish within {self._timeout_s:g} s, and was ended",
                ) from error
            raise ToolFailure(ToolOutcome.FAILED, f"{type(error).__name__}: {error}") from error


def _spawns(executor: CommandRunner | CommandExecutor) -> TypeGuard[CommandExecutor]:
    return hasattr(executor, "spawn")


def _asker() -> Ask:
    """For use in a thread: the sandbox is asked in the event loop that created this."""
    loop = asyncio.get_running_loop()

    def ask(answer: Awaitable[T]) -> T:
        try:
            return asyncio.run_coroutine_threadsafe(_asking(answer), loop).result()
        except PaddockError as error:
            raise ToolFailure(
                ToolOutcome.UNAVAILABLE,
                f"cannot ask the sandbox about this path: {error.message}",
            ) from error

    return ask


async def _asking(answer: Awaitable[T]) -> T:
    return await answer


async def _in_thread(work: Callable[[], T]) -> T:
    """A cancelled caller waits for the thread, because its descriptors are closed next."""
    task = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([task])
        task.exception()
        raise


def _ms(began: float) -> int:
    return round((time.monotonic() - began) * 1000)
