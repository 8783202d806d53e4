"""The ids of a container's users on the host. Pure: accounts in, id ranges out.

Root gets a range that no account of the machine has, so the root of a container is no user of the
host. Another user can map only the own id, and the command gets that id; the ranges in /etc/subuid
fill the rest.
"""

from __future__ import annotations

from collections.abc import Iterable

from paddock.errors import PolicyError
from paddock.frozen import dataclass
from paddock.host.accounts import Accounts, IdSpan
from paddock.plan.plan import IdRange, Mappers

IDS = 65536
# Above all ranges that distributions and container managers assign; the last range that fits a
# signed number.
SHIFTED_FIRST = 0x7FFF0000


@dataclass(frozen=True, slots=True, kw_only=True)
class IdMaps:
    uid_map: tuple[IdRange, ...]
    gid_map: tuple[IdRange, ...]
    mappers: Mappers | None

    def outside(self, uid: int) -> int:
        spans = (one for one in self.uid_map if one.inside <= uid < one.inside + one.count)
        return next(one.outside + uid - one.inside for one in spans)


def identity_of(
    accounts: Accounts, *, caller: int, uid: int, gid: int, same: bool, where: str
) -> IdMaps:
    """``uid`` and ``gid``: those of the command, inside. ``same``: use the same numbers outside."""
    if caller == 0:
        for name, number in (("uid", uid), ("gid", gid)):
            if number >= IDS:
                raise PolicyError(
                    f"{name} {number} is too large: a container has {IDS} ids", where=where
                )
        return IdMaps(
            uid_map=(
                IdRange(inside=0, outside=0 if same else _first(accounts.sub_uids), count=IDS),
            ),
            gid_map=(
                IdRange(inside=0, outside=0 if same else _first(accounts.sub_gids), count=IDS),
            ),
            mappers=None,
        )
    if same and (uid, gid) != (caller, accounts.caller_gid):
        raise PolicyError(
            "id-map identity needs root: for an ordinary user, ids of the container map only to "
            f"the user's own id ({caller})",
            where=where,
            hint="remove id-map: the command then has the id inside, and your own id outside; or "
            "run `paddock jail` as root",
        )
    mappers = None
    if (
        accounts.mapper_uid
        and accounts.mapper_gid
        and accounts.sub_uids
        and accounts.sub_gids
        and not same
    ):
        mappers = Mappers(uid=accounts.mapper_uid, gid=accounts.mapper_gid)
    return IdMaps(
        uid_map=_around(uid, caller, accounts.sub_uids if mappers else ()),
        gid_map=_around(gid, accounts.caller_gid, accounts.sub_gids if mappers else ()),
        mappers=mappers,
    )


def _first(spans: Iterable[IdSpan]) -> int:
    """A whole range that the administrator assigned to root, or the unused one."""
    return next((span.first for span in spans if span.count >= IDS), SHIFTED_FIRST)


def _around(inside: int, outside: int, spans: Iterable[IdSpan]) -> tuple[IdRange, ...]:
    """One id is the caller's. The others come from the caller's ranges, in order, as far as they
    suffice.
    """
    ranges = [IdRange(inside=inside, outside=outside, count=1)]
    position = 0
    for span in spans:
        first, left = span.first, span.count
        while left and position < IDS:
            if position == inside:
                position += 1
                continue
            count = min(left, (inside if position < inside else IDS) - position)
            ranges.append(IdRange(inside=position, outside=first, count=count))
            position, first, left = position + count, first + count, left - count
    return tuple(sorted(ranges, key=lambda one: one.inside))
