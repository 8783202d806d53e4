"""Tool calls under a policy file: its ``[tools]``, its sandbox for ``bash``, its journal."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Collection, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

from paddock.approve.inbox import Approver
from paddock.approve.tool_approvals import Approvals
from paddock.core.redact import Redactor
from paddock.executors.interface import CommandExecutor
from paddock.executors.sandbox import SandboxExecutor
from paddock.explain.file_rules import PRIVATE, Judge, Operation
from paddock.journal.recorder import Recorder
from paddock.launch.prepare import Prepared, prepare, remember_journal
from paddock.plan.path_containment import within
from paddock.plan.plan import Plan
from paddock.policy import GrantFlag, Origin, Request, load
from paddock.policy.formats.agent_config import Config, configured
from paddock.policy.model import Access, Tier, ToolSettings
from paddock.text.path_walk import Identity
from paddock.tools.commands import CommandRunner
from paddock.tools.dispatch import Handler, Tools
from paddock.tools.file_tools import Limits
from paddock.tools.policy.tool_policy import ToolPolicy
from paddock.workspace.repositories import made_by

AnyPath = str | os.PathLike[str]


@asynccontextmanager
async def open_tools(
    *,
    profile: str | None = None,
    policy: AnyPath | None = None,
    journal: AnyPath | None = None,
    approver: Approver | None = None,
    executor: CommandExecutor | None = None,
    handlers: Mapping[str, Handler] | None = None,
    redactor: Redactor | None = None,
    config: AnyPath | None = None,
    flags: ToolSettings | None = None,
) -> AsyncIterator[Tools]:
    """The tools of this process, under a profile or policy file, over the user's configuration and
    ``config``, under ``flags``. Commands run in the sandbox, or in another ``executor``; they may
    also write ``allowed_paths``. With ``journal``, or ``[audit] enabled``, a call that can not be
    journaled is not made. ``redactor`` knows the secrets that must not be written or shown.
    """
    origin = Origin.of_process()
    asked = _request(profile, policy, journal)
    chosen = configured(origin, config, policy=load(asked, origin).tools, flags=flags)
    request = replace(asked, grants=tuple(_grants(chosen.tools, origin)))
    prepared = prepare(request, origin)
    redactor, audit = redactor or Redactor(), prepared.policy.audit.enabled
    async with AsyncExitStack() as held:
        recorder = None
        if journal is not None or (audit is not None and audit.value):
            recorder = held.enter_context(
                open_journal(profile=profile, policy=policy, place=journal)
            )
        files = SandboxExecutor(request, workspace=origin.cwd)
        held.push_async_callback(files.dispose)
        approvals = held.enter_context(Approvals(approver, redactor=redactor, origin=origin))
        yield tools_of(
            prepared,
            chosen,
            origin,
            approvals=approvals,
            executor=executor or files,
            files=files,
            recorder=recorder,
            redactor=redactor,
            handlers=handlers,
        )


def tools_of(
    prepared: Prepared,
    chosen: Config,
    origin: Origin,
    *,
    approvals: Approvals,
    executor: CommandExecutor | CommandRunner,
    files: SandboxExecutor,
    recorder: Recorder | None,
    redactor: Redactor,
    handlers: Mapping[str, Handler] | None,
    only: Collection[str] | None = None,
) -> Tools:
    """The tools under a policy and the chosen settings, with its sandbox: file tools may not touch
    paths that commands may not touch. ``files``: the sandbox that opens and writes the files of
    file tools. If commands run elsewhere, it is used for this only.
    """
    tools, plan = chosen.tools, prepared.plan
    # By grants and names. Only the sandbox itself knows the current objects below its masks and
    # locks.
    judge = Judge(plan)

    def host_denial(path: str, operation: Operation) -> str | None:
        if _is_copied(plan, path):
            return (
                'the workspace is a copy (workspace = "cow"), and this tool uses the files of the '
                "host: use bash"
            )
        return None

    def policy_denial(path: str, operation: Operation) -> str | None:
        if _is_commands_own(plan, path):
            return "the sandbox denies it: commands have a private directory there"
        judgement = judge(path, operation)
        if not judgement.allowed:
            return f"the sandbox denies it: {judgement.reason}"
        protects = plan.files is not None and plan.files.protect
        if operation is Operation.WRITE and protects and (made := made_by(path)):
            return f"the sandbox denies it: git would use {made} as a repository"
        return None

    async def object_denial(path: str, operation: Operation, facts: os.stat_result) -> str | None:
        act = "write" if operation.writes else "read"
        try:
            found = await files.open(path, read=not operation.writes)
        except OSError as error:
            return f"the sandbox denies it: commands cannot {act} it ({error.strerror})"
        try:
            if Identity.of(os.fstat(found)) != Identity.of(facts):
                return f"the sandbox denies it: commands cannot {act} it, because a mount covers it"
            if operation.writes and os.fstatvfs(found).f_flag & os.ST_RDONLY:
                return "the sandbox denies it: commands can only read it"
        finally:
            os.close(found)
        return None

    return Tools(
        ToolPolicy.of(tools, cwd=origin.cwd, home=origin.home),
        approvals=approvals,
        executor=executor,
        recorder=recorder,
        redactor=redactor,
        handlers=handlers,
        only=only,
        files=files,
        policy_denial=policy_denial,
        host_denial=host_denial,
        object_denial=object_denial,
        limits=limits_of(chosen),
        log_all_commands=tools.log_all_commands is not None and tools.log_all_commands.value,
    )


def _is_copied(plan: Plan, path: str) -> bool:
    """Whether commands see a copy of it. A tool of the caller would read and write the host's file
    without review.
    """
    if plan.workspace is None:
        return False
    workspace_paths = (plan.workspace.path, os.path.realpath(plan.workspace.path))
    return any(within(path, tree) for tree in workspace_paths)


def _is_commands_own(plan: Plan, path: str) -> bool:
    """Inside, another directory has that path, but links are resolved on the host."""
    if (
        plan.tier is not Tier.FULL
        or plan.files is None
        or not any(within(path, private) for private in PRIVATE)
    ):
        return False
    mounted = (grant.path for grant in plan.files.grants if grant.path not in PRIVATE)
    return not any(within(path, mount) for mount in mounted if not within(mount, "/dev"))


def limits_of(config: Config) -> Limits:
    """``max_steps`` calls, and ``timeout`` seconds for each."""
    calls = None if config.max_steps is None else config.max_steps.value
    if config.timeout is None:
        return Limits(calls=calls)
    seconds = config.timeout.value
    return Limits(calls=calls, timeout_s=seconds, longest_timeout_s=seconds, own_timeout_s=seconds)


def _grants(tools: ToolSettings, origin: Origin) -> Iterator[GrantFlag]:
    """Commands may write the paths that file tools may write, except whole homes and the whole
    machine, which need a grant.
    """
    for one in tools.allowed_paths or ():
        directory = one.value.removesuffix("/**")
        too_wide = ("", "/", "<cwd>", origin.cwd, origin.home, os.path.dirname(origin.home))
        if directory != one.value and directory not in too_wide and os.path.isdir(directory):
            yield GrantFlag(access=Access.ALLOW, pattern=one.value, flag="allowed_paths")


def open_journal(
    *, profile: str | None = None, policy: AnyPath | None = None, place: AnyPath | None = None
) -> Recorder:
    """The journal of a run with this policy, or the one at ``place``: a directory, or a file that
    ends in ``.jsonl``. Later runs deny it to commands. Raises JournalError if it can not be
    written.
    """
    origin = Origin.of_process()
    prepared = prepare(_request(profile, policy, place, audit=True), origin)
    remember_journal(prepared.policy, prepared.plan, origin)
    return Recorder(prepared.plan)


def _request(
    profile: str | None, policy: AnyPath | None, journal: AnyPath | None, *, audit: bool = False
) -> Request:
    return Request(
        profiles=() if profile is None else (profile,),
        policies=() if policy is None else (os.fspath(policy),),
        audit=audit,
        audit_dir=None if journal is None else os.path.abspath(journal),
        command="/bin/sh",
    )
