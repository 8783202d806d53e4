"""Names in the workspace that an executor must cover, found by the same search as for the sandbox.

The engine mounts something over each name: the object itself, read-only, if git or tools obey it,
and an empty object if it is denied. This covers only names that exist when the executor starts.

An engine resolves every path again, and follows symlinks. So no symlink is ever handed to it.
``check_mounts`` compares what the engine mounted with what was meant.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from paddock.errors import HostError, PaddockError
from paddock.executors.interface import Failure, NotStarted
from paddock.launch.found_covers import Cover, CoverKind, covers_of
from paddock.plan.path_containment import within
from paddock.policy import Origin, Request
from paddock.policy.model import Tier
from paddock.text.path_walk import Identity

Location = tuple[str, str]
"""The device of a file system, and a path in it. No symlink is a part of such a path."""

LATER = (
    "only protected and denied names that exist at the start are covered; check new ones before "
    "git or another host tool runs in the workspace"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """``source`` None: an empty file or directory."""

    source: str | None
    target: str
    directory: bool
    read_only: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CoveredNames:
    """``uncovered``: the reason why names are not covered. ``objects``: the object that has each
    name, by its path on the host. ``links``: the symlinks in git directories, and their targets.
    """

    mounts: tuple[Mount, ...] = ()
    objects: Mapping[str, Identity | None] = field(default_factory=dict)
    links: frozenset[tuple[str, str]] = frozenset()
    uncovered: str | None = None

    @property
    def note(self) -> str:
        return (
            LATER
            if self.uncovered is None
            else f"protected and denied names are not covered here: {self.uncovered}"
        )


def covered_names(request: Request, workspace: str, inside: str, *, to_run: bool) -> CoveredNames:
    """``inside``: the path of the workspace inside. Objects of a linked worktree that are elsewhere
    keep their path, because the ``.git`` of the worktree contains it.
    """
    from paddock.launch.prepare import prepare

    try:
        prepared = prepare(request, replace(Origin.of_process(), cwd=workspace), to_run=to_run)
        if prepared.plan.tier is not Tier.FULL or prepared.plan.files is None:
            return CoveredNames(
                uncovered="the scan needs user namespaces, and this machine denies them"
            )
        searched = covers_of(prepared.plan)
    except HostError as error:
        return CoveredNames(uncovered=error.message)
    except PaddockError as error:
        raise NotStarted(error.message, failure=Failure.UNAVAILABLE, hint=error.hint) from error
    common = [one.read for one in prepared.terrain.openings if not within(one.read, workspace)]
    shared = [*common, workspace]
    mounts = [
        Mount(
            source=grant.path, target=grant.path, directory=True, read_only=grant.access == "read"
        )
        for grant in sorted(prepared.plan.files.grants, key=lambda grant: grant.path)
        if any(within(grant.path, tree) for tree in common) and os.path.isdir(grant.path)
    ]
    for mount in mounts:
        _check_straight(mount.target, common)
    found = [one for one in searched.covers if any(within(one.path, tree) for tree in shared)]
    straight = [one for one in found if _link_on_path(one.path, shared) is None]
    linked = sorted({one.path for one in found} - {one.path for one in straight})
    mounts += [_mount(cover, workspace, inside) for cover in _with_pins(straight, shared)]
    links = frozenset(
        link for link in searched.links if any(within(link[0], tree) for tree in shared)
    )
    return CoveredNames(
        mounts=tuple(mounts),
        objects={cover.path: identity_at(cover.path) for cover in found},
        links=links,
        uncovered=f"an engine cannot hold a symlink: {', '.join(linked)}" if linked else None,
    )


def _with_pins(covers: list[Cover], shared: list[str]) -> list[Cover]:
    """Parents first, and each directory above a cover too: a mount of its own keeps a directory
    from being moved away together with the covers in it.
    """
    kinds = {cover.path: cover.kind for cover in covers}
    for cover in covers:
        above = os.path.dirname(cover.path)
        while above not in shared and any(within(above, tree) for tree in shared):
            kinds.setdefault(above, CoverKind.PIN)
            above = os.path.dirname(above)
    closed = [path for path, kind in kinds.items() if kind is not CoverKind.PIN]
    return [
        Cover(path=path, kind=kind)
        for path, kind in sorted(kinds.items())
        # Below a read-only or empty mount nothing can be moved.
        if kind is not CoverKind.PIN or not any(within(path, tree) for tree in closed)
    ]


def _link_on_path(path: str, shared: list[str]) -> str | None:
    """The first symlink from the shared directory to the end of the path, both included."""
    at = os.path.dirname(min((tree for tree in shared if within(path, tree)), key=len))
    for name in os.path.relpath(path, at).split("/"):
        at = os.path.join(at, name)
        if os.path.islink(at):
            return at
    return None


def _check_straight(path: str, common: list[str]) -> None:
    link = _link_on_path(path, common)
    if link is not None:
        raise NotStarted(
            f"{link} is a symlink, and git writes through it: the container is not started",
            failure=Failure.UNAVAILABLE,
            hint=f"see where it leads (ls -l {shlex.quote(link)}), and remove it",
        )


def identity_at(path: str) -> Identity | None:
    try:
        return Identity.of(os.lstat(path))
    except FileNotFoundError:
        return None


def _mount(cover: Cover, workspace: str, inside: str) -> Mount:
    target = cover.path
    if within(cover.path, workspace):
        target = os.path.join(inside, os.path.relpath(cover.path, workspace))
    return Mount(
        source=None if cover.kind is CoverKind.MASK else cover.path,
        target=target,
        directory=os.path.isdir(cover.path),
        read_only=cover.kind is not CoverKind.PIN,
    )


def check_mounts(names: CoveredNames, pid: int) -> None:
    """Compare the mounts of the container whose first process is ``pid`` with what was meant. A
    command of another session may have exchanged a directory and a symlink since the search.
    """
    own, theirs = _mount_table("self"), _mount_table(str(pid))
    for mount in names.mounts:
        at = theirs.get(mount.target)
        if at is None or (mount.source is not None and at != _location(mount.source, own)):
            raise NotStarted(
                f"{mount.target} is not what the container has there: it was moved or replaced "
                "while the container started",
                failure=Failure.UNAVAILABLE,
                hint="start it again when no other command changes the workspace",
            )


def _mount_table(process: str) -> dict[str, Location]:
    """What lies at each mount point (proc_pid_mountinfo(5)). The last one is on top."""
    table = {}
    with open(f"/proc/{process}/mountinfo", "rb") as file:
        for line in file:
            _, _, device, root, point, *_ = (_unescaped(word) for word in line.split())
            table[point] = (device, root)
    return table


def _unescaped(word: bytes) -> str:
    plain = re.sub(rb"\\([0-7]{3})", lambda found: bytes([int(found[1], 8)]), word)
    return os.fsdecode(plain)


def _location(path: str, table: dict[str, Location]) -> Location:
    point = path
    while point not in table:
        point = os.path.dirname(point)
    device, root = table[point]
    return device, os.path.normpath(os.path.join(root, os.path.relpath(path, point)))


def volumes(names: CoveredNames, empty: str) -> Iterator[str]:
    """As ``--volume`` takes them, with colons between the fields. ``empty``: an empty directory."""
    for mount in names.mounts:
        source = mount.source or (empty if mount.directory else os.devnull)
        if ":" in source or ":" in mount.target:
            raise NotStarted(
                f"{mount.target}: this name must be covered, and a container engine cannot mount "
                "a name with a colon",
                failure=Failure.UNAVAILABLE,
                hint="rename it, or its directory",
            )
        yield f"{source}:{mount.target}{':ro' if mount.read_only else ''}"
