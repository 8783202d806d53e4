"""Checks for ``--dry-run`` and `check` whether a run would reach the command's first instruction,
without starting it.

Policy, plan and preflight refuse by themselves. This file checks the last steps of a run: the state
that is written, the journal that is created, the working directory, and the search for the program.
"""

from __future__ import annotations

import errno
import os
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace

from paddock.errors import EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND, PolicyError
from paddock.explain.exec_answer import answer_exec
from paddock.frozen import dataclass
from paddock.launch.create_missing import require_makeable
from paddock.launch.journal_check import require_usable
from paddock.launch.prepare import Prepared
from paddock.plan.path_containment import within
from paddock.policy import Origin
from paddock.policy.load import writable_trees
from paddock.policy.model import Action, CredentialKind
from paddock.policy.trust.writable_history import WritableHistory
from paddock.text.path_walk import follow


@dataclass(frozen=True, slots=True, kw_only=True)
class WouldNotStart:
    """The command would not run. Exit code and message are those of the core."""

    exit_code: int
    message: str
    hint: str


def rehearse(prepared: Prepared, command: Sequence[str], origin: Origin) -> WouldNotStart | None:
    """Raises the error that would refuse the run. Returns the error that would stop the start of
    its command.
    """
    plan = prepared.plan
    require_startable(prepared, origin)
    # A directory that the run creates can not be entered yet. Then the sandbox is tried from the
    # current directory.
    made = any(within(plan.workdir, directory) for directory in prepared.to_make())
    entered = replace(plan, workdir=plan.cwd) if made else plan
    answered = answer_exec(entered, command, plan.workdir, origin.environ)
    if answered.failure is not None:
        return _not_started(command[0], answered.failure, searched="/" not in command[0])
    if answered.decision is None or answered.decision.action is not Action.DENY:
        return None
    return WouldNotStart(
        exit_code=EXIT_NOT_EXECUTABLE,
        message=f"denied: {shlex.join(command)} ({answered.reason})",
        hint="type `paddock why --exec COMMAND` to see the rule and its line",
    )


def require_startable(prepared: Prepared, origin: Origin) -> None:
    """Raises the error that would refuse a run of any command."""
    require_makeable(prepared.policy, prepared.plan)
    WritableHistory.require_recordable(
        origin.state_dir,
        [*writable_trees(prepared.policy), *map(follow, prepared.terrain.writable)],
    )
    if prepared.plan.journal:
        require_usable(prepared.plan.journal, origin.uid)


def unready_credentials(prepared: Prepared, origin: Origin) -> Iterator[str]:
    """The secrets of routes that a run would not find. No program is started for this."""
    network = prepared.policy.network
    for route in network.routes if network else ():
        credential = route.credential
        if credential and credential.kind in (CredentialKind.ENV, CredentialKind.FILE):
            from paddock.http.credentials import read

            try:
                read(credential, origin.environ, prepared.writable_history)
            except PolicyError as error:
                yield f"{error.message}: a run would refuse now ({error.hint})"


def _not_started(name: str, failure: int, *, searched: bool) -> WouldNotStart:
    if failure == errno.ELOOP:
        hint = (
            "a link leads to itself, or a `#!` line names a script: type `ls -l FILE; head -1 FILE`"
        )
    elif failure != errno.ENOENT:
        hint = (
            "the file is not executable, or the policy grants no execution: type `paddock why "
            "--op exec --path FILE`"
        )
    elif searched:
        hint = "no directory in the command's PATH has this program; check the name and the PATH"
    else:
        hint = "check the path; a script also needs the interpreter of its first line"
    return WouldNotStart(
        exit_code=EXIT_NOT_FOUND if failure == errno.ENOENT else EXIT_NOT_EXECUTABLE,
        message=f"cannot run {name}: {os.strerror(failure)}",
        hint=hint,
    )
