"""`paddock check` knows what a run would refuse, and starts nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.sandbox import SandboxRunner, Word
from tests.support.tester import Outcome

_BASE = '[meta]\ninherit = "ai-agent"\n'


def _paddock(sandbox: SandboxRunner, *words: Word, **env: str) -> Outcome:
    outcome = sandbox.tester.run(
        [sandbox.installation.paddock, *words], cwd=sandbox.tree.project, env=env
    )
    assert "Traceback" not in outcome.stderr, outcome
    return outcome


def _policy(sandbox: SandboxRunner, text: str) -> Path:
    return sandbox.tree.put(sandbox.tree.root / "p.toml", _BASE + text)


@pytest.mark.parametrize(
    ("text", "sound", "words"),
    [
        (
            '[filesystem]\nallow_globs = ["{root}/made/*.txt"]\n',
            '[filesystem]\nallow_globs = ["{root}/made/**"]\n',
            "only as all of",
        ),
        (
            '[filesystem]\nread_globs = ["{root}/missing/**"]\n',
            '[filesystem]\nread_globs = ["{root}/missing/**?"]\n',
            "does not exist",
        ),
        (
            '[filesystem]\nallow_globs = [{{ path = "{root}/file/x/**", create = true }}]\n',
            '[filesystem]\nallow_globs = [{{ path = "{root}/made/x/**", create = true }}]\n',
            "or not a directory",
        ),
    ],
    ids=["widened write", "missing grant", "directory in a file"],
)
def test_check_refuses_a_policy_that_a_run_refuses(
    sandbox: SandboxRunner, text: str, sound: str, words: str
) -> None:
    root = sandbox.tree.root
    sandbox.tree.put(root / "file", "text")
    sandbox.tree.put(root / "made" / "a.txt", "text")
    started = sandbox.tree.project / "started"
    for refused, policy in ((True, text), (False, sound)):
        file = _policy(sandbox, policy.format(root=root))
        checked = _paddock(sandbox, "check", file)
        assert not started.exists()
        ran = _paddock(sandbox, "run", "--policy", file, "--", "touch", started)
        assert started.exists() is not refused, ran
        assert (checked.exit_code, ran.exit_code) == ((125, 125) if refused else (0, 0)), checked
        if refused:
            assert words in checked.stderr, checked
            assert checked.stderr.splitlines()[0] in ran.stderr
        else:
            assert checked.stdout == f"policy ok: {file}\n", checked


def test_check_creates_no_directory(sandbox: SandboxRunner) -> None:
    """A run of the same policy creates it."""
    made = sandbox.tree.root / "made"
    file = _policy(
        sandbox, f'[filesystem]\nallow_globs = [{{ path = "{made}/**", create = true }}]\n'
    )
    assert _paddock(sandbox, "check", file).exit_code == 0
    assert not made.exists()
    assert _paddock(sandbox, "run", "--policy", file, "--", "true").exit_code == 0
    assert made.is_dir()


def test_check_warns_of_a_list_of_denied_hosts_alone(sandbox: SandboxRunner) -> None:
    """With it every other host is open; with a list of allowed hosts the other hosts are closed."""
    warning = "denied_hosts alone leaves every other host open"
    for more, is_open in (("", True), ('allowed_hosts = ["a.example"]\n', False)):
        file = _policy(sandbox, f'[network]\ndenied_hosts = ["x.example"]\n{more}')
        asked = _paddock(sandbox, "why", "--policy", file, "--host", "other.example")
        assert (asked.exit_code == 0) is is_open, asked
        checked = _paddock(sandbox, "check", file)
        assert checked.exit_code == 0
        assert (f"warning: {file}:4: {warning}" in checked.stderr) is is_open, checked
        assert _paddock(sandbox, "check", "--strict", file).exit_code == (125 if is_open else 0)


def test_check_warns_of_a_secret_that_a_run_would_not_find(sandbox: SandboxRunner) -> None:
    file = _policy(
        sandbox,
        '[network.routes.x]\nupstream = "https://x.example"\ncredential = "env:TEST_KEY_X"\n'
        "endpoint_rules = []\n",
    )
    unset = _paddock(sandbox, "check", file)
    assert unset.exit_code == 0
    assert "the variable TEST_KEY_X is not set: a run would refuse now" in unset.stderr
    assert "export TEST_KEY_X=" in unset.stderr
    given = _paddock(sandbox, "check", file, TEST_KEY_X="0123456789abcdef")
    assert (given.exit_code, given.stderr) == (0, ""), given
