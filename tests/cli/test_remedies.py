"""A message says what to type next, and that works when it is typed as printed."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.support.sandbox import SandboxRunner, Word
from tests.support.tester import Outcome


def _paddock(sandbox: SandboxRunner, *words: Word, cwd: Path | None = None) -> Outcome:
    outcome = sandbox.tester.run(
        [sandbox.installation.paddock, *words], cwd=cwd or sandbox.tree.project
    )
    assert "Traceback" not in outcome.stderr, outcome
    return outcome


@pytest.fixture
def name(sandbox: SandboxRunner) -> Path:
    return sandbox.tree.put(sandbox.tree.project / ".env", "KEY=1")


def test_a_message_about_a_denied_name_names_the_flag_that_opens_it(
    sandbox: SandboxRunner, name: Path
) -> None:
    """Of a grant, of an opened path, and of the question why."""
    asked = _paddock(sandbox, "why", "--path", name)
    told = [asked.stdout]
    for flag in ("--read", "--open-protected"):
        tried = _paddock(sandbox, "run", flag, name, "--", "cat", name)
        assert tried.exit_code == 1, tried
        assert "KEY" not in tried.stdout
        told.append(tried.stderr)
    for text in told:
        found = re.search(r"--open-protected '[^']+'", text)
        assert found, text
        flags = shlex.split(found[0])
        opened = _paddock(sandbox, "run", *flags, "--", "cat", name)
        assert (opened.exit_code, opened.stdout) == (0, "KEY=1"), opened


def test_a_refused_grant_of_keys_is_not_called_writable(sandbox: SandboxRunner) -> None:
    keys = sandbox.tester.home / ".ssh"
    tried = _paddock(sandbox, "run", "--allow", keys, "--", "ls", keys)
    assert tried.exit_code != 0
    assert f"{keys} is not granted" in tried.stderr
    assert "copy what the command needs to another directory" in tried.stderr
    assert "is writable" not in tried.stderr
    copied = sandbox.tree.put(sandbox.tree.root / "copied" / "config", "text")
    listed = _paddock(sandbox, "run", "--read", copied.parent, "--", "cat", copied)
    assert listed.stdout == "text", listed


def test_a_journal_around_the_workspace_is_refused_as_a_journal(sandbox: SandboxRunner) -> None:
    above = sandbox.tree.root / "x.jsonl"
    tried = _paddock(sandbox, "run", f"--audit={above}", "--", "true")
    assert tried.exit_code == 125
    assert tried.stderr.startswith("paddock: --audit: the directory of the journal"), tried
    assert not above.exists()
    journal = sandbox.tree.root / "journal"
    hint = f"--audit-log {journal}"
    assert "--audit-log /var/tmp/NAME" in tried.stderr
    assert _paddock(sandbox, "run", *hint.split(), "--", "true").exit_code == 0
    assert list(journal.glob("*.jsonl"))


def test_a_path_with_two_dots_is_repeated_without_them(sandbox: SandboxRunner) -> None:
    outside = sandbox.tree.put(sandbox.tree.root / "beside" / "file", "text")
    tried = _paddock(sandbox, "run", "--read", "../beside", "--", "cat", outside)
    assert tried.exit_code == 125
    _, _, path = tried.stderr.strip().rpartition(": ")
    assert path == str(outside.parent)
    assert _paddock(sandbox, "run", "--read", path, "--", "cat", outside).stdout == "text"


def test_a_missing_working_directory_is_made_as_the_hint_says(sandbox: SandboxRunner) -> None:
    wanted = sandbox.tree.project / "new dir"
    words: list[Word] = ["run", "--workdir", wanted, "--", "pwd"]
    tried = _paddock(sandbox, *words)
    assert tried.exit_code == 125
    found = re.search(r"`(mkdir -p .*)`", tried.stderr)
    assert found, tried
    assert sandbox.outside(shlex.split(found[1])).exit_code == 0
    assert _paddock(sandbox, *words).stdout == f"{wanted}\n"


def test_git_works_in_a_worktree_of_a_run_as_the_warning_says(sandbox: SandboxRunner) -> None:
    project = sandbox.tree.project
    author = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q", "."], [*author, "commit", "-q", "--allow-empty", "-m", "x"]):
        assert sandbox.outside(["git", *words]).exit_code == 0
    assert _paddock(sandbox, "run", "--", "git", "worktree", "add", "made").exit_code == 0
    tree = project / "made"
    tried = _paddock(sandbox, "run", "--", "git", "status", cwd=tree)
    assert tried.exit_code == 128
    found = re.search(r"to work here, start the run in (\S+)\n", tried.stderr)
    assert found, tried
    done = _paddock(sandbox, "run", "--", "git", "-C", tree, "status", cwd=Path(found[1]))
    assert done.exit_code == 0, done


def test_a_program_that_is_a_link_to_itself_is_called_so(sandbox: SandboxRunner) -> None:
    link = sandbox.tree.project / "loop"
    link.symlink_to("loop")
    for flags in ((), ("--dry-run",)):
        tried = _paddock(sandbox, "run", *flags, "--", "./loop")
        assert tried.exit_code == 126
        assert "a link leads to itself" in tried.stderr, tried


@pytest.mark.parametrize("words", [("check", "no.toml"), ("trust", "no.toml"), ("trust",)])
def test_a_missing_policy_file_is_named_by_its_path(
    sandbox: SandboxRunner, words: tuple[str, ...]
) -> None:
    tried = _paddock(sandbox, *words)
    assert tried.exit_code == 125
    named = (*words, "./paddock.toml")[1]
    assert tried.stderr.startswith(f"paddock: {named}: the policy file does not exist\n"), tried
    assert "--policy" not in tried.stderr
