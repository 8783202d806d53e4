"""Names in the workspace that an executor must cover, found by the same search as for the sandbox.

The engine mounts something over each name: the object itself, read-only, if git or tools obey it,
and an empty object if it is denied. This covers only names that exist when the executor starts.
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
    "protected and denied names that were there at the start are held; those that appear later are not: "
    "look at them before git or another tool of the host runs in the workspace"
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
    """``unsearched``: the reason why there was no search. ``paths``: the covered paths of the host.
    ``links``: the symlinks in git directories, and their targets.
    """

    mounts: tuple[Mount, ...] = ()
    paths: frozenset[str] = frozenset()
    links: frozenset[tuple[str, str]] = frozenset()
    unsearched: str | None = None

    @property
    def note(self) -> str:
        return (
            LATER
            if self.unsearched is None
            else f"protected and denied names are not held here: {self.unsearched}"
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
                unsearched="the search needs user namespaces, which this machine does not give"
            )
        searched = covers_of(prepared.plan)
    except HostError as error:
        return CoveredNames(unsearched=error.message)
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
    return CoveredNames(
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


def volumes(names: CoveredNames, empty: str) -> Iterator[str]:
    """As ``--volume`` takes them, with colons between the fields. ``empty``: an empty directory."""
    for mount in names.mounts:
        source = mount.source or (empty if mount.directory else os.devnull)
        if ":" in source or ":" in mount.target:
            raise NotStarted(
                f"{mount.target}: it has to be held, and an engine can not be told a name with a colon",
                failure=Failure.UNAVAILABLE,
                hint="rename it, or its directory",
            )
        yield f"{source}:{mount.target}{':ro' if mount.read_only else ''}"
