"""Names that a place which shares the workspace has to hold: found by the same search as for the
fence.

The engine is told to mount something over each: itself and read-only for what git and tools obey,
nothing for what is denied. That holds for names that are there when the place starts, and for no
others.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace

from paddock.errors import HostError, PaddockError
from paddock.executors.interface import Failure, NotStarted
from paddock.launch.covers import Cover, CoverKind, covers_of
from paddock.plan.paths import within
from paddock.policy import Origin, Request
from paddock.policy.model import Tier

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
class HeldNames:
    """``unheld``: why nothing could be searched for. ``paths``: what is covered, as the host calls
    it. ``links``: the symlinks in git directories, and what they say.
    """

    mounts: tuple[Mount, ...] = ()
    paths: frozenset[str] = frozenset()
    links: frozenset[tuple[str, str]] = frozenset()
    unheld: str | None = None

    @property
    def note(self) -> str:
        return (
            LATER
            if self.unheld is None
            else f"protected and denied names are not covered here: {self.unheld}"
        )


def held_names(request: Request, workspace: str, inside: str, *, to_run: bool) -> HeldNames:
    """``inside``: what the place calls the workspace. What belongs to a linked worktree, and lies
    elsewhere, keeps its name: the worktree's ``.git`` says it.
    """
    from paddock.launch.prepare import prepare

    try:
        prepared = prepare(request, replace(Origin.of_process(), cwd=workspace), to_run=to_run)
        if prepared.plan.tier is not Tier.FULL or prepared.plan.files is None:
            return HeldNames(unheld="the scan needs user namespaces, and this machine denies them")
        searched = covers_of(prepared.plan)
    except HostError as error:
        return HeldNames(unheld=error.message)
    except PaddockError as error:
        raise NotStarted(error.message, failure=Failure.UNAVAILABLE, hint=error.hint) from error
    common = [one.read for one in prepared.terrain.openings if not within(one.read, workspace)]
    shared = [*common, workspace]
    mounts = [
        Mount(
            source=grant.path, target=grant.path, directory=True, read_only=grant.access == "read"
        )
        for grant in sorted(prepared.plan.files.grants, key=lambda grant: grant.path)
        if any(within(grant.path, place) for place in common) and os.path.isdir(grant.path)
    ]
    found = [one for one in searched.covers if any(within(one.path, place) for place in shared)]
    found.sort(key=lambda one: one.path)
    mounts += [_mount(cover, workspace, inside) for cover in found]
    links = frozenset(
        link for link in searched.links if any(within(link[0], place) for place in shared)
    )
    return HeldNames(
        mounts=tuple(mounts), paths=frozenset(cover.path for cover in found), links=links
    )


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


def volumes(names: HeldNames, empty: str) -> Iterator[str]:
    """As ``--volume`` takes them. ``empty``: an empty directory. A colon parts the fields there."""
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
