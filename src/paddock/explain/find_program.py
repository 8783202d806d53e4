"""Finds the program of a command inside the sandbox, and checks whether the files let it start."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping, Sequence

from paddock.explain.ask_gate import Exec, JudgedExec, judge_exec
from paddock.explain.file_answer import answer, judge_for
from paddock.explain.file_rules import Judge, Operation
from paddock.frozen import dataclass
from paddock.plan import Plan
from paddock.plan.plan import EnvironmentRules
from paddock.policy.glob import component_matches
from paddock.policy.model import Action

_DEFAULT_PATH = "/bin:/usr/bin"  # the search path of execvp(3) without PATH

_SHELL = "/bin/sh"


@dataclass(frozen=True, slots=True, kw_only=True)
class LocatedProgram:
    """``path``: the file for execve(2). ``failure``: its errno; None: it starts. ``judged``: the
    answer of the core; None: there is no such file.
    """

    path: str
    failure: int | None
    judged: JudgedExec


def locate(
    plan: Plan, words: Sequence[str], directory: str, environ: Mapping[str, str]
) -> LocatedProgram | None:
    """The program of a command, as a shell in ``directory`` inside the sandbox finds it."""
    return _locate(plan, judge_for(plan), words, directory, environ)


def _locate(
    plan: Plan, judge: Judge, words: Sequence[str], directory: str, environ: Mapping[str, str]
) -> LocatedProgram | None:
    name = words[0]
    searched = "/" not in name
    path = _search_path(plan.environment, environ)
    found: LocatedProgram | None = None
    for candidate in (
        [os.path.join(directory or ".", name) for directory in path.split(":")]
        if searched
        else [name]
    ):
        # Entering the sandbox enters the working directory, so an error there is raised here.
        own = _failure(plan, judge, os.path.join(directory, candidate), searched=searched)
        if own == errno.ENOENT:
            continue
        judged = judge_exec(plan, Exec(path=candidate, argv=tuple(words), cwd=directory))
        others = (_failure(plan, judge, os.path.join(directory, needed)) for needed in judged.needs)
        failure = own or next(filter(None, others), None) or judged.failure
        if failure == errno.ENOEXEC and candidate != _SHELL:
            # As execvp(3) and every shell do: a file that is not a program is run as a shell
            # script.
            return _locate(plan, judge, [_SHELL, candidate, *words[1:]], directory, environ)
        if failure is None and not _is_denied(judged):
            return LocatedProgram(path=candidate, failure=None, judged=judged)
        # A file that may not be executed does not end the search, whatever refuses it.
        if failure != errno.ENOENT:
            found = found or LocatedProgram(path=candidate, failure=failure, judged=judged)
    return found


def _is_denied(judged: JudgedExec) -> bool:
    return judged.decision is not None and judged.decision.action is Action.DENY


def _failure(plan: Plan, judge: Judge, path: str, *, searched: bool = False) -> int | None:
    """The errno of execve(2) for one file, as far as it can be known without executing it; None: it
    starts.
    """
    try:
        os.stat(path)
    except OSError as error:
        if error.errno == errno.ELOOP:
            return errno.ELOOP
    answered = answer(plan, path, Operation.EXEC, judge)
    if answered.attempt.outcome == "missing":
        return errno.ENOENT
    if not answered.allowed:
        # A directory of PATH that can not be searched counts as "not found", not as "denied".
        return errno.ENOENT if searched and not os.path.exists(path) else errno.EACCES
    return None


def _search_path(rules: EnvironmentRules | None, environ: Mapping[str, str]) -> str:
    """The PATH that the command will see."""
    given = environ.get("PATH", _DEFAULT_PATH)
    if rules is None:
        return given
    if "PATH" in rules.set:
        return rules.set["PATH"]
    passes = any(component_matches(pattern, "PATH") for pattern in rules.pass_)
    denied = any(component_matches(pattern, "PATH") for pattern in rules.deny)
    return given if "PATH" in rules.keep or (passes and not denied) else _DEFAULT_PATH
