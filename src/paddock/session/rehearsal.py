"""How a run would end before the command's first instruction, without starting it: for ``--dry-run``.

Policy, plan and preflight refuse by themselves. What is left are the last steps of a run: the state that is written,
the journal that is made, the working directory that is entered, the program that is looked for.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace

from paddock.errors import EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND
from paddock.plan import Plan
from paddock.plan.judge import Operation
from paddock.plan.model import EnvironmentRules
from paddock.plan.paths import within
from paddock.policy import Origin
from paddock.policy.glob import component_matches
from paddock.policy.load import writable_trees
from paddock.policy.reach import Reach
from paddock.session import Prepared
from paddock.session.answer import answer
from paddock.session.journal import require_usable
from paddock.session.making import require_makeable
from paddock.session.program import NESTED, interpreter_of
from paddock.way import follow

_DEFAULT_PATH = "/bin:/usr/bin"  # where execvp(3) looks when there is no PATH


@dataclass(frozen=True, slots=True, kw_only=True)
class NotStarted:
    """The command would not run. Exit code and words are those of the core."""

    exit_code: int
    message: str
    hint: str


def rehearse(prepared: Prepared, name: str, origin: Origin) -> NotStarted | None:
    """Raises what a run would be refused with; returns what the start of its command would fail with."""
    plan = prepared.plan
    require_makeable(prepared.policy, plan)
    Reach.require_recordable(
        origin.state_dir, [*writable_trees(prepared.policy), *map(follow, prepared.terrain.writable)]
    )
    if plan.journal:
        require_usable(plan.journal, origin.uid)
    # A directory that the run makes can not be entered before: then the fence is tried from where we stand.
    made = any(within(plan.workdir, place) for place in prepared.to_make())
    fence = replace(plan, workdir=plan.cwd) if made else plan
    found = locate(fence, name, plan.workdir, origin.environ)
    return None if found.failure is None else _not_started(name, found.failure, searched="/" not in name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Located:
    """``path``: the file that execve(2) would be given; ``failure``: what it would answer, None if it starts."""

    path: str | None
    failure: int | None


def locate(fence: Plan, name: str, directory: str, environ: Mapping[str, str]) -> Located:
    """The program of a name, as a shell that stands in ``directory`` behind the fence finds it."""
    searched = "/" not in name
    path = _search_path(fence.environment, environ)
    found = Located(path=None, failure=errno.ENOENT)
    for candidate in [os.path.join(place or ".", name) for place in path.split(":")] if searched else [name]:
        whole = os.path.join(directory, candidate)
        # Entering the fence enters the working directory: whatever keeps a run from it is raised here.
        met = _failure(fence, whole, searched=searched)
        if met is None:
            return Located(path=whole, failure=None)
        if met != errno.ENOENT:
            found = Located(path=whole, failure=met)
    return found


def _failure(plan: Plan, path: str, *, searched: bool, depth: int = 0) -> int | None:
    """What execve(2) would answer, as far as it can be known without executing; None: it starts."""
    answered = answer(plan, path, Operation.EXEC)
    if answered.tried.outcome == "missing":
        return errno.ENOENT
    if not answered.allowed:
        # A directory of PATH that can not be searched has nothing for us: that is "not found", not "denied".
        return errno.ENOENT if searched and not os.path.exists(path) else errno.EACCES
    interpreter = interpreter_of(path)
    if interpreter is None or depth == NESTED:
        return None
    return _failure(plan, os.path.join(plan.workdir, interpreter), searched=False, depth=depth + 1)


def _search_path(rules: EnvironmentRules | None, environ: Mapping[str, str]) -> str:
    """The PATH that the command itself will see."""
    given = environ.get("PATH", _DEFAULT_PATH)
    if rules is None:
        return given
    if "PATH" in rules.set:
        return rules.set["PATH"]
    passes = any(component_matches(pattern, "PATH") for pattern in rules.pass_)
    denied = any(component_matches(pattern, "PATH") for pattern in rules.deny)
    return given if "PATH" in rules.keep or (passes and not denied) else _DEFAULT_PATH


def _not_started(name: str, failure: int, *, searched: bool) -> NotStarted:
    if failure != errno.ENOENT:
        hint = "it is not executable, or the policy grants no execution there: `paddock why --op exec --path FILE`"
    elif searched:
        hint = "no directory of the command's PATH has it; check the name and the PATH that passes"
    else:
        hint = "check the path; a script also needs the interpreter of its first line"
    return NotStarted(
        exit_code=EXIT_NOT_FOUND if failure == errno.ENOENT else EXIT_NOT_EXECUTABLE,
        message=f"cannot run {name}: {os.strerror(failure)}",
        hint=hint,
    )
