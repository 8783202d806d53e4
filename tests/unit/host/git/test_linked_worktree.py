"""A ``.git`` file opens another repository only if that repository lists the worktree."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from paddock.host.git.file_snapshot import FileSnapshot
from paddock.host.git.linked_worktree import Opening, opening_of
from paddock.host.git.repository import repository_of
from paddock.host.git.worktree_links import Links, remember
from tests.unit.host.git.real_repositories import git, repository, worktree


def opening(top: Path, *, uid: int | None = None) -> Opening | str:
    looked = FileSnapshot()
    here = repository_of(str(top), looked)
    assert here
    assert here.linked
    return opening_of(here, looked, uid=os.getuid() if uid is None else uid)


def test_a_worktree_gets_what_git_writes_and_no_more(tmp_path: Path) -> None:
    main = repository(tmp_path / "r")
    found = opening(worktree(main, tmp_path / "w"))
    assert isinstance(found, Opening)
    assert found.read == f"{main}/.git"
    assert found.write == tuple(
        f"{main}/.git/{name}" for name in ("objects", "refs", "logs", "reftable", "worktrees/w")
    )
    for name in ("worktrees/w/gitdir", "worktrees/w/commondir", "objects/info/alternates"):
        assert f"{main}/.git/{name}" in found.locked
    written = {os.path.dirname(path) for path in found.write}
    assert f"{main}/.git/config" not in found.write
    assert f"{main}/.git/hooks" not in written


def test_a_worktree_of_a_bare_repository_gets_what_git_writes(tmp_path: Path) -> None:
    main = repository(tmp_path / "r")
    git("clone", "-q", "--bare", main, tmp_path / "bare", cwd=tmp_path)
    found = opening(worktree(tmp_path / "bare", tmp_path / "w"))
    assert isinstance(found, Opening)
    assert found.read == f"{tmp_path}/bare"
    assert f"{tmp_path}/bare/worktrees/w/config.worktree" in found.locked


def test_a_planted_file_does_not_open_a_repository_that_does_not_list_it(tmp_path: Path) -> None:
    main = repository(tmp_path / "victim")
    worktree(main, tmp_path / "w")
    planted = tmp_path / "planted"
    planted.mkdir()
    shutil.copy(tmp_path / "w" / ".git", planted / ".git")
    assert "does not list this worktree" in str(opening(planted))


def test_a_moved_worktree_is_not_listed_any_more(tmp_path: Path) -> None:
    worktree(repository(tmp_path / "r"), tmp_path / "w")
    (tmp_path / "w").rename(tmp_path / "moved")
    assert "does not list" in str(opening(tmp_path / "moved"))


def test_a_repository_of_another_user_stays_closed(tmp_path: Path) -> None:
    worktree(repository(tmp_path / "r"), tmp_path / "w")
    assert "belongs to uid" in str(opening(tmp_path / "w", uid=os.getuid() + 1))


def test_a_path_with_a_link_opens_nothing(tmp_path: Path) -> None:
    main = repository(tmp_path / "r")
    worktree(main, tmp_path / "w")
    (tmp_path / "alias").symlink_to(main)
    (tmp_path / "w" / ".git").write_text(f"gitdir: {tmp_path}/alias/.git/worktrees/w\n")
    assert "contains a symbolic link" in str(opening(tmp_path / "w"))


@pytest.mark.parametrize("common", ["../../../..", "..", "/"])
def test_an_entry_that_names_another_common_directory_is_no_worktree(
    tmp_path: Path, common: str
) -> None:
    main = repository(tmp_path / "r")
    worktree(main, tmp_path / "w")
    (main / ".git" / "worktrees" / "w" / "commondir").write_text(common + "\n")
    assert "is not a worktree of" in str(opening(tmp_path / "w"))


def test_a_repository_that_is_gone_opens_nothing(tmp_path: Path) -> None:
    main = repository(tmp_path / "r")
    worktree(main, tmp_path / "w")
    looked = FileSnapshot()
    here = repository_of(f"{tmp_path}/w", looked)
    assert here
    shutil.rmtree(main)
    assert "does not exist" in str(opening_of(here, looked, uid=os.getuid()))


def test_relative_names_are_followed_as_git_writes_them(tmp_path: Path) -> None:
    """git ≥ 2.48 with worktree.useRelativePaths"""
    main = repository(tmp_path / "r")
    worktree(main, tmp_path / "w")
    (tmp_path / "w" / ".git").write_text("gitdir: ../r/.git/worktrees/w\n")
    (main / ".git" / "worktrees" / "w" / "gitdir").write_text("../../../../w/.git\n")
    assert isinstance(opening(tmp_path / "w"), Opening)


def test_a_pair_is_remembered_once_and_only_as_a_pair(tmp_path: Path) -> None:
    state, uid = str(tmp_path / "state"), os.getuid()
    assert not Links.read(state, uid).know("/a", "/r/worktrees/a")
    for _ in range(2):
        remember(state, uid, "/a", "/r/worktrees/a")
    remember(state, uid, "/new\nline", "/r/worktrees/b")
    known = Links.read(state, uid)
    assert len(known.pairs) == 2
    assert known.know("/a", "/r/worktrees/a")
    assert known.know("/new\nline", "/r/worktrees/b")
    assert not known.know("/a", "/r/worktrees/b")


@pytest.mark.parametrize("content", [b"/a\0/r", b"/a\0", b"nonsense"])
def test_a_truncated_store_is_an_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "worktrees").write_bytes(content)
    with pytest.raises(Exception, match="truncated"):
        Links.read(str(tmp_path), os.getuid())


def test_a_store_that_others_can_write_is_an_error(tmp_path: Path) -> None:
    remember(str(tmp_path), os.getuid(), "/a", "/b")
    (tmp_path / "worktrees").chmod(0o666)
    with pytest.raises(Exception, match="only you can write"):
        Links.read(str(tmp_path), os.getuid())
