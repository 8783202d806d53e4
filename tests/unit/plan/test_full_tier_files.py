"""Files in the full tier: whole grants, masks and locks on top."""

from __future__ import annotations

from dataclasses import replace

import pytest

from paddock.errors import PolicyError
from paddock.host.git.linked_worktree import Opening
from paddock.host.grant_targets import Terrain
from paddock.plan import Plan, compile_plan
from paddock.plan.plan import Files, Level
from paddock.policy.model import Access, Audit, Sourced

from .plan_inputs import FULL, deny, files, grant, policy, source

WORK = grant(Access.ALLOW, "/home/ada/project/**", workspace=True)


def laid(plan: Plan) -> Files:
    assert plan.files
    return plan.files


def paths(plan: Plan) -> list[str]:
    return [one.path for one in laid(plan).grants if one.source != "private"]


def warnings(plan: Plan) -> list[str]:
    return [notice.text for notice in plan.notices if notice.level is Level.WARNING]


def test_full_tier_carves_no_grant_and_loses_no_listing() -> None:
    asked = files(grant(Access.ALLOW, "/home/ada/**"), denies=(deny("/home/ada/.ssh/**"),))
    plan = compile_plan(policy(asked), FULL)
    assert all(one.except_ == () for one in laid(plan).grants)
    assert "/home/ada/.ssh" in laid(plan).closed
    assert {"/home/ada/.config/paddock", "/home/ada/.local/state/paddock"} <= set(
        laid(plan).unwritable
    )
    assert not any("the command cannot create a file" in text for text in warnings(plan))


@pytest.mark.parametrize("access", [Access.READ, Access.WRITE, Access.ALLOW])
def test_all_of_the_machine_can_be_granted_and_our_own_places_stay_shut(access: Access) -> None:
    plan = compile_plan(policy(files(grant(access, "/**"))), FULL)
    assert paths(plan) == ["/"]
    assert "/var/tmp/paddock-audit-1000" in laid(plan).closed
    assert set(FULL.own_paths) <= set(laid(plan).unwritable)


def test_a_denied_place_is_watched_for_by_its_name_too() -> None:
    asked = files(WORK, denies=(deny("/home/ada/project/secret/**"), deny("/srv/elsewhere/**")))
    assert laid(compile_plan(policy(asked), FULL)).deny == ("/home/ada/project/secret",)


def test_a_grant_inside_a_denied_path_is_dropped_with_a_warning() -> None:
    asked = files(
        grant(Access.READ, "/srv/keys/public", line=3),
        grant(Access.READ, "/srv/a/x.key", line=4),
        grant(Access.READ, "/srv/ok"),
        denies=(deny("/srv/keys/**"), deny("**/*.key")),
    )
    plan = compile_plan(policy(asked), FULL)
    assert paths(plan) == ["/srv/ok"]
    assert warnings(plan) == [
        "p.toml:3: /srv/keys/public is not granted, because /srv/keys is denied; "
        "to open it, remove this deny: p.toml:9",
        "p.toml:4: /srv/a/x.key is not granted, because **/*.key is denied; "
        "to open it, remove this deny: p.toml:9",
    ]


def test_a_workspace_inside_a_denied_place_is_an_error() -> None:
    with pytest.raises(
        PolicyError, match=r"the workspace /home/ada/project is denied by \*\*/project"
    ):
        compile_plan(policy(files(WORK, denies=(deny("**/project"),))), FULL)


def test_a_workspace_that_holds_paddock_itself_is_locked_there_and_one_inside_of_it_refused() -> (
    None
):
    holds = grant(Access.ALLOW, "/opt/**", workspace=True, line=2)
    plan = compile_plan(policy(files(holds)), FULL)
    assert "p.toml:2: /opt/paddock stays read-only: Paddock itself needs it" in warnings(plan)
    inside = grant(Access.ALLOW, "/opt/paddock/lib/**", workspace=True)
    with pytest.raises(PolicyError, match="is in /opt/paddock"):
        compile_plan(policy(files(inside)), FULL)


def test_home_is_refused_as_a_workspace_in_the_full_tier() -> None:
    with pytest.raises(PolicyError, match="your home directory"):
        compile_plan(policy(files(grant(Access.ALLOW, "/home/ada/**", workspace=True))), FULL)


@pytest.mark.parametrize(
    ("path", "refused"),
    [
        ("/etc", True),
        ("/etc/nginx", True),
        ("/usr/share/app", True),
        ("/var", True),
        ("/usr/src/linux", False),
        ("/var/www/site", False),
        ("/srv", False),
    ],
)
def test_a_directory_of_the_system_is_no_workspace(path: str, refused: bool) -> None:
    asked = policy(files(grant(Access.ALLOW, f"{path}/**", workspace=True)))
    if not refused:
        compile_plan(asked, FULL)
        return
    with pytest.raises(PolicyError, match=f"the workspace would be {path}, which belongs to the"):
        compile_plan(asked, FULL)


def test_a_journal_in_a_writable_grant_is_refused_in_this_tier_too() -> None:
    """C-085"""
    asked = policy(
        files(grant(Access.ALLOW, "/srv/**", line=2)),
        audit=Audit(dir=Sourced("/srv/log", source())),
    )
    with pytest.raises(PolicyError, match=r"p\.toml:\d: the journal in /srv/log would be inside"):
        compile_plan(asked, FULL)


def test_the_private_terminals_can_be_used() -> None:
    plan = compile_plan(policy(files(WORK)), FULL)
    private = {one.path: one.access for one in laid(plan).grants if one.source == "private"}
    assert private == {"/dev": "read", "/dev/pts": "device", "/dev/console": "device"}
    assert plan.landlock
    assert {"read", "device", "allow"} == set(plan.landlock.access)


def test_a_grant_of_the_hosts_tmp_is_dropped_with_a_warning() -> None:
    plan = compile_plan(policy(files(grant(Access.ALLOW, "/tmp/**", line=5))), FULL)
    assert any(text.startswith("p.toml:5: /tmp is private to the run") for text in warnings(plan))
    assert warnings(compile_plan(policy(files(grant(Access.ALLOW, "/tmp/shared/**"))), FULL)) == []


def test_services_that_act_for_any_client_are_closed() -> None:
    plan = compile_plan(policy(files(grant(Access.READ, "/var/lib/**"))), FULL)
    assert "/var/lib/incus" in laid(plan).closed


def test_a_worktree_gets_its_part_of_the_repository() -> None:
    main = "/home/ada/main/.git"
    opening = Opening(
        top="/home/ada/project",
        git_dir=f"{main}/worktrees/project",
        read=main,
        write=(f"{main}/objects", f"{main}/worktrees/project"),
        locked=(f"{main}/worktrees/project/gitdir",),
    )
    plan = compile_plan(policy(files(WORK)), FULL, Terrain(openings=(opening,)))
    held = {
        one.path: (one.access, one.optional)
        for one in laid(plan).grants
        if one.source.endswith("/.git")
    }
    assert held == {
        main: ("read", False),
        f"{main}/objects": ("allow", True),
        f"{main}/worktrees/project": ("allow", True),
    }
    assert f"{main}/worktrees/project/gitdir" in laid(plan).protected


def test_remarks_about_the_surroundings_are_warnings() -> None:
    plan = compile_plan(policy(files(WORK)), FULL, Terrain(remarks=("it leads nowhere",)))
    assert "it leads nowhere" in warnings(plan)


def test_system_secrets_are_masked_for_root_in_the_full_tier() -> None:
    asked = policy(files(grant(Access.READ, "/etc/**")))
    assert "/etc/shadow" not in laid(compile_plan(asked, FULL)).closed
    assert "/etc/shadow" in laid(compile_plan(asked, replace(FULL, uid=0, home="/root"))).closed
