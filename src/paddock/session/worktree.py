"""A git worktree for a session, beside the repository. It is merged with plain git when the work is
done.

Commands of earlier sessions may have written the configuration of the repository. So git outside of
the sandbox creates no file of a commit: filters would run then. A sandbox does that. They may also
have written a program ``git`` into a directory of PATH. So only a git that no sandboxed command
could write is started outside.
"""

from __future__ import annotations

import asyncio
import os
import subprocess

from paddock.errors import UsageError
from paddock.executors.run import run
from paddock.executors.sandbox import SandboxExecutor
from paddock.policy import GrantFlag, Origin, Request
from paddock.policy.model import Access, Tier
from paddock.policy.trust import host_commands
from paddock.text.path_walk import follow

# Disables programs that the repository makes git run.
_PLAIN = ("-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false")
# A partial clone fetches missing objects, by programs that its configuration names.
_NO_FETCH = {"GIT_NO_LAZY_FETCH": "1", "GIT_ALLOW_PROTOCOL": "none"}
_GIT_TIMEOUT_S = 60.0  # a command can leave a FIFO where git expects a file
_CHECKOUT_TIMEOUT_S = 600.0


async def make_worktree(repository: str, branch: str) -> str:
    """Returns the directory ``REPOSITORY.worktrees/BRANCH``. An existing one is reused."""
    path, new = await asyncio.to_thread(_add, repository, branch)
    if new:
        await _check_out(path)
    return path


def _add(repository: str, branch: str) -> tuple[str, bool]:
    """Adds the worktree without its files. False: it exists already."""
    top = _top(repository)
    path = os.path.join(f"{top}.worktrees", branch.replace("/", "-"))
    _refuse_links(path)
    if path in _listed(top):
        return path, False
    _git(top, "check-ref-format", "--branch", branch)
    known = _exists(top, f"refs/heads/{branch}")
    named = [path, branch] if known else ["-b", branch, path]
    _git(top, "worktree", "add", "--quiet", "--no-checkout", *named)
    _refuse_links(path)
    _git(path, "read-tree", "HEAD")
    return path, True


def _top(repository: str) -> str:
    """The repository itself. A file ``.git`` and ``core.worktree`` can lead git elsewhere, and a
    command can write them in a directory below its workspace.
    """
    top = _git(repository, "rev-parse", "--show-toplevel")
    common = _git(repository, "rev-parse", "--path-format=absolute", "--git-common-dir")
    if top != repository:
        raise UsageError(
            f"{repository} is not the top of a git repository: git works in {top} there",
            hint="give the top of the repository as the workspace",
        )
    if common != os.path.join(top, ".git") or os.path.islink(common):
        raise UsageError(
            f"the git directory of {repository} is {os.path.realpath(common)}: worktrees are made "
            "from a main repository",
            hint="give the top of the main repository as the workspace",
        )
    return top


def _refuse_links(path: str) -> None:
    walk = follow(path)
    if walk.links:
        raise UsageError(
            f"the worktree {path} leads through the symlink {walk.links[0].path}",
            hint="look where the link leads, and remove it",
        )


async def _check_out(path: str) -> None:
    """Creates the files of the index. A commit may contain protected names, so all of them are open
    in the new directory. In the landlock tier, because the full tier removes new protected names.
    """
    common = os.path.realpath(os.path.join(path, _git(path, "rev-parse", "--git-common-dir")))
    repository = GrantFlag(access=Access.READ, pattern=f"{common}/**", flag="worktree")
    request = Request(
        profiles=("ai-agent",),
        tier=Tier.LANDLOCK,
        grants=(repository,),
        open_protected=(f"{path}/**",),
        command="/bin/sh",
    )
    sandbox = SandboxExecutor(request, workspace=path)
    try:
        done = await run(
            sandbox,
            ["git", *_PLAIN, "checkout-index", "--all", "--quiet"],
            timeout_s=_CHECKOUT_TIMEOUT_S,
        )
    finally:
        await sandbox.dispose()
    if not done.ok:
        raise UsageError(
            f"cannot check out the files of the worktree {path} in a sandbox: "
            f"{done.error or done.stderr.strip()}",
            hint=f"if you trust the configuration of the repository: git -C {path} reset --hard",
        )


def _listed(top: str) -> list[str]:
    lines = _git(top, "worktree", "list", "--porcelain").splitlines()
    return [line.removeprefix("worktree ") for line in lines if line.startswith("worktree ")]


def _exists(top: str, reference: str) -> bool:
    return _run(top, "rev-parse", "--verify", "--quiet", reference).returncode == 0


def _git(directory: str, *words: str) -> str:
    done = _run(directory, *words)
    if done.returncode != 0:
        raise UsageError(
            f"cannot create a worktree in {directory}: "
            f"{done.stderr.strip() or f'git {words[0]} failed'}"
        )
    return done.stdout.rstrip("\n")


def _run(directory: str, *words: str) -> subprocess.CompletedProcess[str]:
    try:
        git = host_commands.command(["git"], os.environ, Origin.of_process().writable_history)
        return subprocess.run(
            [*git.argv, *_PLAIN, "-C", directory, *words],
            capture_output=True,
            text=True,
            env={**git.environ, **_NO_FETCH},
            timeout=_GIT_TIMEOUT_S,
        )
    except host_commands.Planted as planted:
        raise UsageError(
            f"worktrees need git, and a sandboxed command could have written {planted}"
        ) from None
    except FileNotFoundError:
        raise UsageError("worktrees need git, and git is not installed") from None
    except subprocess.TimeoutExpired:
        raise UsageError(
            f"git {words[0]} in {directory} did not end within {_GIT_TIMEOUT_S:.0f} s",
            hint="look for a FIFO in the git directory: find .git -type p",
        ) from None
