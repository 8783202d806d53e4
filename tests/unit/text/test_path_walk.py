"""A path is walked as the kernel walks it; what can not be looked at is never taken for nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from paddock.errors import PolicyError
from paddock.text.path_walk import Identity, Tree, follow


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "file").write_text("")
    (tmp_path / "one").symlink_to("a")
    (tmp_path / "two").symlink_to(tmp_path / "one" / "b")
    (tmp_path / "a" / "up").symlink_to("two")
    (tmp_path / "root").symlink_to("/")
    return tmp_path.resolve()


@pytest.mark.parametrize(
    ("written", "real", "links", "found"),
    [
        ("a/b", "a/b", [], "a/b"),
        ("one/b", "a/b", ["one"], "a/b"),
        ("two", "a/b", ["two", "one"], "a/b"),
        ("two/../up/x", "a/two/x", ["two", "one", "a/up"], None),
        ("a/./b//", "a/b", [], "a/b"),
        ("a/..", "", [], ""),
        ("missing/x", "missing/x", [], None),
        ("file/x", "file/x", [], None),
        ("file", "file", [], "file"),
    ],
)
def test_every_link_is_told_and_where_the_path_ends(
    root: Path, written: str, real: str, links: list[str], found: str | None
) -> None:
    way = follow(f"{root}/{written}")
    assert way.end.path == str(root / real)
    assert [link.path for link in way.links] == [str(root / name) for name in links]
    assert way.straight == (not links)
    assert way.end.object == (Identity.of(os.lstat(root / found)) if found is not None else None)
    assert way.end.directory == (found is not None and (root / found).is_dir())
    for link in way.links:
        assert link.object == Identity.of(os.lstat(link.path))
        assert link.above[0] == Identity.of(os.stat(os.path.dirname(link.path)))
    assert way.end.above[-1] == Identity.of(os.stat("/")) or way.end.path == "/"


def test_the_kernel_agrees(root: Path) -> None:
    for written in ("a/b", "one/b", "two", "one/../file", "root", "root/../tmp", "two/..", "."):
        way = follow(f"{root}/{written}")
        assert way.end.path == os.path.realpath(root / written), written
        assert way.end.object == Identity.of(os.stat(root / written)), written


def test_the_written_name_is_absolute_and_follows_nothing(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(root)
    assert follow("./one/../one/b").written == f"{root}/one/b"


def test_a_loop_is_an_error(root: Path) -> None:
    (root / "loop").symlink_to("loop")
    with pytest.raises(PolicyError, match="too many symbolic links"):
        follow(str(root / "loop"))


@pytest.mark.parametrize(("ours", "searchable"), [(True, False), (False, True), (False, False)])
def test_a_refused_look_is_nothing_only_in_a_directory_that_another_user_has_shut(
    root: Path, monkeypatch: pytest.MonkeyPatch, ours: bool, searchable: bool
) -> None:
    look = os.lstat

    def refused(path: str) -> os.stat_result:
        if str(path).startswith(f"{root}/a/"):
            raise PermissionError(13, "Permission denied")
        return look(path)

    monkeypatch.setattr(os, "lstat", refused)
    monkeypatch.setattr(os, "access", lambda path, mode: searchable)
    monkeypatch.setattr(os, "getuid", lambda: look(root / "a").st_uid + (not ours))
    if ours or searchable:
        with pytest.raises(PolicyError, match=f"{root}/a: cannot follow this path"):
            follow(f"{root}/one/b/c")
    else:
        way = follow(f"{root}/one/b/c")
        assert (way.end.path, way.end.object) == (f"{root}/a/b/c", None)


def test_other_errors_are_never_nothing(root: Path) -> None:
    with pytest.raises(PolicyError, match="File name too long"):
        follow(f"{root}/{'x' * 300}")


def test_a_tree_is_named_by_whole_components() -> None:
    assert Tree(path="/a").names("/a/b")
    assert Tree(path="/a").names("/a")
    assert Tree(path="/").names("/a")
    assert not Tree(path="/a").names("/ab")
