"""Grants that another grant covers, on a real tree."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from paddock.launch.redundant_grants import without_covered
from paddock.plan import Plan, compile_plan
from paddock.plan.plan import PathGrant
from paddock.policy.model import Access
from tests.unit.plan.plan_inputs import HOST, files, grant
from tests.unit.plan.plan_inputs import policy as plan_policy


def granted(
    path: Path | str, access: str, *, optional: bool = False, kept_out: tuple[str, ...] = ()
) -> PathGrant:
    return PathGrant(
        path=str(path), access=access, except_=kept_out, optional=optional, source="test:1"
    )


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("usr/bin", "usr/lib", "own/sub", "other"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "bin").symlink_to("usr/bin")
    (tmp_path / "led").symlink_to("usr")
    return tmp_path


def plan_with(*grants: PathGrant, unwritable: tuple[str, ...] = ()) -> Plan:
    plan = compile_plan(
        plan_policy(files(grant(Access.READ, "/usr/**"), grant(Access.ALLOW, "/srv/**"))), HOST
    )
    assert plan.files is not None
    assert plan.landlock is not None
    every = {**plan.landlock.access, "exec": ("execute", "read_file")}
    return replace(
        plan,
        files=replace(plan.files, grants=grants, unwritable=unwritable),
        landlock=replace(plan.landlock, access=every),
    )


def kept(plan: Plan) -> list[tuple[str, str]]:
    after = without_covered(plan)
    assert after.files is not None
    return [(grant.path.rpartition("/")[2], grant.access) for grant in after.files.grants]


def test_a_link_into_another_grant_is_covered(tree: Path) -> None:
    assert kept(plan_with(granted(tree / "bin", "read"), granted(tree / "usr", "read"))) == [
        ("usr", "read")
    ]


def test_a_name_in_another_grant_is_covered(tree: Path) -> None:
    assert kept(plan_with(granted(tree / "own", "allow"), granted(tree / "own/sub", "read"))) == [
        ("own", "allow")
    ]
    assert kept(plan_with(granted(tree / "own", "allow"), granted(tree / "own", "read"))) == [
        ("own", "allow")
    ]


def test_one_of_two_equal_grants_stays(tree: Path) -> None:
    assert kept(
        plan_with(granted(tree / "usr", "read"), granted(tree / "usr", "read", optional=True))
    ) == [("usr", "read")]


@pytest.mark.parametrize(
    ("outer", "inner"),
    [
        ("read", "allow"),  # more rights
        ("read", "exec"),  # may be executed, also if a command wrote it
    ],
)
def test_a_grant_with_more_rights_stays(tree: Path, outer: str, inner: str) -> None:
    plan = plan_with(granted(tree / "own", outer), granted(tree / "own/sub", inner))
    assert kept(plan) == [("own", outer), ("sub", inner)]


def test_a_grant_behind_a_link_covers_no_other(tree: Path) -> None:
    """Only the run shows whether the core follows that link."""
    plan = plan_with(granted(tree / "led", "read"), granted(tree / "usr/lib", "read"))
    assert kept(plan) == [("led", "read"), ("lib", "read")]


def test_a_grant_inside_an_exception_stays(tree: Path) -> None:
    for kept_out in ("own/sub", "own/sub/x", "own"):
        outer = granted(tree / "own", "read", kept_out=(str(tree / kept_out),))
        assert len(kept(plan_with(outer, granted(tree / "own/sub", "read")))) == 2, kept_out
    beside = granted(tree / "own", "read", kept_out=(str(tree / "own/elsewhere"),))
    assert len(kept(plan_with(beside, granted(tree / "own/sub", "read")))) == 1


def test_a_read_grant_stays_if_the_write_grant_has_an_exception(tree: Path) -> None:
    inner = (granted(tree / "own", "allow"), granted(tree / "own", "read"))
    assert len(kept(plan_with(*inner, unwritable=(str(tree / "own/paddock.toml"),)))) == 2
    assert len(kept(plan_with(*inner, unwritable=(str(tree / "other"),)))) == 1


def test_a_grant_of_a_missing_path_stays(tree: Path) -> None:
    plan = plan_with(granted(tree / "usr", "read"), granted(tree / "usr/nothing", "read"))
    assert kept(plan) == [("usr", "read"), ("nothing", "read")]
