"""``protect_globs``: names of the policy are protected like the built-in ones, in both tiers.

Each verdict is the state of the files on the host. Each control does the same acts without the
sandbox, and they succeed.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.features import need
from tests.support.sandbox import UNJUDGED, SandboxRunner
from tests.support.tree import ProjectTree

POLICY = """
[meta]
inherit = "ai-agent"
[filesystem]
protect_globs = ["<cwd>/deploy/**", "**/*.tfvars", "<cwd>/link/settings"]
"""
# Each act, and a test of the host that is true if the act succeeded.
ACTS = {
    "write": ("echo evil > deploy/prod", "grep -q evil deploy/prod"),
    "append": ("echo evil >> deploy/prod", "grep -q evil deploy/prod"),
    "truncate": ("truncate -s 0 deploy/prod", "test ! -s deploy/prod"),
    "mode": ("chmod 600 deploy/prod", "test $(stat -c %a deploy/prod) = 600"),
    "make below": ("mkdir deploy/new", "test -d deploy/new"),
    "remove": ("rm deploy/prod", "test ! -e deploy/prod"),
    "replace": ("echo evil > x && mv x deploy/prod", "grep -q evil deploy/prod"),
    "hard link": ("ln deploy/prod taken && echo evil > taken", "grep -q evil deploy/prod"),
    "move away": ("mv deploy elsewhere", "test ! -e deploy"),
    "make a name": ("echo evil > sub/live.tfvars", "test -e sub/live.tfvars"),
    "link a name": ("ln -s /etc/passwd sub/live.tfvars", "test -L sub/live.tfvars"),
    "rename to a name": ("echo evil > x && mv x sub/live.tfvars", "test -e sub/live.tfvars"),
    "bring a directory": ("mkdir d && echo > d/y && mv d deploy/d", "test -e deploy/d/y"),
    "by another path": ("cd sub && echo evil > ../deploy/prod", "grep -q evil deploy/prod"),
    "behind a link": ("echo evil > behind/settings", "grep -q evil behind/settings"),
}  # fmt: skip


@pytest.fixture(params=["landlock", "full"])
def sandbox(
    request: pytest.FixtureRequest, sandbox: SandboxRunner, host: dict[str, Any]
) -> SandboxRunner:
    if request.param == "full":
        need("namespaces", host["namespaces"]["usable"], str(host["namespaces"]))
    return replace(sandbox, tier=request.param)


def lay_out(tree: ProjectTree, top: Path) -> None:
    tree.put(top / "deploy" / "prod", "of the host\n")
    tree.put(top / "behind" / "settings", "of the host\n")
    tree.make(top / "sub")
    tree.tester.run(["ln", "-s", "behind", "link"], cwd=top)


@pytest.mark.parametrize("act", ACTS)
def test_a_name_of_the_policy_is_not_changed(sandbox: SandboxRunner, act: str) -> None:
    tree = sandbox.tree
    policy = tree.put(tree.root / "mine.toml", POLICY)
    script, verdict = ACTS[act]
    for top in (tree.project, tree.outside):
        lay_out(tree, top)
    inside = sandbox.inside(
        ["sh", "-c", f"echo started; cat deploy/prod; {script}"], "--policy", policy
    )
    assert inside.stdout.startswith("started\nof the host\n"), str(inside)
    assert sandbox.outside(["sh", "-c", verdict]).exit_code != 0, str(inside)
    control = sandbox.outside(["sh", "-c", script], cwd=tree.outside)
    done = sandbox.outside(["sh", "-c", verdict], cwd=tree.outside)
    assert done.exit_code == 0, f"{control}\n{done}"


def test_names_that_no_pattern_names_stay_writable(sandbox: SandboxRunner) -> None:
    tree = sandbox.tree
    policy = tree.put(tree.root / "mine.toml", POLICY)
    lay_out(tree, tree.project)
    inside = sandbox.inside(
        ["sh", "-c", "echo hi > sub/prod && echo hi > deploy.txt && mv sub s2 && echo hi > a.tf"],
        "--policy",
        policy,
    )
    assert inside.exit_code == 0, str(inside)
    assert (tree.project / "s2" / "prod").read_text() == "hi\n"
    assert (tree.project / "a.tf").read_text() == "hi\n"


def test_a_run_that_does_not_judge_writes_is_refused(sandbox: SandboxRunner) -> None:
    tree = sandbox.tree
    policy = tree.put(tree.root / "mine.toml", POLICY)
    refused = sandbox.inside(["touch", "ran"], *UNJUDGED, "--policy", policy)
    assert refused.exit_code == 125, str(refused)
    assert "protect" in refused.stderr
    assert "mine.toml:5" in refused.stderr
    assert not (tree.project / "ran").exists()
    accepted = tree.put(tree.root / "less.toml", POLICY + "require_enforced = false\n")
    control = sandbox.inside(["touch", "ran"], *UNJUDGED, "--policy", accepted)
    assert control.exit_code == 0, str(control)
    assert "cannot be enforced" in control.stderr
