"""Grants, denies and names → Files, as the tier can hold them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from paddock.host.model import Host
from paddock.host.surroundings import Terrain
from paddock.plan.denied_paths import DeniedPaths, closed_by
from paddock.plan.execution import hold_off
from paddock.plan.full_tier_files import SERVICES, grants_for
from paddock.plan.grants import (
    TMP,
    RequestedGrant,
    asked_of,
    merged,
    refuse_exposed_journal,
    refuse_workspace,
    temp_access,
)
from paddock.plan.landlock_files import Carving
from paddock.plan.model import Files, Level, Notice, Temp
from paddock.plan.names import names_of, short_names
from paddock.policy.model import Policy, Tier
from paddock.text.path_walk import Tree

# What the landlock tier leaves open where something can be written; SECURITY.md has the whole list.
_UNPROTECTED = "names that programs outside run later (.git/hooks, .envrc, .vscode …)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Laid:
    files: Files
    temp: Temp | None
    has_temp: bool  # there is a private temporary directory, in whichever way the tier makes it
    unheld: tuple[str, ...]  # what the tier can not hold and the policy can do without
    notices: tuple[Notice, ...]


def lay_out(
    policy: Policy,
    host: Host,
    terrain: Terrain,
    tier: Tier,
    *,
    strict: bool,
    journals: tuple[str, ...],
    chosen_journal: str | None,
) -> Laid:
    """``strict``: what can not be held is an error. ``journals``: the default one, those that
    earlier runs kept elsewhere, and this run's. ``chosen_journal``: a person named its place, so a
    bad place is their error and not ours to close.
    """
    notices: list[Notice] = []
    asked = hold_off(asked_of(policy.filesystem, notices), strict=strict, notices=notices)
    for one in asked:
        refuse_workspace(one, host)
        refuse_exposed_journal(one, chosen_journal)
    closed = closed_by(policy.filesystem, host, journals)
    match tier:
        case Tier.LANDLOCK:
            return _carved(policy, host, closed, asked, notices, strict=strict)
        case Tier.FULL:
            return _covered(policy, host, terrain, closed, asked, notices)


def _carved(
    policy: Policy,
    host: Host,
    closed: DeniedPaths,
    asked: list[RequestedGrant],
    notices: list[Notice],
    *,
    strict: bool,
) -> Laid:
    carving = Carving(closed=closed, strict=strict, notices=notices, unheld={})
    grants = merged(held for one in asked if (held := carving.grant(one)))
    unheld = [_UNPROTECTED] if any(one.writes and one.persons for one in asked) else []
    unheld += short_names(carving.unheld.values())
    notices += [
        Notice(
            level=Level.INFO,
            text=f"{deny.source}: deny {deny.pattern} is not enforced in the landlock tier",
        )
        for deny in carving.unheld.values()
        if not deny.source.builtin
    ]
    temp = temp_access(policy.filesystem)
    return Laid(
        files=Files(
            grants=grants,
            closed=closed.to_everything,
            unwritable=closed.to_writing,
            reached=_sorted(host.reached),
            deny=(),
            protect=(),
            opened=(),
        ),
        temp=Temp(parent=TMP, access=temp) if temp else None,
        has_temp=temp is not None,
        unheld=tuple(unheld),
        notices=tuple(notices),
    )


def _covered(
    policy: Policy,
    host: Host,
    terrain: Terrain,
    closed: DeniedPaths,
    asked: list[RequestedGrant],
    notices: list[Notice],
) -> Laid:
    temp = temp_access(policy.filesystem)
    grants = grants_for(asked, closed, terrain, notices, temp=temp)
    names = names_of(policy, host, terrain, closed, asked)
    notices += [Notice(level=Level.WARNING, text=text) for text in terrain.remarks]
    return Laid(
        files=Files(
            grants=merged(grants),
            closed=tuple(sorted({*closed.to_everything, *SERVICES})),
            unwritable=closed.to_writing,
            reached=_sorted(host.reached),
            deny=names.deny,
            deny_names=names.deny_names,
            protect=names.protect,
            opened=names.opened,
            flagged=names.flagged,
            packages=names.packages,
        ),
        temp=None,
        has_temp=temp is not None,
        unheld=(),
        notices=(*notices, *names.notices),
    )


def _sorted(trees: Iterable[Tree]) -> tuple[Tree, ...]:
    return tuple(sorted(trees, key=lambda tree: (tree.path, tree.identity or ())))
