"""The file rules behind `paddock why`, on real files. tests/system/files compares them with the
kernel.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from paddock.explain.file_rules import Judge, Judgement, Operation
from paddock.host.facts import Host
from paddock.plan import compile_plan
from paddock.plan.plan import Plan
from paddock.policy.model import Access, Sourced, Switch
from tests.unit.plan import plan_inputs
from tests.unit.plan.plan_inputs import HOST, builtin, deny, files, grant, policy, source

# The core judges the writes of these plans, as the user of the test.
LANDLOCK = replace(HOST, uid=os.getuid())
FULL = replace(plan_inputs.FULL, uid=os.getuid())


@pytest.fixture(name="ws")
def _ws(tmp_path: Path) -> Path:
    workspace = tmp_path / "ws"
    for name in (
        ".git/hooks/pre-commit",
        ".git/config",
        ".vscode/tasks.json",
        "app/.env",
        "main.py",
        "secret/key",
    ):
        (workspace / name).parent.mkdir(parents=True, exist_ok=True)
        (workspace / name).write_text("")
    return workspace


def plan_for(ws: Path, host: Host, *, secret: bool = True, **more: object) -> Plan:
    """``secret``: a directory is denied, so in the landlock tier the workspace itself is not
    granted.
    """
    asked = files(
        grant(Access.ALLOW, f"{ws}/**", workspace=True),
        grant(Access.ALLOW, "<tmp>/**"),
        denies=(builtin("**/.env", optional=True), *([deny(f"{ws}/secret/**")] if secret else [])),
        **more,
    )
    return compile_plan(policy(asked), replace(host, cwd=str(ws)))


def asked(plan: Plan, path: Path | str, operation: Operation = Operation.WRITE) -> Judgement:
    return Judge(plan)(str(path), operation)


@pytest.mark.parametrize(
    "name", [".vscode/tasks.json", ".git/hooks/new", ".envrc", "sub/.mcp.json"]
)
def test_a_protected_name_can_be_read_and_not_written(ws: Path, name: str) -> None:
    plan = plan_for(ws, FULL)
    refused = asked(plan, ws / name)
    assert (refused.allowed, refused.closed) == (False, True)
    assert refused.reason.startswith("protected: read-only inside writable directories, because ")
    assert asked(plan, ws / ".vscode" / "tasks.json", Operation.READ).allowed


def test_a_configuration_of_git_can_be_written_and_not_removed(ws: Path) -> None:
    """Its content decides. A mount locks it only if writes are not judged."""
    plan = plan_for(ws, FULL)
    assert asked(plan, ws / ".git" / "config").allowed
    assert asked(plan, ws / ".git" / "config", Operation.CHANGE).allowed
    for refused in (
        asked(plan, ws / ".git" / "config", Operation.REMOVE),
        asked(replace(plan, judges_writes=False), ws / ".git" / "config"),
    ):
        assert (refused.allowed, refused.closed) == (False, True)


@pytest.mark.parametrize(
    "name", ["main.py", ".git/index", ".git/objects/ab/cd", "new.txt", ".claude/worktrees/one/x"]
)
def test_workspace_files_can_be_written(ws: Path, name: str) -> None:
    assert asked(plan_for(ws, FULL), ws / name).allowed


def test_a_denied_name_is_closed_for_every_act(ws: Path) -> None:
    plan = plan_for(ws, FULL)
    for operation in set(Operation) - {Operation.MAKE}:  # an existing file cannot be created
        refused = asked(plan, ws / "app" / ".env", operation)
        assert (refused.allowed, refused.closed) == (False, True)
        assert f"{ws}/**/.env is denied" in refused.reason
    assert (
        asked(plan, ws / "secret" / "key", Operation.READ).reason
        == f"{ws}/secret is denied, even inside a grant"
    )


def test_an_opened_name_can_be_written(ws: Path) -> None:
    plan = plan_for(ws, FULL, open_protected=(Sourced(f"{ws}/.vscode/**", source()),))
    assert asked(plan, ws / ".vscode" / "tasks.json").allowed


def test_a_path_outside_every_grant_is_closed_in_both_tiers(ws: Path) -> None:
    for host in (FULL, HOST):
        assert (
            asked(plan_for(ws, host), "/etc/hostname", Operation.READ).reason
            == "outside every grant"
        )


def test_the_private_tmp_is_the_runs_own(ws: Path) -> None:
    inside = asked(plan_for(ws, FULL), "/tmp/anything")
    assert inside.allowed
    assert "private to the run" in inside.reason


@pytest.mark.parametrize(
    ("name", "operation"),
    [
        (".vscode/tasks.json", Operation.WRITE),
        (".vscode/tasks.json", Operation.REMOVE),
        (".vscode/tasks.json", Operation.CHANGE),
        (".vscode/new", Operation.MAKE),
        (".git/hooks/pre-commit", Operation.WRITE),
        (".git/hooks/new", Operation.MAKE),
        ("sub/.mcp.json", Operation.WRITE),
        (".envrc", Operation.MAKE),
    ],
)
def test_init_refuses_writes_to_protected_names(ws: Path, name: str, operation: Operation) -> None:
    plan = plan_for(ws, LANDLOCK, secret=False)
    refused = asked(plan, ws / name, operation)
    assert (refused.allowed, refused.closed, refused.by_init) == (False, True, True)
    assert refused.reason.startswith("protected: read-only inside writable directories, because ")
    in_full = asked(plan_for(ws, FULL, secret=False), ws / name, operation)
    assert not in_full.allowed
    assert in_full.by_init != (ws / name).exists(), "a mount locks a name that exists"


def test_in_the_landlock_tier_names_are_not_judged_for_reading(ws: Path) -> None:
    plan = plan_for(ws, LANDLOCK)
    for name in (".vscode/tasks.json", "app/.env"):
        assert asked(plan, ws / name, Operation.READ).allowed
    refused = asked(plan, ws / "app" / ".env")
    assert (refused.allowed, refused.by_init) == (False, True)
    assert refused.reason == f"{ws}/**/.env is denied, even inside a grant"
    assert not asked(plan, ws / "secret" / "key", Operation.READ).allowed


def test_in_the_landlock_tier_git_files_may_have_harmless_content(ws: Path) -> None:
    plan = plan_for(ws, LANDLOCK, secret=False)
    for name in (".git/config", ".git/index", ".git/HEAD", ".git/worktrees/one/commondir"):
        written = asked(plan, ws / name)
        assert written.allowed, name
        assert written.reason.endswith(
            "; git obeys this file, so it may have harmless content only"
        )
    assert asked(plan, ws / ".git" / "description").reason == "granted by p.toml:1"


def test_init_needs_the_rights_of_the_command_for_git_files(ws: Path) -> None:
    config, here = ws / ".git" / "config", replace(LANDLOCK, cwd=str(ws))
    blind = files(grant(Access.WRITE, f"{ws}/**"))
    assert "reading is not granted" in asked(compile_plan(policy(blind), here), config).reason
    alone = files(grant(Access.READ, f"{ws}/**"), grant(Access.ALLOW, str(config)))
    assert (
        asked(compile_plan(policy(alone), here), config).reason
        == f"git obeys this file, so paddock replaces it, and {ws}/.git is not writable"
    )


def test_in_the_landlock_tier_metadata_is_read_only_outside_writable_grants(ws: Path) -> None:
    plan = plan_for(ws, LANDLOCK)
    assert asked(plan, ws / "main.py", Operation.CHANGE).allowed
    refused = asked(plan, "/etc/hostname", Operation.CHANGE)
    assert (refused.allowed, refused.closed, refused.by_init) == (False, False, False)
    assert refused.reason == "read-only: outside every writable grant"
    shut = asked(plan, ws / "secret" / "key", Operation.CHANGE)
    assert (shut.allowed, shut.closed) == (False, True)


def test_without_seccomp_the_landlock_tier_judges_no_name(ws: Path) -> None:
    asked_for = files(grant(Access.ALLOW, f"{ws}/**", workspace=True))
    plan = compile_plan(replace(policy(asked_for), off=(Switch.SECCOMP,)), HOST)
    assert asked(plan, ws / ".vscode" / "tasks.json").allowed
    assert asked(plan, "/etc/hostname", Operation.CHANGE).allowed


def test_without_seccomp_the_full_tier_holds_only_protected_names_that_exist(ws: Path) -> None:
    asked_for = files(
        grant(Access.ALLOW, f"{ws}/**", workspace=True), denies=(deny("**/.env", line=7),)
    )
    plan = compile_plan(replace(policy(asked_for), off=(Switch.SECCOMP,)), FULL)
    new = asked(plan, ws / "new" / ".envrc", Operation.MAKE)
    assert (new.allowed, new.later) == (True, False)
    assert new.reason.endswith("writes are not judged, so a new one is not refused")
    denied = asked(plan, ws / "new" / ".env", Operation.MAKE)
    assert (denied.allowed, denied.later) == (False, True), "the guard masks it"
    (ws / ".envrc").write_text("as it was")
    there = asked(plan, ws / ".envrc", Operation.WRITE)
    assert (there.allowed, there.later) == (False, False)
    assert "protected" in there.reason


def test_without_landlock_mounts_tell_only_reading_from_writing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    relaxed = files(
        grant(Access.WRITE, f"{tmp_path}/**"), require_enforced=Sourced(False, source())
    )
    plan = compile_plan(policy(relaxed), replace(FULL, landlock_abi=0))
    assert asked(plan, tmp_path / "file", Operation.READ).allowed


def test_files_without_file_rules_are_open(ws: Path) -> None:
    open_ = replace(policy(files(grant(Access.READ, "/usr/**"))), off=(Switch.LANDLOCK,))
    assert (
        asked(compile_plan(open_, FULL), "/etc/shadow").reason
        == "files are not restricted: every path is open"
    )
