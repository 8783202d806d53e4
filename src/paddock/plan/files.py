"""Compiles grants, denies and names to Files, as the tier can enforce them."""

from __future__ import annotations

from collections.abc import Iterable

from paddock.frozen import dataclass
from paddock.host.facts import Host
from paddock.host.grant_targets import Terrain
from paddock.plan.denied_paths import DeniedPaths, denied_paths_of
from paddock.plan.full_tier_files import SERVICES, grants_for
from paddock.plan.grants import (
    TMP,
    RequestedGrant,
    merged,
    refuse_exposed_journal,
    refuse_workspace,
    requested_grants,
    temp_access,
)
from paddock.plan.landlock_files import Carving
from paddock.plan.name_patterns import NamePatterns, names_of, short_names
from paddock.plan.noexec_grants import hold_off
from paddock.plan.plan import Files, Level, Notice, Temp
from paddock.policy.model import Policy, Sourced, Tier
from paddock.text.path_walk import Tree

# The gap of a run whose writes are not judged. Mounts of the full tier protect existing names.
_UNPROTECTED = "names that programs outside run later (.git/hooks, .envrc, .vscode …)"
UNPROTECTED_NAMES = {Tier.LANDLOCK: _UNPROTECTED, Tier.FULL: f"new {_UNPROTECTED}"}


@dataclass(frozen=True, slots=True, kw_only=True)
class FileLayout:
    files: Files
    temp: Temp | None
    has_temp: bool  # the run has a private temporary directory, made as the tier does it
    unheld: tuple[str, ...]  # rules that the tier can not enforce and the policy does not require
    written: tuple[str, ...]  # paths of the user that are granted for writing
    notices: tuple[Notice, ...]


def lay_out(
    policy: Policy,
    host: Host,
    terrain: Terrain,
    tier: Tier,
    *,
    strict: bool,
    intercepts: bool,
    journals: tuple[str, ...],
    chosen_journal: Sourced[str] | None,
) -> FileLayout:
    """``strict``: a rule that can not be enforced is an error. ``intercepts``: the core can answer
    system calls. ``journals``: the default one, those of earlier runs elsewhere, and that of this
    run. ``chosen_journal``: the user named its path, so a bad path is an error of the user.
    """
    notices: list[Notice] = []
    requested = hold_off(
        requested_grants(policy.filesystem, notices), strict=strict, notices=notices
    )
    for one in requested:
        refuse_workspace(one, host)
        if chosen_journal:
            refuse_exposed_journal(one, chosen_journal)
    closed = denied_paths_of(policy.filesystem, host, journals)
    match tier:
        case Tier.LANDLOCK:
            names = names_of(policy, host, terrain, closed, requested) if intercepts else None
            if names:
                notices += _remarks(terrain)
            return _carved(policy, host, closed, requested, names, notices, strict=strict)
        case Tier.FULL:
            return _covered(policy, host, terrain, closed, requested, notices)


def _remarks(terrain: Terrain) -> list[Notice]:
    return [Notice(level=Level.WARNING, text=text) for text in terrain.remarks]


def _carved(
    policy: Policy,
    host: Host,
    closed: DeniedPaths,
    requested: list[RequestedGrant],
    names: NamePatterns | None,
    notices: list[Notice],
    *,
    strict: bool,
) -> FileLayout:
    carving = Carving(denied_paths=closed, strict=strict, notices=notices, unheld={})
    grants = merged(held for one in requested if (held := carving.grant(one)))
    against = "against reading " if names else ""
    notices += [
        Notice(
            level=Level.INFO,
            text=f"{deny.source}: deny {deny.pattern} is not enforced {against}"
            "in the landlock tier",
        )
        for deny in carving.unheld.values()
        if not deny.source.builtin
    ]
    temp = temp_access(policy.filesystem)
    return FileLayout(
        files=Files(
            grants=grants,
            closed=closed.to_everything,
            unwritable=closed.to_writing,
            reached=_sorted(host.previously_writable),
            deny=names.deny if names else (),
            deny_names=names.deny_names if names else (),
            protect=names.protect if names else (),
            opened=names.opened if names else (),
            flagged=names.flagged if names else (),
            packages=names.packages if names else (),
            git_remotes=names.git_remotes if names else (),
        ),
        temp=Temp(parent=TMP, access=temp) if temp else None,
        has_temp=temp is not None,
        unheld=tuple(short_names(carving.unheld.values())),
        written=tuple(one.path for one in requested if one.writes and one.persons),
        notices=tuple(notices),
    )


def _covered(
    policy: Policy,
    host: Host,
    terrain: Terrain,
    closed: DeniedPaths,
    requested: list[RequestedGrant],
    notices: list[Notice],
) -> FileLayout:
    temp = temp_access(policy.filesystem)
    grants = grants_for(requested, closed, terrain, notices, temp=temp)
    names = names_of(policy, host, terrain, closed, requested)
    notices += _remarks(terrain)
    return FileLayout(
        files=Files(
            grants=merged(grants),
            closed=tuple(sorted({*closed.to_everything, *SERVICES})),
            unwritable=closed.to_writing,
            reached=_sorted(host.previously_writable),
            deny=names.deny,
            deny_names=names.deny_names,
            protect=names.protect,
            opened=names.opened,
            flagged=names.flagged,
            packages=names.packages,
            git_remotes=names.git_remotes,
        ),
        temp=None,
        has_temp=temp is not None,
        unheld=(),
        written=tuple(one.path for one in requested if one.writes and one.persons),
        notices=(*notices, *names.notices),
    )


def _sorted(trees: Iterable[Tree]) -> tuple[Tree, ...]:
    return tuple(sorted(trees, key=lambda tree: (tree.path, tree.identity or ())))
