"""`paddock init` writes a first configuration. `paddock policy show` prints the values in
effect.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.features import need
from tests.support.sandbox import SandboxRunner, Word
from tests.support.tester import Outcome


def paddock(sandbox: SandboxRunner, *words: Word) -> Outcome:
    outcome = sandbox.tester.run([sandbox.installation.paddock, *words], cwd=sandbox.tree.project)
    assert "Traceback" not in outcome.stderr, outcome
    return outcome


@pytest.fixture
def own(sandbox: SandboxRunner) -> Iterator[Path]:
    need(
        "root",
        sandbox.tester.disposable,
        "the tests do not write the configuration of an ordinary user",
    )
    file = sandbox.tester.home / ".config" / "paddock" / "config.json"
    yield file
    file.unlink(missing_ok=True)
    shutil.rmtree(file.parent / "distros", ignore_errors=True)


def test_init_writes_careful_values_and_keeps_what_is_there(
    sandbox: SandboxRunner, own: Path
) -> None:
    """A-059 to A-062"""
    assert f"wrote {own}\n" in paddock(sandbox, "init", "--tools").stdout
    assert own.stat().st_mode & 0o777 == 0o600
    assert json.loads(own.read_text())["safety"] == {
        "require_approval_for_writes": True,
        "require_approval_for_execute": True,
        "allowed_paths": ["<cwd>/**"],
    }
    own.write_text('{"safety": {"read_only": true}, "max_steps": 7}')
    assert f"kept {own}\n" in paddock(sandbox, "init", "--tools").stdout
    shown = json.loads(paddock(sandbox, "policy", "show", "--json").stdout)
    assert shown["read_only"] == {"value": True, "origin": f"{own}:1"}
    assert shown["max_steps"]["value"] == 7
    assert shown["require_approval_for_writes"] == {"value": True, "origin": "built in"}
    denied = paddock(
        sandbox, "why", "--tool", "write_file", "--argument", "path=x", "--argument", "content=y"
    )
    assert denied.stdout.startswith("denied: write_file")
    assert f"wrote {own}\n" in paddock(sandbox, "init", "--tools", "--force").stdout
    assert "read_only" not in own.read_text()


def test_a_value_is_shown_with_where_it_comes_from(sandbox: SandboxRunner) -> None:
    flags = ("--read-only", "--no-restrict-to-cwd", "--denied-paths", "/a,b")
    lines = paddock(sandbox, "policy", "show", "--origin", *flags).stdout.splitlines()
    assert "read_only = true  (--read-only)" in lines
    assert 'allowed_paths = ["/**"]  (--restrict-to-cwd)' in lines
    assert "require_approval_for_writes = true  (built in)" in lines
    (denied,) = [line for line in lines if line.startswith("denied_paths = ")]
    assert "**/.env" in denied
    assert denied.endswith('"/a", "<cwd>/b"]  (built in, --denied-paths)')


def test_flags_count_for_a_question(sandbox: SandboxRunner) -> None:
    """A-064, A-065, A-067: no call asks any more, and denials stay."""
    free = ("--no-restrict-to-cwd", "--no-require-approval")
    for tool, argument, action in (
        ("read_file", "path=/usr/bin/env", "allow"),
        ("write_file", "path=x", "deny"),  # without content
        ("read_file", "path=/etc/shadow", "deny"),
        ("bash", "command=rm -rf /", "deny"),
    ):
        answer = paddock(sandbox, "why", *free, "--tool", tool, "--argument", argument, "--json")
        assert json.loads(answer.stdout)["action"] == action
    asked = paddock(sandbox, "why", "--tool", "bash", "--argument", "command=ls", "--json")
    assert json.loads(asked.stdout)["action"] == "ask"


@pytest.mark.parametrize(
    "words", [("init", "x"), ("policy",), ("policy", "hide"), ("why", "--path", "x", "--read-only")]
)
def test_policy_refuses_contradicting_options(
    sandbox: SandboxRunner, words: tuple[str, ...]
) -> None:
    assert paddock(sandbox, *words).exit_code == 125


def test_a_wrong_configuration_is_named(sandbox: SandboxRunner) -> None:
    """A-086"""
    config = sandbox.tree.put(sandbox.tree.root / "wrong.json", '{"safety": {"allowed_path": []}}')
    refused = paddock(sandbox, "policy", "show", "--config", config)
    assert refused.exit_code == 125
    assert "allowed_path" in refused.stderr


def test_a_configuration_in_a_writable_directory_needs_trust_also_through_a_link(
    sandbox: SandboxRunner, own: Path
) -> None:
    """The whole directory may be a link, as with dotfiles."""
    place = own.parent
    kept = place.with_name("paddock-kept")
    if place.exists():
        place.rename(kept)
    loose = sandbox.tree.put(
        sandbox.tree.project / "cfg" / "config.json", '{"safety": {"read_only": true}}'
    )
    sandbox.tester.give(loose.parent)
    place.parent.mkdir(exist_ok=True)
    place.symlink_to(loose.parent)
    try:
        outcome = paddock(sandbox, "policy", "show", "--json")
        assert (outcome.exit_code, outcome.stdout) == (125, ""), str(outcome)
        assert "is not trusted yet" in outcome.stderr
    finally:
        place.unlink()
        if kept.exists():
            kept.rename(place)
    assert paddock(sandbox, "policy", "show", "--json").exit_code == 0, (
        "the control: without the link"
    )


def test_init_writes_a_policy_of_the_project_that_a_run_accepts(sandbox: SandboxRunner) -> None:
    """Also with every commented line active."""
    project = sandbox.tree.project
    sandbox.tree.put(project / "Cargo.toml", "[package]\n")
    sandbox.tree.put(project / ".env.local", "KEY=1\n")
    file = project / "paddock.toml"
    written = paddock(sandbox, "init")
    assert written.stdout.startswith(f"wrote {file}\n"), written
    assert file.stat().st_uid == sandbox.tester.uid
    text = file.read_text()
    assert "@crates: the package registry, because of Cargo.toml" in text
    assert ".env.local" in text
    assert "@npm" not in text
    try:
        checked = paddock(sandbox, "check", "paddock.toml")
        assert (checked.exit_code, checked.stderr) == (0, ""), checked
        assert paddock(sandbox, "run", "--", "true").exit_code == 125, "not trusted yet"
        assert paddock(sandbox, "trust").exit_code == 0
        assert paddock(sandbox, "run", "--", "true").exit_code == 0
        assert paddock(sandbox, "init").stdout.startswith(f"kept {file}\n")
        active = text.replace("# [network]", "[network]").replace("# allowed", "allowed")
        # No file of this machine names the registry of an empty project.
        file.write_text(active.replace("# deny_globs", "deny_globs").replace(', "@crates"', ""))
        assert paddock(sandbox, "check", "paddock.toml").exit_code == 0
        asked = paddock(sandbox, "why", "--policy", "paddock.toml", "--host", "other.example")
        assert asked.exit_code != 0
        assert paddock(sandbox, "init", "--force").stdout.startswith(f"wrote {file}\n")
        assert file.read_text() == text
    finally:
        paddock(sandbox, "trust", "--revoke")
