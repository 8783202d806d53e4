"""Applies changes to the workspace: staged beside their targets, synced, then renamed into place.

    1. record    the planned steps, before anything is changed
    2. stage     every new file under a temporary name in its directory;
                 a new directory together with its content
    3. sync      and record what is staged; a full disk ends here, and all staged files are removed
    4. commit    additions and changes in walk order, then deletions, children first:
                 a moved file is never missing
    5. modes     of directories, deepest first: a read-only directory can be filled first
    6. sync      and record the end: from here on the session can be discarded

Each step of 4 is atomic, and none relies on the earlier judgement. A new name is taken only if it
is free. An existing file is exchanged with its new version, and the file that comes out must be the
judged one. If it is not, the host changed it at the last moment, and it goes back. ``recover`` does
the same for an apply that was killed.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import secrets
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from paddock.workspace import system_calls
from paddock.workspace.apply_record import TEMPORARY, ApplyStep, Intent, Record
from paddock.workspace.change import (
    ROOT,
    Change,
    ChangeKind,
    FileVersion,
    Obstacle,
    TreeEntry,
    Type,
    above,
    inside,
)
from paddock.workspace.conflicts import Terms, is_clean
from paddock.workspace.copy import copy_entry
from paddock.workspace.dir_fd_access import entry, handle, opened_directory, parent_of, set_mode
from paddock.workspace.replace_file import LeftError, Roots, recover, settle

_OWNER = 0o700
# Every following operation would fail in the same way.
_HOPELESS = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EFBIG)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyOutcome:
    applied: tuple[Change, ...]
    left: tuple[Change, ...]  # each with its obstacle


def choose(changes: list[Change], terms: Terms) -> ApplyOutcome:
    """The effect of an apply: ``changes`` are judged."""
    wanted = [change for change in changes if terms.selection.holds(change)]
    free = [change for change in wanted if not change.obstacle]
    # A directory above a named path is created only if something is put into it.
    filled = {one for change in free for one in above(change.path)}
    named = terms.selection.paths or (ROOT,)
    applied = [c for c in free if c.path in filled or any(inside(c.path, one) for one in named)]
    return ApplyOutcome(
        applied=tuple(applied), left=tuple(change for change in wanted if change.obstacle)
    )


def apply(roots: Roots, changes: list[Change], terms: Terms, record: Record) -> ApplyOutcome:
    """``changes`` are judged under the same terms, and an interrupted apply was recovered."""
    chosen = choose(changes, terms)
    if not chosen.applied:
        return chosen
    late = _Application(roots=roots, terms=terms, record=record).carry_out(list(chosen.applied))
    return ApplyOutcome(
        applied=tuple(change for change in chosen.applied if change.path not in late),
        left=(*chosen.left, *late.values()),
    )


@dataclass(slots=True)
class _Placement:
    """One new object, and the content of a directory."""

    step: ApplyStep
    change: Change
    inside: list[Change] = field(default_factory=list)

    @property
    def all(self) -> Iterator[Change]:
        yield self.change
        yield from self.inside


class _Application:
    """One apply. ``left`` collects the changes that the kernel or the host prevented."""

    def __init__(self, *, roots: Roots, terms: Terms, record: Record) -> None:
        self.roots = roots
        self.terms = terms
        self.record = record
        self.token = secrets.token_hex(8)
        self.numbers = itertools.count()
        self.staged: dict[str, FileVersion] = {}
        self.left: dict[str, Change] = {}

    def carry_out(self, changes: list[Change]) -> dict[str, Change]:
        early, late = self._plan(changes)
        placements = [one for one in (*early, *late) if isinstance(one, _Placement)]
        removals = {
            change.path: self._step(change, places=False)
            for change in late
            if isinstance(change, Change)
        }
        modes = [change for change in changes if change.in_place or change.makes_directory]
        steps = (*(placement.step for placement in placements), *removals.values())
        directories = self._touched_directories(changes)
        self.record.intend(Intent(token=self.token, steps=steps, directories=directories))
        try:
            for placement in placements:
                self._stage(placement)
            for change in modes:
                if change.old and change.new and change.new.type is Type.FILE:
                    self.staged[change.path] = replace(
                        change.old.identity, mode=change.new.permissions
                    )
            system_calls.sync(self.roots.lower)
            self.record.stage(self.token, self.staged)
            for one in (*early, *late):
                if isinstance(one, _Placement):
                    self._commit_placement(one)
                else:
                    self._commit_removal(one, removals[one.path])
            for change in reversed(modes):
                self._commit_mode(change)
            system_calls.sync(self.roots.lower)
        except BaseException:
            recover(self.roots, self.record)
            raise
        if self.left:
            recover(self.roots, self.record)  # changes that could not be placed are still staged
        else:
            self.record.end(self.token)
        return self.left

    def _plan(self, changes: list[Change]) -> tuple[list[_Placement], list[_Placement | Change]]:
        """The changes that are placed first, and then removals and replacements of directories that
        must be emptied first.
        """
        early: list[_Placement] = []
        late: list[_Placement | Change] = []
        tops: dict[str, _Placement] = {}
        for change in changes:
            if change.in_place:
                continue
            if change.kind is ChangeKind.DELETED:
                late.append(change)
                continue
            top = next((tops[one] for one in above(change.path) if one in tops), None)
            if top:
                top.inside.append(change)
                continue
            placement = _Placement(step=self._step(change, places=True), change=change)
            if change.makes_directory:
                tops[change.path] = placement
            (late if change.takes_away_directory else early).append(placement)
        return early, late

    def _step(self, change: Change, *, places: bool) -> ApplyStep:
        return ApplyStep(
            path=change.path,
            temporary=f"{TEMPORARY}{self.token}-{next(self.numbers)}",
            places=places,
            old=change.old.identity if change.old else None,
            keep=change.overwrites,
        )

    def _touched_directories(self, changes: list[Change]) -> dict[str, tuple[int, ...]]:
        """Directories that only this session touched, with their current and future modes."""
        touched: dict[str, tuple[int, ...]] = {}
        for change in changes:
            both = [
                one.permissions
                for one in (change.old, change.new)
                if one and one.type is Type.DIRECTORY
            ]
            if both:
                touched[change.path] = (*both, _OWNER)
        for path in {next(above(change.path), ROOT) for change in changes} - touched.keys():
            found = self._directory(path)
            if found and is_clean(path, found, self.terms.started_ns, self.record):
                touched[path] = (found.permissions,)
        return touched

    def _directory(self, path: str) -> TreeEntry | None:
        try:
            with (
                parent_of(self.roots.lower, path) as (parent, name),
                opened_directory(name, parent) as fd,
            ):
                return TreeEntry.of(os.fstat(fd))
        except OSError:
            return None

    # stage

    def _stage(self, placement: _Placement) -> None:
        path = placement.change.path
        try:
            with parent_of(self.roots.lower, path) as (parent, _):
                self._make(placement.change, placement.step.temporary, parent)
                if placement.inside:
                    with opened_directory(placement.step.temporary, parent) as top:
                        for change in placement.inside:
                            self._stage_inside(change, change.path[len(path) + 1 :], top)
        except OSError as error:
            for change in placement.all:
                self._leave(change, error)

    def _stage_inside(self, change: Change, path: str, top: int) -> None:
        try:
            with parent_of(top, path) as (parent, name):
                self._make(change, name, parent)
        except OSError as error:
            self._leave(change, error)

    def _make(self, change: Change, name: str, parent: int) -> None:
        assert change.new is not None
        if change.new.type is Type.DIRECTORY:
            os.mkdir(name, _OWNER, dir_fd=parent)
        else:
            with parent_of(self.roots.upper, change.path) as (upper, upper_name):
                content = self.terms.contents.get(change.path)
                copy_entry(upper_name, upper, name, parent, change.new.mode, content)
            if change.kind in (ChangeKind.CHANGED, ChangeKind.MODE) and change.old:
                with contextlib.suppress(OSError):  # a group without membership
                    os.chown(name, -1, change.old.group, dir_fd=parent, follow_symlinks=False)
        made = entry(name, parent)
        if made is None:
            raise FileNotFoundError(errno.ENOENT, "disappeared while apply created it", name)
        self.staged[change.path] = made.identity

    # commit

    def _commit_placement(self, placement: _Placement) -> None:
        change, step = placement.change, placement.step
        if change.path in self.left:
            return
        try:
            with parent_of(self.roots.lower, change.path) as (parent, name):
                if change.old is None:
                    self._put_new(step, parent, name)
                else:
                    system_calls.exchange(step.temporary, name, parent)
                settle(self.roots, self.token, step, self.staged[change.path], parent, name)
        except (OSError, LeftError) as error:
            for one in placement.all:
                self._leave(one, error)

    def _put_new(self, step: ApplyStep, parent: int, name: str) -> None:
        try:
            system_calls.rename_new(step.temporary, name, parent)
        except FileExistsError:
            raise LeftError("created on the host during apply") from None

    def _commit_removal(self, change: Change, step: ApplyStep) -> None:
        try:
            with parent_of(self.roots.lower, change.path) as (parent, name):
                if change.takes_away_directory:
                    os.rmdir(name, dir_fd=parent)  # the kernel checks that it is empty
                    return
                system_calls.rename_new(name, step.temporary, parent)
                settle(self.roots, self.token, step, None, parent, name)
        except FileNotFoundError:  # already removed
            return
        except (OSError, LeftError) as error:
            self._leave(change, error)

    def _commit_mode(self, change: Change) -> None:
        assert change.new is not None
        if change.path in self.left:
            return
        try:
            with (
                parent_of(self.roots.lower, change.path) as (parent, name),
                handle(name, parent) as fd,
            ):
                facts = os.fstat(fd)
                expected = (
                    change.old.identity if change.kind is ChangeKind.MODE and change.old else None
                )
                if expected is None:
                    expected = self.staged[change.path]
                if not expected.same(TreeEntry.of(facts).identity):
                    raise LeftError
                # Never set-user-id. A directory keeps its set-group-id bit, which passes its group
                # to new files.
                special = (
                    facts.st_mode & (stat.S_ISGID | stat.S_ISVTX)
                    if stat.S_ISDIR(facts.st_mode)
                    else 0
                )
                set_mode(fd, change.new.permissions | special)
        except (OSError, LeftError) as error:
            self._leave(change, error)

    def _leave(self, change: Change, error: OSError | LeftError) -> None:
        if isinstance(error, OSError):
            if error.errno in _HOPELESS:
                raise error
            raced = error.errno in (
                errno.ELOOP,
                errno.ENOTDIR,
                errno.ENOENT,
                errno.ESTALE,
                errno.ENOTEMPTY,
                errno.EEXIST,
            )
            obstacle = Obstacle.CONFLICT if raced else Obstacle.FAILED
            reason = (
                f"the host changed it, or its directory, during apply ({error.strerror})"
                if raced
                else str(error.strerror)
            )
        else:
            obstacle, reason = Obstacle.CONFLICT, error.reason
        self.left[change.path] = replace(change, obstacle=obstacle, reason=reason)
