"""A managed policy restricts every run, and nothing loosens it."""

from __future__ import annotations

import pytest

from paddock.errors import PolicyError
from paddock.policy import Request
from paddock.policy.model import Action, Limit, Policy, Switch
from tests.unit.policy.user_dirs import UserDirs

MANAGED = """
[filesystem]
deny_globs = ["/srv/payroll/**"]
protect_globs = ["**/*.tfvars"]
[network]
denied_hosts = ["paste.example"]
[syscalls]
block = ["ptrace"]
[env]
deny = ["PAYROLL_*"]
[limits]
wall_s = 100
processes = 50
[audit]
enabled = true
[tools]
denied_commands = ["terraform"]
[[rule]]
id = "no-push"
action = "deny"
exe_basename = "git"
"""
MINE = """
[meta]
default_action = "allow"
[limits]
wall_s = 1000
processes = 20
[[rule]]
id = "git"
action = "allow"
exe_basename = "git"
"""


def limits(policy: Policy) -> dict[str, int]:
    return {limit.name: limit.value for limit in policy.limits if isinstance(limit, Limit)}


def test_restrictions_add_to_the_policy_of_the_user(dirs: UserDirs) -> None:
    dirs.etc("managed.toml", MANAGED)
    policy = dirs.load_text(MINE)
    assert "/srv/payroll/**" in {deny.pattern for deny in policy.filesystem.denies}
    assert [one.value for one in policy.filesystem.protects] == ["**/*.tfvars"]
    assert policy.network is not None
    assert [one.value.host for one in policy.network.denied_hosts] == ["paste.example"]
    assert "ptrace" in {call.value for call in policy.syscalls.block if not call.source.builtin}
    assert "PAYROLL_*" in {one.value for one in policy.env.deny}
    assert [one.value for one in policy.tools.denied_commands] == ["terraform"]
    assert [rule.id for rule in policy.rules] == ["no-push", "git"], "the first match wins"
    assert limits(policy) == {"wall_s": 100, "processes": 20}, "the lower limit counts"
    assert any("managed by" in note for note in policy.notes)
    assert str(dirs.system / "managed.toml") in {file.path for file in policy.files}


@pytest.mark.parametrize("only", [False, True])
def test_restrictions_hold_without_a_policy_of_the_user(dirs: UserDirs, only: bool) -> None:
    dirs.etc("managed.toml", MANAGED)
    policy = dirs.load(Request(only=only))
    assert "/srv/payroll/**" in {deny.pattern for deny in policy.filesystem.denies}
    assert policy.meta.default_action is not None
    assert policy.meta.default_action.value is Action.ALLOW, "other programs still start"


def test_without_a_managed_policy_nothing_changes(dirs: UserDirs) -> None:
    plain = dirs.load_text(MINE)
    assert [rule.id for rule in plain.rules] == ["git"]
    assert limits(plain) == {"wall_s": 1000, "processes": 20}


def test_require_enforced_can_not_be_turned_off(dirs: UserDirs) -> None:
    dirs.etc("managed.toml", "[env]\ndeny = ['X']\n")
    policy = dirs.load_text("[filesystem]\nrequire_enforced = false\n")
    assert policy.filesystem.require_enforced is not None
    assert policy.filesystem.require_enforced.value is True


@pytest.mark.parametrize(
    ("request_", "where"),
    [
        (Request(off=(Switch.LANDLOCK,)), "--off landlock"),
        (Request(off=(Switch.AUDIT,)), "--off audit"),
        (Request(env_pass=("PAYROLL_KEY",)), "--env-pass PAYROLL_KEY"),
        (Request(open_protected=("**/*.tfvars",)), "--open-protected"),
    ],
)
def test_a_flag_that_loosens_is_an_error(dirs: UserDirs, request_: Request, where: str) -> None:
    dirs.environ["PAYROLL_KEY"] = "x"
    assert dirs.load(request_), "the control: without a managed policy the flag works"
    dirs.etc("managed.toml", MANAGED)
    error = dirs.refuse_request(request_)
    assert error.where == where
    assert "managed.toml" in str(error)


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("[filesystem]\nread_globs = ['/srv/**']\n", 2, "can only restrict"),
        ("[filesystem]\nrequire_enforced = false\n", 2, "can only restrict"),
        ("[network]\nallowed_hosts = ['x.example']\n", 2, "can only restrict"),
        ("[network]\nmode = 'host'\n", 2, "can only restrict"),
        ("[env]\npass = ['X']\n", 2, "can only restrict"),
        ("[audit]\nenabled = false\n", 2, "can only restrict"),
        ("[meta]\ninherit = 'dev'\n", 2, "can only restrict"),
        ("[shell]\nnetwork = 'none'\n", 1, "can only restrict"),
        ("[[rule]]\nid = 'a'\naction = 'allow'\nexe = '/bin/sh'\n", 1, "can only deny"),
        ("[[rule]]\nid = 'a'\naction = 'ask'\nexe = '/bin/sh'\n", 1, "can only deny"),
        ("[filesystem\n", 1, "not valid TOML"),
    ],
)
def test_a_managed_policy_that_opens_something_stops_every_run(
    dirs: UserDirs, text: str, line: int, message: str
) -> None:
    path = dirs.etc("managed.toml", text)
    error = dirs.refuse_request(Request())
    assert message in error.message
    assert error.where is not None
    assert error.where.startswith(f"{path}:{line}")


def test_a_managed_policy_that_others_can_write_stops_every_run(dirs: UserDirs) -> None:
    dirs.etc("managed.toml", MANAGED).chmod(0o666)
    assert "writable by others" in dirs.refuse_request(Request()).message


def test_it_is_not_a_profile(dirs: UserDirs) -> None:
    dirs.etc("managed.toml", MANAGED)
    with pytest.raises(PolicyError, match="does not exist"):
        dirs.load(Request(profiles=("managed",)))
