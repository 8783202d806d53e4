"""`paddock why --tool`: what [tools] says of a call, without making it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.fence import Fence, Word
from tests.support.tester import Outcome

POLICY = """
[tools]
denied_paths = ["<cwd>/private/**"]
command_rules = [{ id = "look", action = "allow", exe = "git", argv_regex = "^git status$" }]
"""


@pytest.fixture
def policy(fence: Fence) -> Path:
    return fence.ground.put(fence.ground.root / "p.toml", POLICY)


def why(fence: Fence, policy: Path, tool: str, *more: Word) -> Outcome:
    words: list[Word] = [
        fence.installation.paddock,
        "why",
        "--policy",
        policy,
        "--tool",
        tool,
        *more,
    ]
    outcome = fence.tester.run(words, cwd=fence.ground.project)
    assert "Traceback" not in outcome.stderr, outcome
    return outcome


def answer(fence: Fence, policy: Path, tool: str, argument: str, *more: Word) -> tuple[str, int]:
    outcome = why(fence, policy, tool, "--argument", argument, "--json", *more)
    assert outcome.stdout, outcome
    answered: dict[str, Any] = json.loads(outcome.stdout)
    assert outcome.exit_code == (0 if answered["action"] == "allow" else 1)
    return answered["action"], answered["step"]


def test_a_call_is_judged_by_the_policy(fence: Fence, policy: Path) -> None:
    assert answer(fence, policy, "bash", "command=git status") == ("allow", 9)
    assert answer(fence, policy, "bash", "command=git status; rm -rf ~") == ("deny", 6)
    assert answer(fence, policy, "bash", "command=ls") == ("ask", 7)
    assert answer(fence, policy, "read_file", "path=README") == ("allow", 9)
    assert answer(fence, policy, "read_file", "path=private/x") == ("deny", 3)
    assert answer(fence, policy, "read_file", "path=/usr/bin/env") == ("deny", 4)
    shown = why(fence, policy, "bash", "--argument", "command=reboot")
    assert shown.stdout.startswith(
        "denied: bash command=reboot\n  because: it stops or restarts the machine"
    )


def test_options_add_to_the_lists_and_take_nothing_away(fence: Fence, policy: Path) -> None:
    """A-037, A-039"""
    more = ("--denied-paths", "notes", "--denied-commands", "git status -s")
    assert answer(fence, policy, "read_file", "path=notes/x", *more) == ("deny", 3)
    assert answer(fence, policy, "bash", "command=git status -sb", *more) == ("deny", 6)
    assert answer(fence, policy, "read_file", "path=private/x", *more) == ("deny", 3)
    assert answer(fence, policy, "read_file", "path=.env", *more) == ("deny", 3)
    assert answer(fence, policy, "bash", "command=rm -rf /", *more) == ("deny", 6)
    refused = why(fence, policy, "read_file", "--argument", "path=x", "--denied-paths", "")
    assert refused.exit_code == 125


def test_a_senseless_combination_is_an_error(fence: Fence, policy: Path) -> None:
    for words in (
        ["--argument", "path"],
        ["--argument", "a=1", "--argument", "a=2"],
        ["--op", "read", "--denied-commands", "a | b"],
    ):
        outcome = why(fence, policy, "bash", *words)
        assert (outcome.exit_code, outcome.stderr.startswith("paddock: ")) == (125, True), outcome
    assert answer(fence, policy, "bash", "cmd=ls") == ("deny", 0)


def test_a_run_takes_the_section_and_explain_says_what_it_is_for(
    fence: Fence, policy: Path
) -> None:
    """Nothing in a run goes through tools; the same file governs a run and those who call them."""
    fence.ground.put(policy, 'inherit = "ai-agent"\n'.join(("[meta]\nversion = 1\n", POLICY)))
    words: list[Word] = [fence.installation.paddock, "run", "--policy", policy, "--", "true"]
    ran = fence.tester.run(words, cwd=fence.ground.project)
    assert ran.exit_code == 0, ran
    explained = fence.tester.run(
        [fence.installation.paddock, "explain", "--policy", policy], cwd=fence.ground.project
    ).stdout
    (line,) = [line for line in explained.splitlines() if line.startswith("tools")]
    assert "[tools] applies to calls that a program makes through Paddock" in line
    assert "denied_paths" in explained
