"""The end of each step of an apply: the file that was moved aside is deleted only if it is known.

The same function decides directly after a step and after a crash, so both follow one rule.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil

from paddock.frozen import dataclass
from paddock.workspace import system_calls
from paddock.workspace.apply_record import ApplyStep, Record
from paddock.workspace.change import FileVersion, Type
from paddock.workspace.copy import copy_entry
from paddock.workspace.dir_fd_access import DIRECTORY, entry, parent_of, remove

HOST_VERSIONS_DIR = "kept"


@dataclass(frozen=True, slots=True, kw_only=True)
class Roots:
    """Descriptors of the three directories of a session."""

    upper: int
    lower: int
    state: int  # session.json, the record, kept versions


class LeftError(Exception):
    """The host changed the object first."""

    def __init__(
        self, reason: str = "changed on the host during apply", *, stranded: bool = False
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.stranded = stranded  # a version of the host had to stay under a temporary name


def recover(roots: Roots, record: Record) -> list[str]:
    """Settles what an interrupted apply left. Returns messages about what could not be settled."""
    if record.unfinished is None:
        return []
    staged = record.staged or {}
    problems = []
    for step in record.unfinished.steps:
        try:
            with parent_of(roots.lower, step.path) as (parent, name):
                system_calls.mend(step.temporary, name, parent)
                settle(roots, record.unfinished.token, step, staged.get(step.path), parent, name)
        except LeftError as left:
            if left.stranded:
                problems.append(f"{step.path}: {left.reason}")
        except OSError as error:
            # Its directory is gone or already replaced, so nothing is left there.
            if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                problems.append(f"{step.path}: {error.strerror}")
    record.end(record.unfinished.token)
    return problems


def settle(
    roots: Roots, token: str, step: ApplyStep, staged: FileVersion | None, parent: int, name: str
) -> None:
    """Handles the object under the temporary name: our own file and the judged file of the host are
    removed, any other goes back.
    """
    aside = entry(step.temporary, parent)
    if aside is None:
        return
    judged = step.old is not None and step.old.same(aside.identity)
    if step.places and (aside.inode == staged.inode if staged else not judged):
        remove_own(step.temporary, parent)
        raise LeftError
    reason = "changed on the host during apply"
    if judged:
        try:
            if step.keep and aside.type in (Type.FILE, Type.LINK):
                _keep(roots.state, token, step, parent)
            remove(step.temporary, parent)
            return
        # the host put something into the directory, or there is no room to keep the file
        except OSError as error:
            reason = f"cannot remove the host's version: {error.strerror}"
    now = entry(name, parent)
    if now is None:
        system_calls.rename_new(step.temporary, name, parent)
    elif staged and now.inode == staged.inode:
        system_calls.exchange(step.temporary, name, parent)
        remove_own(step.temporary, parent)
    else:  # a third version appeared: nothing is deleted
        raise LeftError(f"{reason}; an earlier version is now {step.temporary}", stranded=True)
    raise LeftError(reason)


def remove_own(name: str, parent: int) -> None:
    found = entry(name, parent)
    if found and found.type is Type.DIRECTORY:
        shutil.rmtree(name, dir_fd=parent)  # by descriptors, and not deeper than a scan goes
    else:
        os.unlink(name, dir_fd=parent)


def _keep(state: int, token: str, step: ApplyStep, parent: int) -> None:
    """Copies the host's version to the session's state before it leaves the workspace."""
    parts = [HOST_VERSIONS_DIR, token, *step.path.split("/")]
    name = parts.pop()
    fd = os.dup(state)
    try:
        for part in parts:
            with contextlib.suppress(FileExistsError):
                os.mkdir(part, 0o700, dir_fd=fd)
            child = os.open(part, DIRECTORY, dir_fd=fd)
            os.close(fd)
            fd = child
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=fd)  # left by an interrupted apply
        copy_entry(step.temporary, parent, name, fd, None)
        system_calls.sync(fd)
    finally:
        os.close(fd)
