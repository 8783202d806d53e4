"""Grants and denies become Landlock rules. A wider rule always gives a warning."""

from __future__ import annotations

from dataclasses import replace

import pytest

from paddock.errors import PolicyError
from paddock.plan import Plan, compile_plan
from paddock.plan.path_containment import carved_directories, within
from paddock.plan.plan import Level, PathGrant
from paddock.policy.model import Access, Audit, Sourced, Widen

from .plan_inputs import HOST, deny, files, grant, policy, source


def held(plan: Plan, path: str) -> PathGrant:
    assert plan.files
    return next(one for one in plan.files.grants if one.path == path)


def paths(plan: Plan) -> list[str]:
    assert plan.files
    return [one.path for one in plan.files.grants]


def warnings(plan: Plan) -> list[str]:
    return [notice.text for notice in plan.notices if notice.level is Level.WARNING]


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("/tmp/**", "/tmp"),
        ("/home/ada/repo/**", "/home/ada/repo"),
        ("/etc/ssl/cert.pem", "/etc/ssl/cert.pem"),
    ],
)
def test_a_subtree_and_a_single_file_are_enforced_exactly(pattern: str, path: str) -> None:
    """F-097, F-098"""
    plan = compile_plan(policy(files(grant(Access.READ, pattern))), HOST)
    assert paths(plan) == [path]
    assert warnings(plan) == []


@pytest.mark.parametrize(
    ("pattern", "path"), [("/srv/src/**/*.py", "/srv/src"), ("/etc/*.conf", "/etc")]
)
def test_a_widened_read_names_the_pattern_and_the_enforced_path(pattern: str, path: str) -> None:
    """F-099, F-100"""
    plan = compile_plan(policy(files(grant(Access.READ, pattern, line=4))), HOST)
    assert paths(plan) == [path]
    assert warnings(plan) == [
        f"p.toml:4: the kernel can enforce the grant {pattern} only as all of {path}"
    ]


@pytest.mark.parametrize("access", [Access.WRITE, Access.ALLOW])
def test_a_widened_write_is_an_error(access: Access) -> None:
    """F-102"""
    with pytest.raises(
        PolicyError,
        match=r"p\.toml:1: the kernel can enforce the grant /etc/\*\.conf only as all of /etc",
    ):
        compile_plan(policy(files(grant(access, "/etc/*.conf"))), HOST)


def test_widened_writes_can_be_accepted_by_the_policy() -> None:
    asked = files(grant(Access.ALLOW, "/srv/*.log"), widen=Sourced(Widen.ALLOW, source()))
    assert paths(compile_plan(policy(asked), HOST)) == ["/srv"]


def test_strict_globs_refuse_a_widened_read() -> None:
    asked = files(grant(Access.READ, "/etc/*.conf"), widen=Sourced(Widen.NEVER, source()))
    with pytest.raises(PolicyError, match="only as all of /etc"):
        compile_plan(policy(asked), HOST)


def test_a_pattern_without_static_prefix_is_never_widened_to_the_root() -> None:
    """F-102"""
    asked = files(grant(Access.READ, "/**/secret"), widen=Sourced(Widen.ALLOW, source()))
    with pytest.raises(PolicyError, match="all of /"):
        compile_plan(policy(asked), HOST)


def test_a_denied_directory_inside_a_grant_is_carved_out() -> None:
    asked = files(
        grant(Access.READ, "/home/ada/**"), denies=(deny("/home/ada/.ssh/**"), deny("/srv/x/**"))
    )
    plan = compile_plan(policy(asked), HOST)
    assert set(held(plan, "/home/ada").except_) == {"/home/ada/.ssh"}


def test_nested_denies_leave_the_outermost() -> None:
    asked = files(grant(Access.READ, "/srv/**"), denies=(deny("/srv/a/b/**"), deny("/srv/a/**")))
    assert held(compile_plan(policy(asked), HOST), "/srv").except_ == ("/srv/a",)


def test_a_grant_inside_a_denied_directory_is_dropped_with_a_warning() -> None:
    asked = files(
        grant(Access.READ, "/home/ada/.ssh/known_hosts", line=3),
        denies=(deny("/home/ada/.ssh/**"),),
    )
    plan = compile_plan(policy(asked), HOST)
    assert paths(plan) == []
    assert warnings(plan) == [
        "p.toml:3: /home/ada/.ssh/known_hosts is not granted, because /home/ada/.ssh is denied; "
        "to open it, remove this deny: p.toml:9"
    ]


def test_a_sibling_with_the_same_beginning_is_not_inside() -> None:
    asked = files(grant(Access.READ, "/srv/proj/**"), denies=(deny("/srv/proj-evil/**"),))
    assert held(compile_plan(policy(asked), HOST), "/srv/proj").except_ == ()


def test_a_deny_that_landlock_cannot_enforce_stops_the_run_with_its_line() -> None:
    asked = files(grant(Access.ALLOW, "/srv/tree/**"), denies=(deny("**/.env", line=12),))
    with pytest.raises(
        PolicyError,
        match=r"p\.toml:12: deny \*\*/\.env cannot be enforced inside the grant /srv/tree",
    ):
        compile_plan(policy(asked), HOST)


def test_without_require_enforced_an_unenforced_deny_gives_a_warning() -> None:
    asked = files(
        grant(Access.ALLOW, "/srv/tree/**"),
        denies=(deny("**/.env"),),
        require_enforced=Sourced(False, source()),
    )
    plan = compile_plan(policy(asked), HOST)
    assert [n.text for n in plan.notices if n.level is Level.UNENFORCED] == [
        (
            "p.toml:9: deny **/.env cannot be enforced inside the grant /srv/tree: "
            "Landlock has no "
            "deny by name"
        )
    ]


def test_a_wildcard_deny_outside_every_grant_needs_no_rule() -> None:
    asked = files(grant(Access.READ, "/usr/**"), denies=(deny("/srv/*/key"),))
    assert held(compile_plan(policy(asked), HOST), "/usr").except_ == ()


@pytest.mark.parametrize("access", [Access.WRITE, Access.ALLOW])
def test_own_places_are_kept_out_of_every_writable_grant(access: Access) -> None:
    """C-057"""
    plan = compile_plan(policy(files(grant(access, "/home/ada/**"))), HOST)
    assert set(held(plan, "/home/ada").except_) == {
        "/home/ada/.config/paddock",
        "/home/ada/.local/state/paddock",
    }
    assert any("the command cannot create a file directly in" in text for text in warnings(plan))


@pytest.mark.parametrize("access", [Access.READ, Access.ALLOW])
def test_a_grant_of_everything_is_refused(access: Access) -> None:
    """F-102"""
    with pytest.raises(PolicyError, match=r"p\.toml:4: a grant of / would open the whole machine"):
        compile_plan(policy(files(grant(access, "/**", line=4))), HOST)


def test_reading_our_configuration_is_harmless_and_the_journal_is_not_readable() -> None:
    """C-084"""
    plan = compile_plan(
        policy(files(grant(Access.READ, "/home/**"), grant(Access.READ, "/var/**"))), HOST
    )
    assert held(plan, "/home").except_ == ()
    assert held(plan, "/var").except_ == ("/var/tmp/paddock-audit-1000",)


def test_a_journal_placed_inside_a_writable_grant_is_refused() -> None:
    """C-085"""
    asked = policy(
        files(grant(Access.ALLOW, "/srv/**", line=2)),
        audit=Audit(dir=Sourced("/srv/log", source())),
    )
    with pytest.raises(PolicyError, match=r"p\.toml:\d: the journal in /srv/log would be inside"):
        compile_plan(asked, HOST)


@pytest.mark.parametrize("workspace", ["/home/ada", "/home", "/"])
def test_the_home_directory_is_no_workspace(workspace: str) -> None:
    asked = files(grant(Access.ALLOW, f"{workspace.rstrip('/')}/**", workspace=True))
    with pytest.raises(PolicyError, match="the workspace would be"):
        compile_plan(policy(asked), HOST)


def test_a_workspace_that_holds_paddock_itself_is_refused_instead_of_carved() -> None:
    asked = files(grant(Access.ALLOW, "/opt/**", workspace=True))
    with pytest.raises(PolicyError, match="the workspace /opt contains /opt/paddock"):
        compile_plan(policy(asked), HOST)


def test_system_secrets_are_closed_for_root_in_the_landlock_tier() -> None:
    asked = policy(files(grant(Access.READ, "/etc/**")))
    assert held(compile_plan(asked, HOST), "/etc").except_ == ()
    as_root = compile_plan(asked, replace(HOST, uid=0, home="/root"))
    assert "/etc/shadow" in held(as_root, "/etc").except_


def test_a_granted_device_gets_ioctl_and_no_execute() -> None:
    plan = compile_plan(policy(files(grant(Access.ALLOW, "/dev/ptmx"))), HOST)
    assert held(plan, "/dev/ptmx").access == "device"
    assert plan.landlock
    assert "ioctl_dev" in plan.landlock.access["device"]
    assert "execute" not in plan.landlock.access["device"]


def test_loader_paths_are_granted_unless_the_policy_says_no() -> None:
    """F-103, F-106"""
    asked = files(grant(Access.READ, "/srv/**"))
    assert paths(compile_plan(policy(asked), HOST)) == ["/srv"]
    with_loader = compile_plan(policy(replace(asked, no_bootstrap_reads=None)), HOST)
    assert {"/usr", "/bin", "/proc", "/dev/null", "/dev/urandom"} <= set(paths(with_loader))


def test_the_same_grant_twice_is_needed_as_soon_as_one_needs_it() -> None:
    asked = files(grant(Access.READ, "/srv", optional=True), grant(Access.READ, "/srv/**"))
    assert held(compile_plan(policy(asked), HOST), "/srv").optional is False


def test_within_goes_by_components() -> None:
    assert within("/a/b", "/a")
    assert within("/a", "/a")
    assert within("/a", "/")
    assert not within("/ab", "/a")
    assert not within("/", "/a")


def test_carved_directories_are_those_between_the_grant_and_the_closed_place() -> None:
    assert carved_directories("/h/a", ["/h/a/.config/gh/hosts", "/h/a/.ssh"]) == [
        "/h/a",
        "/h/a/.config",
        "/h/a/.config/gh",
    ]
    assert carved_directories("/", ["/x"]) == ["/"]
