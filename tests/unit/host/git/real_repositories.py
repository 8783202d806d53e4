"""Real repositories in a temporary directory, made by git itself."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

_QUIET = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_AUTHOR_NAME": "a",
    "GIT_AUTHOR_EMAIL": "a@b.invalid",
    "GIT_COMMITTER_NAME": "a",
    "GIT_COMMITTER_EMAIL": "a@b.invalid",
}


def git(*words: str | Path, cwd: Path) -> str:
    done = subprocess.run(
        ["git", *map(str, words)],
        cwd=cwd,
        env={**os.environ, **_QUIET},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        pytest.fail(f"git {words}: {done.stderr}")
    return done.stdout


def repository(path: Path) -> Path:
    path.mkdir(parents=True)
    git("init", "-q", "-b", "main", cwd=path)
    git("commit", "-q", "--allow-empty", "-m", "first", cwd=path)
    return path


def worktree(main: Path, path: Path, name: str = "topic") -> Path:
    git("worktree", "add", "-q", "-b", name, path, cwd=main)
    return path
