"""Every sample policy loads. The sample of all keys has all keys."""

from __future__ import annotations

import os
import shutil
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from paddock.explain.ask_gate import Exec, judge_exec
from paddock.plan import compile_plan
from paddock.plan.gate import gate_of
from paddock.plan.plan import User
from paddock.policy import Policy, Request, weak_points
from paddock.policy.formats.policy_keys import (
    COMMAND_RULE_KEYS,
    ENDPOINT_KEYS,
    GRANT_KEYS,
    GRANT_TABLE_KEYS,
    KEYS,
    MATCH_KEYS,
    NOT,
    PATH_RULE_KEYS,
    ROUTE_KEYS,
    RULE_KEYS,
)
from paddock.policy.model import Access, Action
from tests.unit.plan.plan_inputs import HOST, files, grant
from tests.unit.plan.plan_inputs import policy as plan_policy
from tests.unit.policy.user_dirs import UserDirs, words

EXAMPLES = Path(__file__).parents[3] / "examples"
FILES = sorted(path.name for path in EXAMPLES.iterdir())


def load(dirs: UserDirs, name: str) -> Policy:
    return dirs.load(
        Request(
            policies=(str(dirs.file(name, (EXAMPLES / name).read_bytes())),), trust_required=False
        )
    )


def test_the_samples_are_there() -> None:
    """F-165 to F-171."""
    expected = """
        strict.toml permissive.toml curl-deny.toml read-only-git.toml seal.toml combined.toml
        example.toml my-agent.conf container.conf filtered.toml
    """
    assert sorted(words(expected)) == FILES


@pytest.mark.parametrize("name", FILES)
def test_a_sample_loads_and_says_what_it_is_for(dirs: UserDirs, name: str) -> None:
    assert load(dirs, name)
    assert (EXAMPLES / name).read_text().startswith("# ")


@pytest.mark.parametrize("name", [name for name in FILES if name != "example.toml"])
def test_a_sample_has_no_weak_point_but_its_purpose(dirs: UserDirs, name: str) -> None:
    policy = load(dirs, name)
    default = policy.meta.default_action
    weak = list(weak_points(policy))
    assert bool(weak) is (default is not None and default.value is Action.ALLOW)
    assert all("while default_action is allow" in point for point in weak)


def test_example_shows_every_key_of_the_schema() -> None:
    """F-171."""
    document = tomllib.loads((EXAMPLES / "example.toml").read_text())
    for section, keys in KEYS.items():
        assert set(document[section]) == set(keys), section
    grants = [
        grant
        for key in GRANT_KEYS
        for grant in document["filesystem"][key]
        if not isinstance(grant, str)
    ]
    assert {key for grant in grants for key in grant} == set(GRANT_TABLE_KEYS)
    assert {key for rule in document["rule"] for key in rule} == set(RULE_KEYS)
    assert all(
        key in document["rule"][0] and key + NOT in document["rule"][1] for key in MATCH_KEYS
    )
    routes = document["network"]["routes"]
    assert {key for route in routes.values() for key in route} == set(ROUTE_KEYS)
    assert set(routes["openai"]["endpoint_rules"][0]) == set(ENDPOINT_KEYS)
    assert set(document["tools"]["path_rules"][0]) == set(PATH_RULE_KEYS)
    assert {key for rule in document["tools"]["command_rules"] for key in rule} == set(
        COMMAND_RULE_KEYS
    )


def decision(policy: Policy, exe: str, argv: str) -> Action:
    """The decision of the core's engine. A command cannot have written a program in /usr."""
    plan = compile_plan(plan_policy(files(grant(Access.READ, "/usr/**"))), HOST)
    plan = replace(
        plan,
        cwd=os.getcwd(),
        user=User(uid=os.getuid(), name="ada", home="/home/ada"),
        gate=gate_of(policy, HOST, plan.files),
    )
    decision = judge_exec(plan, Exec(path=exe, argv=tuple(argv.split(" ")), cwd="/")).decision
    assert decision is not None, f"{exe} is needed"
    return decision.action


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        ("git log", Action.ALLOW),
        ("git --no-pager log --oneline -5", Action.ALLOW),
        ("git status", Action.ALLOW),
        ("git diff --stat HEAD~1", Action.ALLOW),
        ("git show --text HEAD", Action.ALLOW),
        ("git push", Action.DENY),
        ("git statusx", Action.DENY),
        ("git log --output=/tmp/x", Action.DENY),
        ("git log --output /tmp/x", Action.DENY),
        ("git log --outp=/tmp/x", Action.DENY),
        ("git -c core.pager=evil log", Action.DENY),
        ("git -C /elsewhere log", Action.DENY),
        ("git --exec-path=/x log", Action.DENY),
        ("git diff --ext-diff", Action.DENY),
        ("git diff --ext", Action.DENY),
        ("git log --textconv", Action.DENY),
        ("git show --textc HEAD", Action.DENY),
    ],
)
def test_read_only_git_knows_the_options_that_write_or_run(
    dirs: UserDirs, argv: str, expected: Action
) -> None:
    """F-168, F-172."""
    assert decision(load(dirs, "read-only-git.toml"), "/usr/bin/git", argv) is expected


def test_read_only_git_denies_other_programs_and_writes(dirs: UserDirs, tmp_path: Path) -> None:
    policy = load(dirs, "read-only-git.toml")
    copied = str(shutil.copy("/usr/bin/git", tmp_path))
    assert decision(policy, "/usr/bin/ls", "ls x") is Action.DENY
    assert decision(policy, copied, "git log") is Action.DENY
    assert not any(
        grant.workspace and grant.access.value == "allow" for grant in policy.filesystem.grants
    )


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        ("rm -rf /", Action.DENY),
        ("rm -r -f /", Action.DENY),
        ("rm -rf /*", Action.DENY),
        ("rm -rf ~", Action.DENY),
        ("/bin/rm -rf / --no-preserve-root", Action.DENY),
        ("rm -rf /srv/build", Action.ALLOW),
        ("rm -rf build", Action.ALLOW),
    ],
)
def test_permissive_denies_commands_that_are_always_mistakes(
    dirs: UserDirs, argv: str, expected: Action
) -> None:
    """F-070, F-166."""
    assert decision(load(dirs, "permissive.toml"), "/usr/bin/rm", argv) is expected


def test_curl_deny_denies_curl_only(dirs: UserDirs, tmp_path: Path) -> None:
    """F-167."""
    policy = load(dirs, "curl-deny.toml")
    (tmp_path / "curl").symlink_to("/usr/bin/ls")
    assert decision(policy, str(tmp_path / "curl"), "curl x") is Action.DENY
    assert decision(policy, "/usr/bin/ls", "ls") is Action.ALLOW


def test_seal_writes_one_file_and_tmp(dirs: UserDirs) -> None:
    """F-169."""
    grants = {
        grant.pattern
        for grant in load(dirs, "seal.toml").filesystem.grants
        if grant.access.value == "allow"
    }
    assert grants == {f"{dirs.work}/src/hello.py", "/tmp/**"}
