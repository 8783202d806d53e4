"""Where the program of a name is, behind the fence, and whether the files let it start."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from dataclasses import dataclass

from paddock.plan import Plan
from paddock.plan.judge import Operation
from paddock.plan.model import EnvironmentRules
from paddock.policy.glob import component_matches
from paddock.session.answer import answer
from paddock.session.program import NESTED, interpreter_of

_DEFAULT_PATH = "/bin:/usr/bin"  # where execvp(3) looks when there is no PATH


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
