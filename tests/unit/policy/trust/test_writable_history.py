"""Previously writable paths are known by name and by inode."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from paddock.errors import PolicyError
from paddock.policy.trust.writable_history import WritableHistory, in_private_temp
from paddock.text.path_walk import Identity, Tree, follow


@pytest.fixture
def state(tmp_path: Path) -> str:
    return str(tmp_path / "state")


def identity(path: Path) -> Identity:
    return Identity.of(os.stat(path))


def record(state: str, *paths: Path) -> WritableHistory:
    recorded = WritableHistory.record(state, [follow(str(path)) for path in paths])
    assert WritableHistory.read(state) == recorded
    return recorded


def test_a_directory_is_known_by_name_and_inode(state: str, tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    reach = record(state, project)
    assert reach.trees == (Tree(path=str(project), identity=identity(project)),)
    renamed = project.rename(tmp_path / "renamed")
    for name in (renamed, renamed / "missing" / "deep", project, project / "x"):
        assert reach.holds(follow(str(name))), name
    (tmp_path / "link").symlink_to(renamed)
    assert reach.holds(follow(f"{tmp_path}/link/x"))
    assert not reach.holds(follow(f"{tmp_path}/project-evil"))
    assert not reach.holds(follow(str(tmp_path)))


def test_a_link_in_a_writable_tree_counts_with_its_target(state: str, tmp_path: Path) -> None:
    project, other = tmp_path / "project", tmp_path / "other"
    project.mkdir()
    other.mkdir()
    (project / "link").symlink_to(other)
    (tmp_path / "own").symlink_to(project / "link")
    reach = record(state, project)
    assert reach.holds(follow(f"{tmp_path}/own/file"))
    assert not reach.holds(follow(f"{other}/file"))


def test_a_path_inside_a_known_place_is_not_added(state: str, tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    first = record(state, tmp_path / "a", tmp_path / "a" / "b")
    assert [tree.path for tree in first.trees] == [f"{tmp_path}/a"]
    assert record(state, tmp_path / "a" / "c") == first
    assert len(record(state, tmp_path / "ab").trees) == 2


def test_another_directory_of_a_known_name_is_new(state: str, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    record(state, tmp_path / "a")
    (tmp_path / "a").rename(tmp_path / "old")
    (tmp_path / "a").mkdir()
    reach = record(state, tmp_path / "a")
    assert {tree.identity for tree in reach.trees} == {
        identity(tmp_path / "a"),
        identity(tmp_path / "old"),
    }


def test_a_device_that_got_another_number_is_no_second_entry(state: str, tmp_path: Path) -> None:
    device, inode = identity(tmp_path)
    before = WritableHistory(
        trees=(Tree(path=str(tmp_path), identity=Identity(device + 1, inode)),)
    )
    assert before.including([follow(str(tmp_path))]).trees == (
        Tree(path=str(tmp_path), identity=identity(tmp_path)),
    )


def test_through_a_link_both_names_are_known(state: str, tmp_path: Path) -> None:
    (tmp_path / "v1").mkdir()
    (tmp_path / "current").symlink_to("v1")
    reach = record(state, tmp_path / "current")
    assert [tree.path for tree in reach.trees] == [f"{tmp_path}/v1", f"{tmp_path}/current"]


def test_devices_have_no_lasting_inode(state: str) -> None:
    assert record(state, Path("/dev/shm"), Path("/dev/null")).trees == (
        Tree(path="/dev/shm"),
        Tree(path="/dev/null"),
    )


@pytest.mark.parametrize(
    "name", ["a b", "line\nbreak", "back\\slash", "\\n", "12:34 x", "caf\udce9"]
)
def test_strange_names_are_read_back(state: str, tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    assert record(state, tmp_path / name).holds(follow(f"{tmp_path}/{name}/x"))
    assert record(state, Path(f"/absent/{name}")).holds(follow(f"/absent/{name}"))


def test_lists_of_earlier_releases_are_read(state: str) -> None:
    os.makedirs(state)
    Path(state, "reach").write_text("/srv/a\n/srv/b\n")
    assert WritableHistory.read(state).trees == (Tree(path="/srv/a"), Tree(path="/srv/b"))


@pytest.mark.parametrize("text", ["relative\n", "1:2 relative\n", "1 /x\n", "a:b /x\n"])
def test_a_damaged_list_is_an_error(state: str, text: str) -> None:
    os.makedirs(state)
    Path(state, "reach").write_text(text)
    with pytest.raises(PolicyError, match="is damaged"):
        WritableHistory.read(state)


def test_a_list_of_another_user_is_an_error(state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    WritableHistory.record(state, [follow("/srv")])
    store = Path(state, "reach")
    for mode in (0o620, 0o602):
        store.chmod(mode)
        with pytest.raises(PolicyError, match="only you can write"):
            WritableHistory.read(state)
    store.chmod(0o600)
    owner = store.stat().st_uid
    monkeypatch.setattr(os, "getuid", lambda: owner + 1)
    with pytest.raises(PolicyError, match="only you can write"):
        WritableHistory.read(state)
    monkeypatch.undo()
    store.unlink()
    os.mkfifo(store)
    with pytest.raises(PolicyError, match="only you can write"):
        WritableHistory.read(state)


def test_private_temporary_directories_count_as_previously_writable() -> None:
    assert in_private_temp(follow("/tmp/paddock-1000-0123/x"), 1000)
    assert not in_private_temp(follow("/tmp/paddock-1001-0123/x"), 1000)
    assert not in_private_temp(follow("/var/tmp/paddock-1000-0123/x"), 1000)
