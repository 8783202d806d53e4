"""A link on the path of a workspace counts only where no command could have made it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from paddock.errors import UsageError
from paddock.policy.trust.workspace_path import (
    current_directory,
    require_honest_cwd,
    resolved_workspace,
)
from paddock.policy.trust.writable_history import EMPTY_HISTORY, WritableHistory
from paddock.text.path_walk import follow


def _history(*paths: Path) -> WritableHistory:
    return WritableHistory().including([follow(str(path)) for path in paths])


def test_a_link_that_a_command_could_have_made_is_refused(tmp_path: Path) -> None:
    project, other = tmp_path / "project", tmp_path / "other"
    project.mkdir()
    other.mkdir()
    history = _history(project)
    (project / "work").symlink_to(other)
    assert resolved_workspace(project / "work", EMPTY_HISTORY) == str(other), "the control"
    with pytest.raises(UsageError, match=f"symlink {project}/work, which a sandboxed command"):
        resolved_workspace(project / "work", history)
    project.rename(tmp_path / "moved")
    with pytest.raises(UsageError, match="/moved/work, which a sandboxed command"):
        resolved_workspace(tmp_path / "moved" / "work", history)


def test_a_link_to_a_previously_writable_directory_is_followed(tmp_path: Path) -> None:
    """A run can not replace its own workspace, because it can not write the directory above it."""
    project = tmp_path / "project"
    project.mkdir()
    history = _history(project)
    project.rename(tmp_path / "moved")
    project.symlink_to(tmp_path / "moved")
    assert resolved_workspace(project, history) == str(tmp_path / "moved")


def test_the_path_that_the_shell_shows_counts(tmp_path: Path) -> None:
    project, other = tmp_path / "project", tmp_path / "other"
    project.mkdir()
    other.mkdir()
    (project / "work").symlink_to(other)
    history = _history(project)
    with pytest.raises(UsageError, match=f"directory {project}/work leads through the symlink"):
        require_honest_cwd(str(other), {"PWD": str(project / "work")}, history)
    for shown in (str(other), str(project), str(tmp_path / "gone"), "relative", ""):
        require_honest_cwd(str(other), {"PWD": shown}, history)
    require_honest_cwd(str(other), {}, history)


def test_a_deleted_current_directory_is_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    assert current_directory() == str(gone)
    gone.rmdir()
    with pytest.raises(UsageError, match="no longer exists"):
        current_directory()


def test_a_current_directory_outside_the_mounts_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "getcwd", lambda: "(unreachable)/x")
    with pytest.raises(UsageError, match="outside this mount namespace"):
        current_directory()
