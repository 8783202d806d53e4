"""``execute = false`` on a grant is enforced, or refused if another grant gives execution back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from paddock.errors import PolicyError
from paddock.plan import Plan, compile_plan
from paddock.plan.plan import Level
from paddock.policy.model import Access, Grant, Sourced

from .plan_inputs import FULL, HOST, files, grant, policy, source


def off(access: Access, pattern: str, *, line: int = 5, workspace: bool = False) -> Grant:
    return replace(grant(access, pattern, line=line, workspace=workspace), execute=False)


def accesses(plan: Plan) -> dict[str, set[str]]:
    assert plan.files
    held: dict[str, set[str]] = {}
    for one in plan.files.grants:
        held.setdefault(one.path, set()).add(one.access)
    return held


@pytest.mark.parametrize("access", [Access.READ, Access.ALLOW])
def test_a_grant_without_execution_has_all_rights_but_that(access: Access) -> None:
    plan = compile_plan(policy(files(off(access, "/srv/**"), grant(access, "/opt/**"))), HOST)
    assert plan.landlock
    name = f"{access.value}-noexec"
    assert accesses(plan) == {"/srv": {name}, "/opt": {access.value}}
    assert set(plan.landlock.access[access.value]) - set(plan.landlock.access[name]) == {"execute"}


@pytest.mark.parametrize("access", [Access.READ, Access.ALLOW])
def test_full_tier_uses_the_same_rights_for_execution(access: Access) -> None:
    plan = compile_plan(policy(files(off(access, "/srv/**"), off(Access.ALLOW, "<tmp>/**"))), FULL)
    assert plan.landlock
    assert (
        accesses(plan).items()
        >= {"/srv": {f"{access.value}-noexec"}, "/tmp": {"allow-noexec"}}.items()
    )
    assert "execute" not in plan.landlock.access[f"{access.value}-noexec"]


def test_at_the_same_path_the_stricter_rule_counts_from_any_author() -> None:
    asked = files(
        grant(Access.READ, "/srv/**", workspace=True),
        grant(Access.ALLOW, "/srv/**", workspace=True),
        off(Access.ALLOW, "/srv/**", workspace=True),
    )
    assert accesses(compile_plan(policy(asked), HOST)) == {"/srv": {"read-noexec", "allow-noexec"}}


def test_an_inner_grant_has_its_own_execution_flag() -> None:
    asked = files(
        off(Access.ALLOW, "/srv/**"),
        grant(Access.READ, "/srv/bin/**"),
        grant(Access.EXEC, "/srv/tool"),
    )
    assert accesses(compile_plan(policy(asked), HOST)) == {
        "/srv": {"allow-noexec"},
        "/srv/bin": {"read"},
        "/srv/tool": {"exec"},
    }


@pytest.mark.parametrize(
    "other",
    [
        grant(Access.READ, "/srv/**"),
        grant(Access.ALLOW, "/srv/**"),
        grant(Access.EXEC, "/srv/data/**"),
    ],
)
def test_a_wider_grant_that_gives_execution_back_is_an_error_with_both_lines(other: Grant) -> None:
    asked = files(other, off(Access.READ, "/srv/data/**", line=7))
    with pytest.raises(
        PolicyError,
        match=r"p\.toml:7: execute = false cannot be enforced for /srv/data: .*\(p\.toml:1\)",
    ):
        compile_plan(policy(asked), HOST)


def test_without_require_enforced_regained_execution_is_a_warning() -> None:
    asked = files(
        grant(Access.READ, "/srv/**"),
        off(Access.READ, "/srv/data/**"),
        require_enforced=Sourced(False, source()),
    )
    notice_texts = [
        notice.text
        for notice in compile_plan(policy(asked), HOST).notices
        if notice.level is Level.UNENFORCED
    ]
    assert len(notice_texts) == 1
    assert "execute = false cannot be enforced for /srv/data" in notice_texts[0]


def test_the_loader_is_not_turned_off_by_accident() -> None:
    asked = replace(
        files(grant(Access.READ, "/usr/**"), off(Access.READ, "/usr/**")), no_bootstrap_reads=None
    )
    with pytest.raises(
        PolicyError, match=r"cannot be enforced for /usr: /usr is granted with execution \(loader\)"
    ):
        compile_plan(policy(asked), HOST)


def test_private_temp_can_be_without_execution() -> None:
    plan = compile_plan(
        policy(files(grant(Access.ALLOW, "<tmp>/**"), off(Access.ALLOW, "<tmp>/**"))), HOST
    )
    assert plan.temp
    assert plan.landlock
    assert plan.temp.access == "allow-noexec"
    assert "execute" not in plan.landlock.access["allow-noexec"]


def test_devices_are_never_executable() -> None:
    assert accesses(compile_plan(policy(files(off(Access.ALLOW, "/dev/ptmx"))), HOST)) == {
        "/dev/ptmx": {"device"}
    }


def test_a_writable_grant_without_execution_is_still_kept_out_of_our_places() -> None:
    plan = compile_plan(policy(files(off(Access.ALLOW, "/home/ada/**"))), HOST)
    assert plan.files
    assert plan.files.grants[0].except_ == (
        "/home/ada/.config/paddock",
        "/home/ada/.local/state/paddock",
    )
