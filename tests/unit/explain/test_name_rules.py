"""Denied and protected names of a plan, on real files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from paddock.explain.name_rules import NameRules, protected_reason
from paddock.plan import compile_plan
from paddock.policy.model import Access, Sourced
from tests.unit.plan.plan_inputs import FULL, builtin, files, grant, policy, source


@pytest.fixture(name="rules")
def _rules(tmp_path: Path) -> NameRules:
    (tmp_path / ".git").mkdir()
    asked = files(
        grant(Access.ALLOW, f"{tmp_path}/**", workspace=True),
        denies=(builtin("**/.env", optional=True),),
        open_protected=(Sourced("**/open/.vscode", source()),),
    )
    plan = compile_plan(policy(asked), replace(FULL, cwd=str(tmp_path)))
    assert plan.files
    return NameRules(plan.files)


def test_a_pattern_concerns_the_name_itself(rules: NameRules, tmp_path: Path) -> None:
    assert rules.denied_by(f"{tmp_path}/a/.env") == f"{tmp_path}/**/.env"
    assert rules.denied_by(f"{tmp_path}/a/.env/below") is None
    assert rules.protects(f"{tmp_path}/a/.vscode")
    assert not rules.protects(f"{tmp_path}/a/vscode")


def test_an_opened_name_and_a_git_directory_are_not_protected(
    rules: NameRules, tmp_path: Path
) -> None:
    assert rules.is_opened(f"{tmp_path}/open/.vscode")
    assert not rules.protects(f"{tmp_path}/open/.vscode")
    assert not rules.protects(f"{tmp_path}/.git"), "only its parts are"
    assert rules.protects(f"{tmp_path}/sub/.git"), "a file of this name leads git elsewhere"


def test_a_repository_of_another_name_is_known_by_its_parts(
    rules: NameRules, tmp_path: Path
) -> None:
    hook = tmp_path / "bare" / "hooks" / "update"
    for name in ("HEAD", "objects", "refs"):
        assert not rules.is_in_git_directory(str(hook)), "a part is missing"
        (tmp_path / "bare" / name).mkdir(parents=True)
    assert rules.is_in_git_directory(str(hook))
    assert not rules.is_in_git_directory(str(tmp_path / "bare" / "HEAD"))


@pytest.mark.parametrize(
    ("name", "leads"), [(".git", True), (".git/hooks", False), ("a", False), (".envrc", False)]
)
def test_a_link_leads_to_protected_names_if_a_pattern_continues_below_it(
    rules: NameRules, tmp_path: Path, name: str, leads: bool
) -> None:
    assert rules.leads_to_protected(f"{tmp_path}/{name}") == leads


def test_the_reason_says_what_runs_the_name() -> None:
    plain = "protected: read-only inside writable directories"
    assert protected_reason("/w/.git/hooks/x").startswith(f"{plain}, because ")
    assert protected_reason("/w/chosen-by-the-user") == plain
