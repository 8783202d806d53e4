"""The container image: all its sources exist, and its entry point works as documented."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.features import need, need_program
from tests.support.sandbox import SandboxRunner

REPOSITORY = Path(__file__).parents[2]
EXAMPLE = REPOSITORY / "container"
ENTRY = EXAMPLE / "claude-entry"
KEY = "sk-ant-api03-not-a-real-key-" + "0123456789abcdefghij"


# ---- the image


def instructions() -> list[tuple[str, str]]:
    text = (EXAMPLE / "Dockerfile").read_text()
    lines = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE).replace("\\\n", " ").splitlines()
    return [
        (word, rest.strip())
        for word, _, rest in (line.partition(" ") for line in lines if line.strip())
    ]


def test_every_stage_and_every_file_the_image_is_built_from_exists() -> None:
    """F-018: a lint only. A build takes minutes, an engine and the base images."""
    ignored = set((REPOSITORY / ".dockerignore").read_text().split("\n"))
    bases = {rest.partition("=")[0] for word, rest in instructions() if word == "ARG"}
    stages: set[str] = set()
    for word, rest in instructions():
        if word == "FROM":
            base, _, stage = rest.partition(" AS ")
            assert base in stages or base.removeprefix("${").removesuffix("}") in bases, rest
            stages.add(stage)
        if word == "COPY" and rest.startswith("--from="):
            assert rest.removeprefix("--from=").split()[0] in stages, rest
        elif word == "COPY":
            source = rest.split()[0]
            assert (REPOSITORY / source).exists(), rest
            assert source not in ignored
    assert stages == {"wheel", "paddock", "agent", "claude"}
    assert {".git", ".venv", "core/target", "dist"} <= ignored
    assert [rest for word, rest in instructions() if word == "USER"][-1] == "1000", (
        "the agent does not run as root"
    )


def test_the_compose_service_uses_the_image_and_has_no_key() -> None:
    """F-020"""
    text = (EXAMPLE / "compose.yaml").read_text()
    assert "dockerfile: container/Dockerfile" in text
    assert "target: claude\n" in text
    assert re.search(r"^ +- ANTHROPIC_API_KEY( |$)", text, re.MULTILINE), (
        "variables are passed by name, without a value"
    )


def test_the_entry_point_is_a_sound_script() -> None:
    assert os.access(ENTRY, os.X_OK)
    checked = subprocess.run(
        [need_program("shellcheck"), ENTRY], capture_output=True, text=True, check=False
    )
    assert checked.stdout == ""


# ---- the entry point alone


@dataclass(frozen=True, slots=True, kw_only=True)
class Alone:
    """The entry point with its own home and a ``paddock`` that prints its arguments."""

    home: Path
    bin: Path

    @property
    def config(self) -> Path:
        return self.home / ".claude.json"

    def run(
        self, *words: str, key: str | None = KEY, cwd: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        environment = {"HOME": str(self.home), "PATH": f"{self.bin}:/usr/bin:/bin"}
        if key is not None:
            environment["ANTHROPIC_API_KEY"] = key
        return subprocess.run(
            [ENTRY, *words],
            env=environment,
            cwd=cwd or self.home,
            capture_output=True,
            text=True,
            check=False,
            umask=0,
        )


@pytest.fixture
def alone(tmp_path: Path) -> Alone:
    alone = Alone(home=tmp_path / "home", bin=tmp_path / "bin")
    alone.home.mkdir()
    alone.bin.mkdir()
    paddock = alone.bin / "paddock"
    paddock.write_text('#!/bin/sh\nfor word; do echo "$word"; done\n')
    paddock.chmod(0o755)
    return alone


def test_the_configuration_is_made_for_its_owner_only_and_does_not_hold_the_key(
    alone: Alone,
) -> None:
    """F-020, F-021"""
    assert alone.run().returncode == 0
    assert alone.config.stat().st_mode & 0o777 == 0o600
    assert (alone.home / ".claude").stat().st_mode & 0o777 == 0o700
    config = json.loads(alone.config.read_text())
    assert config["customApiKeyResponses"]["approved"] == [KEY[-20:]]
    assert config["projects"] == {str(alone.home): {"hasTrustDialogAccepted": True}}
    assert KEY not in "".join(path.read_text() for path in alone.home.rglob("*") if path.is_file())


def test_agent_runs_in_the_sandbox_without_its_own_prompts(alone: Alone) -> None:
    """F-020"""
    called = alone.run("-p", "two words").stdout.splitlines()
    assert called[0] == "run"
    assert called[called.index("--") :] == [
        "--",
        "claude",
        "--dangerously-skip-permissions",
        "-p",
        "two words",
    ]
    assert "--off" not in called
    assert KEY not in called, "every user can read command lines"


def test_a_configuration_that_is_there_is_kept(alone: Alone) -> None:
    alone.config.write_text("{}")
    alone.config.chmod(0o644)
    assert alone.run().returncode == 0
    assert alone.config.read_text() == "{}"
    assert alone.config.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("key", [None, "", 'a"b', "a b", "a\nb"])
def test_entry_point_writes_and_starts_nothing_without_a_valid_key(
    alone: Alone, key: str | None
) -> None:
    refused = alone.run(key=key)
    assert refused.returncode == 1
    assert refused.stdout == ""
    assert "ANTHROPIC_API_KEY" in refused.stderr
    assert list(alone.home.iterdir()) == []


def test_a_directory_whose_name_would_break_the_configuration_is_refused(
    alone: Alone, tmp_path: Path
) -> None:
    odd = tmp_path / 'quo"te'
    odd.mkdir()
    assert alone.run(cwd=odd).returncode == 1
    assert not alone.config.exists()


# ---- the entry point and the real sandbox


@pytest.fixture
def agents_home(sandbox: SandboxRunner) -> Iterator[Path]:
    """The tester's home, because the sandbox takes the home from the passwd file."""
    home = sandbox.tester.home
    need("root", sandbox.tester.disposable, "the home belongs to a real user")
    yield home
    (home / ".claude.json").unlink(missing_ok=True)
    (home / ".claude").rmdir()


def test_agent_in_the_sandbox_gets_its_key_and_configuration_only(
    sandbox: SandboxRunner, agents_home: Path
) -> None:
    """F-020"""
    project, tester = sandbox.tree.project, sandbox.tester
    evil = agents_home / ".evil"
    script = (
        f'echo started; echo "$ANTHROPIC_API_KEY $*"; cat ~/.claude.json; '
        f"echo {{}} >~/.claude.json; echo x >{evil}"
    )
    agent = sandbox.tree.put(project / "bin" / "claude", f"#!/bin/sh\n{script}\n", mode=0o755)
    entry = sandbox.tree.put(project / "claude-entry", ENTRY.read_text(), mode=0o755)
    search = f"{agent.parent}:{sandbox.installation.paddock.parent}:/usr/bin:/bin"
    outcome = tester.run(
        [entry, "-p", "hi"], cwd=project, env={"ANTHROPIC_API_KEY": KEY, "PATH": search}
    )
    assert outcome.started, str(outcome)
    assert f"{KEY} --dangerously-skip-permissions -p hi\n" in outcome.stdout, str(outcome)
    assert "hasCompletedOnboarding" in outcome.stdout
    assert (agents_home / ".claude.json").read_text() == "{}\n", "written by the agent"
    assert not evil.exists()
    assert tester.run([agent], cwd=project).started
    assert evil.exists(), "without the sandbox the same act succeeds"
    evil.unlink()
