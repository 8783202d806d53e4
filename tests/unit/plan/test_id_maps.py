"""The uids and gids of a container, inside and outside."""

from __future__ import annotations

from dataclasses import replace

import pytest

from paddock.errors import PolicyError
from paddock.host.accounts import Account, Accounts, IdSpan
from paddock.plan.id_maps import IDS, SHIFTED_FIRST, IdMaps, identity_of
from paddock.plan.plan import IdRange, Mappers

ALONE = Accounts(
    service=Account(name="web", uid=33, gid=34, home="/var/www"),
    caller_gid=100,
    caller_groups=(),
    sub_uids=(),
    sub_gids=(),
    mapper_uid=None,
    mapper_gid=None,
)
GIVEN = replace(
    ALONE,
    sub_uids=(IdSpan(first=100000, count=50), IdSpan(first=200000, count=65536)),
    sub_gids=(IdSpan(first=100000, count=65536),),
    mapper_uid="/usr/bin/newuidmap",
    mapper_gid="/usr/bin/newgidmap",
)


def of(
    accounts: Accounts, *, caller: int, uid: int = 33, gid: int = 34, same: bool = False
) -> IdMaps:
    return identity_of(accounts, caller=caller, uid=uid, gid=gid, same=same, where="p.conf:1")


def span(inside: int, outside: int, count: int) -> IdRange:
    return IdRange(inside=inside, outside=outside, count=count)


def test_containers_of_root_have_unused_numbers() -> None:
    """C-129"""
    found = of(ALONE, caller=0)
    assert found.uid_map == found.gid_map == (span(0, SHIFTED_FIRST, IDS),)
    assert found.outside(0) == SHIFTED_FIRST
    assert SHIFTED_FIRST + IDS == 2**31


def test_subordinate_numbers_of_root_are_used() -> None:
    found = of(GIVEN, caller=0)
    assert found.uid_map == (span(0, 200000, IDS),)  # the first range that is large enough
    assert found.mappers is None


def test_the_same_numbers_outside_only_on_request() -> None:
    """C-129"""
    assert of(ALONE, caller=0, same=True).uid_map == (span(0, 0, IDS),)


def test_a_caller_maps_to_their_own_uid_outside() -> None:
    found = of(ALONE, caller=1000)
    assert found.uid_map == (span(33, 1000, 1),)
    assert found.gid_map == (span(34, 100, 1),)
    assert found.mappers is None
    assert found.outside(33) == 1000


def test_subordinate_numbers_fill_up_the_rest() -> None:
    found = of(GIVEN, caller=1000)
    assert found.mappers == Mappers(uid="/usr/bin/newuidmap", gid="/usr/bin/newgidmap")
    assert found.uid_map == (
        span(0, 100000, 33),
        span(33, 1000, 1),
        span(34, 100033, 17),
        span(51, 200000, IDS - 51),
    )
    inside = [
        number for one in found.uid_map for number in range(one.inside, one.inside + one.count)
    ]
    assert inside == list(range(IDS))


@pytest.mark.parametrize("uid", [0, 65535, 70000])
def test_the_callers_number_may_lie_anywhere(uid: int) -> None:
    found = of(GIVEN, caller=1000, uid=uid)
    assert found.outside(uid) == 1000
    outside = [
        number for one in found.uid_map for number in range(one.outside, one.outside + one.count)
    ]
    assert len(outside) == len(set(outside))


def test_programs_without_numbers_or_numbers_without_programs_map_nothing() -> None:
    for lacking in (
        replace(GIVEN, mapper_gid=None),
        replace(GIVEN, sub_gids=()),
        replace(GIVEN, sub_uids=()),
    ):
        found = of(lacking, caller=1000)
        assert found.mappers is None
        assert found.uid_map == (span(33, 1000, 1),)


def test_the_same_uids_outside_need_root_unless_they_are_the_callers() -> None:
    with pytest.raises(PolicyError, match=r"p\.conf:1: id-map identity needs root"):
        of(GIVEN, caller=1000, same=True)
    own = of(GIVEN, caller=1000, uid=1000, gid=100, same=True)
    assert own.uid_map == (span(1000, 1000, 1),)


def test_a_number_beyond_the_range_is_refused() -> None:
    with pytest.raises(PolicyError, match="uid 65536 is too large"):
        of(ALONE, caller=0, uid=IDS)
