"""A git worktree for a session, beside the repository. It is merged with plain git when the work is
done.
"""

from __future__ import annotations

import os
import subprocess

from paddock.errors import UsageError

# Disables programs that the repository makes git run.
_PLAIN = ("-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false")


def make_worktree(repository: str, branch: str) -> str:
    """Returns the directory ``REPOSITORY.worktrees/BRANCH``. An existing one is reused."""
    top = _git(repository, "rev-parse", "--show-toplevel")
    path = os.path.join(f"{top}.worktrees", branch.replace("/", "-"))
    if path in _listed(top):
        return path
    _git(top, "check-ref-format", "--branch", branch)
    known = _exists(top, f"refs/heads/{branch}")
    _git(top, "worktree", "add", "--quiet", *([path, branch] if known else ["-b", branch, path]))
    return path


def _listed(top: str) -> list[str]:
    lines = _git(top, "worktree", "list", "--porcelain").splitlines()
    return [line.removeprefix("worktree ") for line in lines if line.startswith("worktree ")]


def _exists(top: str, reference: str) -> bool:
    return (
        subprocess.run(
            [*_words(top), "rev-parse", "--verify", "--quiet", reference], capture_output=True
        ).returncode
        == 0
    )


def _words(directory: str) -> list[str]:
    return ["git", *_PLAIN, "-C", directory]


def _git(directory: str, *words: str) -> str:
    try:
        done = subprocess.run([*_words(directory), *words], capture_output=True, text=True)
    except FileNotFoundError:
        raise UsageError("worktrees need git, and git is not installed") from None
    if done.returncode != 0:
        raise UsageError(
            f"cannot create a worktree in {directory}: "
            f"{done.stderr.strip() or f'git {words[0]} failed'}"
        )
    return done.stdout.rstrip("\n")
