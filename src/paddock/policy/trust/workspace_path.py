"""The path of a workspace, and the links on it.

A sandboxed command can exchange a directory for a link. A later run at that path would then work in
a directory that the command has chosen, and open it. So a link counts only if no command could have
made it. A link counts by the directory that it is in.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping

from paddock.errors import UsageError
from paddock.policy.trust.writable_history import WritableHistory
from paddock.text.path_walk import PathWalk, ResolvedPath, follow


def resolved_workspace(path: str | os.PathLike[str], history: WritableHistory) -> str:
    """The path without links."""
    walk = follow(os.path.join(current_directory(), os.fspath(path)))
    _refuse_planted(walk, history, f"the workspace {os.fspath(path)}")
    return walk.end.path


def require_honest_cwd(cwd: str, environ: Mapping[str, str], history: WritableHistory) -> None:
    """``$PWD`` is the path that the user typed, and ``cwd`` the directory that it has led to."""
    shown = environ.get("PWD", "")
    if shown == cwd or not os.path.isabs(shown):
        return
    try:
        is_same = os.path.samefile(shown, cwd)
    except OSError:
        return
    if is_same:
        _refuse_planted(follow(shown), history, f"the current directory {shown}")


def current_directory() -> str:
    try:
        cwd = os.getcwd()
    except FileNotFoundError:
        raise UsageError(
            "the current directory no longer exists",
            hint="change to a directory that exists, then try again",
        ) from None
    except OSError as error:
        raise UsageError(
            f"cannot get the path of the current directory: {error.strerror}"
        ) from None
    if not cwd.startswith("/"):
        raise UsageError(f"the current directory lies outside this mount namespace: {cwd!r}")
    return cwd


def _refuse_planted(walk: PathWalk, history: WritableHistory, what: str) -> None:
    for link in walk.links:
        if _is_planted(link, history):
            raise UsageError(
                f"{what} leads through the symlink {link.path}, which a sandboxed command could "
                f"have made, to {walk.end.path}",
                hint=f"if you want to work there, type `cd {shlex.quote(walk.end.path)}` or give "
                "that path",
            )


def _is_planted(link: ResolvedPath, history: WritableHistory) -> bool:
    directory = os.path.dirname(link.path)
    return any(tree.names(directory) or tree.identity in link.above for tree in history.trees)
