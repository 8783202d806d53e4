"""Directories for files that commands must not exchange: logs, control sockets."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator

from paddock.errors import PolicyError, UsageError
from paddock.executors.interface import CommandExecutor, WritesHost
from paddock.plan.path_containment import with_parents, within
from paddock.policy import Origin
from paddock.policy.trust.writable_history import WritableHistory
from paddock.text.path_walk import follow


def make_private_dir(prefix: str) -> tempfile.TemporaryDirectory[str]:
    """Makes a temporary directory where no sandboxed command of this user could ever write. TMPDIR
    may lead into a workspace.
    """
    if os.name != "posix":
        return tempfile.TemporaryDirectory(prefix=prefix)
    origin = Origin.of_process()
    for directory in _candidates(origin):
        if not _was_writable(directory, origin.writable_history):
            try:
                return tempfile.TemporaryDirectory(prefix=prefix, dir=directory)
            except OSError:  # this user cannot write there: try the next one
                continue
    # No grant makes it writable (host/installation.py).
    os.makedirs(origin.state_dir, mode=0o700, exist_ok=True)
    return tempfile.TemporaryDirectory(prefix=prefix, dir=origin.state_dir)


def _candidates(origin: Origin) -> Iterator[str]:
    yield tempfile.gettempdir()
    yield from ("/tmp", "/var/tmp")
    if runtime := origin.environ.get("XDG_RUNTIME_DIR"):
        yield runtime


def _was_writable(path: str, history: WritableHistory) -> bool:
    try:
        return history.holds(follow(path))
    except PolicyError:  # a directory of the path can not be examined
        return True


async def refuse_writable(
    path: str | os.PathLike[str], executor: CommandExecutor, workspace: str | None
) -> None:
    """Raises UsageError if commands can change where this path of the host leads."""
    written = os.fspath(path)
    if workspace is not None and any(
        within(os.path.realpath(on), workspace) for on in with_parents(os.path.abspath(written))
    ):
        raise UsageError(
            f"{written} is in the workspace, where a command could create a link",
            hint="choose a directory that commands cannot write",
        )
    if isinstance(executor, WritesHost) and await executor.can_write(written):
        raise UsageError(
            f"commands can write {written}, so they could create a link there",
            hint="choose a directory that commands cannot write",
        )
