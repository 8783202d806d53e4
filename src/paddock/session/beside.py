"""A run beside the caller's own program: the API's, which has a caller to come back to."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from paddock.approve import Callback, Question, Verdict
from paddock.approve.inbox import Inbox
from paddock.errors import UsageError
from paddock.policy import Origin, Request
from paddock.session import prepare

_SHELL = ("/bin/sh", "-c")


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """How a command ended. ``exit_code`` is its own, or as on the command line: 125 Paddock refused, 126 denied or not
    executable, 127 not found, 128+N killed by signal N."""

    exit_code: int


def run_sync(
    command: str | Sequence[str],
    *,
    profile: str | None = None,
    policy: str | os.PathLike[str] | None = None,
    approver: Callable[[Question], Verdict] | None = None,
    quiet: bool = True,
) -> Result:
    """Run a command behind the fence, in the current directory, with this process's standard descriptors; return when
    it and all it started has ended. A text is for the shell, a list for nobody but the kernel.

    ``approver`` is called for each exec that a rule asks about, in threads of its own: at most 32 at a time, the rest
    wait their turn while ``ask_timeout_s`` runs. If it raises, the answer is deny, and the first such error is raised
    when the run has ended. Without an approver, questions go to the terminal of this process; without either, they are
    denied.
    """
    words = [*_SHELL, command] if isinstance(command, str) else [*command]
    if not words or not words[0]:
        raise UsageError("run_sync: the command is empty")
    request = Request(
        profiles=() if profile is None else (profile,),
        policies=() if policy is None else (os.fspath(policy),),
        command=words[0],
    )
    prepared = prepare(request, Origin.of_process(), to_run=True)
    if approver is None:
        return _waited_for(prepared.start(words, quiet=quiet))
    callback = Callback(approver)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        with theirs:
            pid = prepared.start(words, quiet=quiet, companion=theirs.fileno())
        result = _waited_for(pid, while_it_runs=lambda: callback.serve(Inbox(ours)))
    if callback.failure is not None:
        raise callback.failure
    return result


def _waited_for(pid: int, *, while_it_runs: Callable[[], None] = lambda: None) -> Result:
    try:
        while_it_runs()
        return Result(exit_code=_status(pid))
    except BaseException:
        # Interrupted, or the core does not speak our language: nothing goes on without us.
        os.kill(pid, signal.SIGTERM)
        _status(pid)
        raise


def _status(pid: int) -> int:
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return code if code >= 0 else 128 - code
