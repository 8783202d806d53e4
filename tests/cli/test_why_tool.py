"""`paddock why --tool`: the decision of [tools] about a call, without the call."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.sandbox import SandboxRunner, Word
from tests.support.tester import Outcome

POLICY = """
[tools]
denied_paths = ["<cwd>/private/**"]
command_rules = [{ id = "look", action = "allow", exe = "git", argv_regex = "^git status$" }]
"""


@pytest.fixture
def policy(sandbox: SandboxRunner) -> Path:
    return sandbox.tree.put(sandbox.tree.root / "p.toml", POLICY)


def why(sandbox: SandboxRunner, policy: Path, tool: str, *more: Word) -> Outcome:
    words: list[Word] = [
        sandbox.installation.paddock,
        "why",
        "--policy",
        policy,
        "--tool",
        tool,
        *more,
    ]
    outcome = sandbox.tester.run(words, cwd=sandbox.tree.project)
    assert "Traceback" not in outcome.stderr, outcome
    return outcome


def answer(
    sandbox: SandboxRunner, policy: Path, tool: str, argument: str, *more: Word
) -> tuple[str, int]:
    outcome = why(sandbox, policy, tool, "--argument", argument, "--json", *more)
    assert outcome.stdout, outcome
    answered: dict[str, Any] = json.loads(outcome.stdout)
    assert outcome.exit_code == (0 if answered["action"] == "allow" else 1)
    return answered["action"], answered["step"]


def test_a_call_is_judged_by_the_policy(sandbox: SandboxRunner, policy: Path) -> None:
    assert answer(sandbox, policy, "bash", "command=git status") == ("allow", 9)
    assert answer(sandbox, policy, "bash", "command=git status; rm -rf ~") == ("deny", 6)
    assert answer(sandbox, policy, "bash", "command=ls") == ("ask", 7)
    assert answer(sandbox, policy, "read_file", "path=README") == ("allow", 9)
    assert answer(sandbox, policy, "read_file", "path=private/x") == ("deny", 3)
    assert answer(sandbox, policy, "read_file", "path=/usr/bin/env") == ("deny", 4)
    shown = why(sandbox, policy, "bash", "--argument", "command=reboot")
    assert shown.stdout.startswith(
        "denied: bash command=reboot\n  because: it stops or restarts the machine"
    )


def test_options_add_to_the_lists_and_take_nothing_away(
    sandbox: SandboxRunner, policy: Path
) -> None:
    """A-037, A-039"""
    more = ("--denied-paths", "notes", "--denied-commands", "git status -s")
    assert answer(sandbox, policy, "read_file", "path=notes/x", *more) == ("deny", 3)
    assert answer(sandbox, policy, "bash", "command=git status -sb", *more) == ("deny", 6)
    assert answer(sandbox, policy, "read_file", "path=private/x", *more) == ("deny", 3)
    assert answer(sandbox, policy, "read_file", "path=.env", *more) == ("deny", 3)
    assert answer(sandbox, policy, "bash", "command=rm -rf /", *more) == ("deny", 6)
    refused = why(sandbox, policy, "read_file", "--argument", "path=x", "--denied-paths", "")
    assert refused.exit_code == 125


def test_why_refuses_invalid_arguments_of_a_tool(sandbox: SandboxRunner, policy: Path) -> None:
    for words in (
        ["--argument", "path"],
        ["--argument", "a=1", "--argument", "a=2"],
        ["--op", "read", "--denied-commands", "a | b"],
    ):
        outcome = why(sandbox, policy, "bash", *words)
        assert (outcome.exit_code, outcome.stderr.startswith("paddock: ")) == (125, True), outcome
    assert answer(sandbox, policy, "bash", "cmd=ls") == ("deny", 0)


def test_run_accepts_the_tools_section_and_explain_describes_it(
    sandbox: SandboxRunner, policy: Path
) -> None:
    """A run uses no tools. The same file configures a run and the programs that call tools."""
    sandbox.tree.put(policy, 'inherit = "ai-agent"\n'.join(("[meta]\nversion = 1\n", POLICY)))
    words: list[Word] = [sandbox.installation.paddock, "run", "--policy", policy, "--", "true"]
    ran = sandbox.tester.run(words, cwd=sandbox.tree.project)
    assert ran.exit_code == 0, ran
    explained = sandbox.tester.run(
        [sandbox.installation.paddock, "explain", "--policy", policy], cwd=sandbox.tree.project
    ).stdout
    (line,) = [line for line in explained.splitlines() if line.startswith("tools")]
    assert "[tools] applies to calls that a program makes through Paddock" in line
    assert "denied_paths" in explained
