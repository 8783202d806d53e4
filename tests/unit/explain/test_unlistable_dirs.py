"""A denied path removes the listing of the directories above it. One line reports that."""

from __future__ import annotations

import pytest

from paddock.explain.unlistable_dirs import lost_in_plan, lost_in_policy
from paddock.plan import compile_plan
from paddock.policy.model import Access
from tests.unit.plan.plan_inputs import FULL, HOST, deny, files, grant, policy


@pytest.mark.parametrize("access", [Access.READ, Access.ALLOW])
def test_the_line_names_the_deny_and_every_directory(access: Access) -> None:
    asked = files(grant(access, "/srv/**", line=2), denies=(deny("/srv/a/key", line=7),))
    assert list(lost_in_policy(asked)) == [
        "p.toml:2: /srv/a/key (p.toml:7) is denied inside /srv, so the command cannot list /srv, "
        "/srv/a in the landlock tier"
    ]


def test_a_plan_says_it_of_reads_and_a_warning_says_it_of_writes() -> None:
    denied = (deny("/srv/a/**"), deny("/opt/a/**"))
    asked = files(
        grant(Access.READ, "/srv/**", line=2), grant(Access.ALLOW, "/opt/**", line=3), denies=denied
    )
    plan = compile_plan(policy(asked), HOST)
    assert plan.files
    assert list(lost_in_plan(plan.files)) == [
        "p.toml:2: /srv/a is denied inside /srv, so the command cannot list /srv"
    ]
    warned = [notice.text for notice in plan.notices if notice.text.startswith("p.toml:3: ")]
    assert len(warned) == 1
    assert warned[0].endswith("the command cannot create a file directly in /opt, nor list it")


def test_a_dropped_grant_loses_no_listing() -> None:
    plan = compile_plan(
        policy(files(grant(Access.READ, "/srv/**"), denies=(deny("/srv/a/**"),))), HOST
    )
    assert plan.files
    assert list(lost_in_plan(plan.files, absent=["/srv"])) == []


def test_masks_take_no_listing_away() -> None:
    plan = compile_plan(
        policy(files(grant(Access.READ, "/srv/**"), denies=(deny("/srv/a/**"),))), FULL
    )
    assert plan.files
    assert list(lost_in_plan(plan.files)) == []


def test_many_closed_places_are_counted() -> None:
    denied = tuple(deny(f"/srv/{name}/**") for name in "abcde")
    (line,) = lost_in_policy(files(grant(Access.READ, "/srv/**"), denies=denied))
    assert "/srv/c (p.toml:9) and 2 more is denied" in line


@pytest.mark.parametrize(
    "pattern", ["/srv/**", "/srv-other/key", "/opt/key", "**/.env", "/srv/*/key"]
)
def test_a_deny_that_carves_nothing_takes_no_listing(pattern: str) -> None:
    assert list(lost_in_policy(files(grant(Access.READ, "/srv/**"), denies=(deny(pattern),)))) == []


@pytest.mark.parametrize("access", [Access.WRITE, Access.EXEC])
def test_a_grant_without_listing_loses_no_listing(access: Access) -> None:
    assert list(lost_in_policy(files(grant(access, "/srv/**"), denies=(deny("/srv/a/**"),)))) == []
