"""The file rules behind `paddock why`, on real files. tests/system/files compares them with the
kernel.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from paddock.explain.file_rules import Judge, Judgement, Operation
from paddock.host.facts import Host
from paddock.plan import compile_plan
from paddock.plan.plan import Plan
from paddock.policy.model import Access, Sourced, Switch
from tests.unit.plan.plan_inputs import FULL, HOST, builtin, deny, files, grant, policy, source


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


def plan_for(ws: Path, host: Host, **more: object) -> Plan:
    asked = files(
        grant(Access.ALLOW, f"{ws}/**", workspace=True),
        grant(Access.ALLOW, "<tmp>/**"),
        denies=(builtin("**/.env", optional=True), deny(f"{ws}/secret/**")),
        **more,
    )
    return compile_plan(policy(asked), replace(host, cwd=str(ws)))


def asked(plan: Plan, path: Path | str, operation: Operation = Operation.WRITE) -> Judgement:
    return Judge(plan)(str(path), operation)


@pytest.mark.parametrize(
    "name", [".vscode/tasks.json", ".git/hooks/new", ".git/config", ".envrc", "sub/.mcp.json"]
)
def test_a_protected_name_can_be_read_and_not_written(ws: Path, name: str) -> None:
    plan = plan_for(ws, FULL)
    refused = asked(plan, ws / name)
    assert (refused.allowed, refused.closed) == (False, True)
    assert refused.reason.startswith("protected: read-only inside writable directories, because ")
    assert asked(plan, ws / ".vscode" / "tasks.json", Operation.READ).allowed


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


def test_in_the_landlock_tier_names_are_not_judged(ws: Path) -> None:
    plan = plan_for(ws, HOST)
    assert asked(plan, ws / ".vscode" / "tasks.json").allowed
    assert not asked(plan, ws / "secret" / "key", Operation.READ).allowed


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
