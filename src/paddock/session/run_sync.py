"""Runs one command in the sandbox, for scripts without an event loop: a session that ends with the
command.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping

from paddock.approve import AnyQuestion, Callback, Verdict
from paddock.errors import UsageError
from paddock.executors.interface import CommandExecutor, CommandLine, Size
from paddock.executors.run import MAX_OUTPUT_BYTES, Result, Stream
from paddock.policy.model import Tier
from paddock.session.sandbox import Sandbox


def run_sync(
    command: CommandLine,
    *,
    profile: str | None = None,
    policy: str | os.PathLike[str] | None = None,
    workspace: str | os.PathLike[str] = ".",
    executor: CommandExecutor | None = None,
    approver: Callable[[AnyQuestion], Verdict | Awaitable[Verdict]] | None = None,
    tier: Tier | None = None,
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
    """``Sandbox(…).run(…)``: returns when the command and all its processes have ended.

    ``approver`` is called for each question about an exec or a host, in its own threads: at most 32
    at a time. The others wait while ``ask_timeout_s`` runs. If it raises, the answer is deny, and
    the first such error is raised after the run. Without an approver questions are denied.
    """
    callback = None if approver is None else Callback(approver)

    async def once() -> Result:
        async with Sandbox(
            profile=profile,
            policy=policy,
            workspace=workspace,
            executor=executor,
            approver=callback,
            tier=tier,
        ) as box:
            return await box.run(
                command,
                cwd=cwd,
                env=env,
                stdin=stdin,
                tty=tty,
                timeout_s=timeout_s,
                idle_timeout_s=idle_timeout_s,
                on_output=on_output,
                cap=cap,
                spool=spool,
            )

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        result = asyncio.run(once())
    else:
        raise UsageError(
            "run_sync cannot be called while an event loop runs",
            hint="write `async with Sandbox(…) as box`",
        )
    if callback is not None and callback.failure is not None:
        raise callback.failure
    return result
