"""Previously writable paths are known by name and by inode."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from paddock.errors import PolicyError
from paddock.policy.trust import writable_history
from paddock.policy.trust.writable_history import WritableHistory, in_private_temp
from paddock.text.birth_time import born_object_at
from paddock.text.path_walk import Identity, Tree, follow


@pytest.fixture
def state(tmp_path: Path) -> str:
    return str(tmp_path / "state")


def identity(path: Path) -> Identity:
    return Identity.of(os.stat(path))


def tree(path: Path) -> Tree:
    found = born_object_at(str(path))
    assert found is not None
    return Tree(path=str(path), identity=identity(path), born_ns=found.born_ns)


def record(state: str, *paths: Path) -> WritableHistory:
    recorded = WritableHistory.record(state, [follow(str(path)) for path in paths])
    assert WritableHistory.read(state) == recorded
    return recorded


def test_a_directory_is_known_by_name_and_inode(state: str, tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    reach = record(state, project)
    assert reach.trees == (tree(project),)
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


def test_a_path_inside_a_known_tree_stays_known_when_the_tree_is_forgotten(
    state: str, tmp_path: Path
) -> None:
    (tmp_path / "home" / "project").mkdir(parents=True)
    (tmp_path / "home" / "bin").mkdir()
    record(state, tmp_path / "home", tmp_path / "home" / "project")
    assert WritableHistory.read(state).holds(follow(f"{tmp_path}/home/bin/tool"))
    after = WritableHistory.forget(state, f"{tmp_path}/home")
    assert after == WritableHistory.read(state)
    assert not after.holds(follow(f"{tmp_path}/home/bin/tool"))
    assert after.holds(follow(f"{tmp_path}/home/project/policy.toml"))
    assert record(state, tmp_path / "home").holds(follow(f"{tmp_path}/home/bin/tool"))


def test_a_known_path_is_not_added_again(state: str, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "link").symlink_to("a")
    paths = [tmp_path / "a", tmp_path / "missing", tmp_path / "link"]
    assert record(state, *paths) == record(state, *paths)
    assert len(record(state, *paths).trees) == 3


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
    assert before.including([follow(str(tmp_path))]).trees == (tree(tmp_path),)


def test_a_renamed_directory_is_known_after_its_device_got_another_number(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    known = tree(tmp_path / "a")
    assert known.identity is not None
    moved = replace(known, identity=known.identity._replace(device=known.identity.device + 1))
    (tmp_path / "a").rename(tmp_path / "b")
    assert WritableHistory(trees=(moved,)).holds(follow(f"{tmp_path}/b/x"))


def test_an_inode_number_that_comes_back_is_another_directory(state: str, tmp_path: Path) -> None:
    """The control: by the number alone, a fresh directory counts as writable."""
    used, by_number, renamed = set[Identity](), 0, list[Path]()
    for number in range(400):
        work = tmp_path / f"work-{number}"
        work.mkdir()
        used.add(identity(work))
        assert record(state, work).holds(follow(f"{work}/x"))
        if number % 100 == 0:
            renamed.append(work.rename(tmp_path / f"renamed-{number}"))
        else:
            work.rmdir()
        fresh = tmp_path / f"fresh-{number}"
        fresh.mkdir()
        by_number += identity(fresh) in used
        assert not WritableHistory.read(state).holds(follow(f"{fresh}/strict.toml")), number
        if number % 2:
            fresh.rmdir()
    history = WritableHistory.read(state)
    assert all(history.holds(follow(f"{path}/x")) for path in renamed)
    if by_number == 0:
        pytest.skip("this file system does not give an inode number again")
    assert by_number > 100


def test_a_new_directory_at_the_name_of_a_removed_one_was_not_written(
    state: str, tmp_path: Path
) -> None:
    (tmp_path / "a").mkdir()
    record(state, tmp_path / "a")
    (tmp_path / "a").rmdir()
    (tmp_path / "other").mkdir()
    assert WritableHistory.read(state).holds(follow(f"{tmp_path}/a/x")), "nothing is there yet"
    (tmp_path / "a").mkdir()
    assert not WritableHistory.read(state).holds(follow(f"{tmp_path}/a/x"))


def test_an_entry_goes_when_its_inode_number_comes_back(state: str, tmp_path: Path) -> None:
    gone = replace(tree(tmp_path), path=f"{tmp_path}/gone", born_ns=1)
    before = WritableHistory(trees=(gone, Tree(path=str(tmp_path.parent))))
    assert before.including([follow(str(tmp_path))]).trees[:-1] == before.trees[1:]


def test_the_list_keeps_the_last_directories_that_are_gone(
    state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writable_history, "MAX_GONE", 2)
    for name in ("a", "b", "c", "d"):
        (tmp_path / name).mkdir()
        record(state, tmp_path / name)
        (tmp_path / name).rename(tmp_path / f"{name}-renamed")
    (tmp_path / "e").mkdir()
    left = [os.path.basename(one.path) for one in record(state, tmp_path / "e").trees]
    assert left == ["c", "d", "e"]


def test_a_name_goes_with_the_directory_above_it(state: str, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    record(state, tmp_path / "a" / "missing", tmp_path / "b")
    (tmp_path / "a").rmdir()
    assert [one.path for one in record(state, tmp_path / "c").trees] == [
        f"{tmp_path}/b",
        f"{tmp_path}/c",
    ]


def test_an_entry_of_an_earlier_release_gets_its_birth_time(state: str, tmp_path: Path) -> None:
    os.makedirs(state)
    (tmp_path / "a").mkdir()
    device, inode = identity(tmp_path / "a")
    Path(state, "reach").write_text(f"{device}:{inode} {tmp_path}/a\n")
    assert WritableHistory.read(state).holds(follow(f"{tmp_path}/a/x"))
    assert record(state, tmp_path / "a").trees == (tree(tmp_path / "a"),)


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


@pytest.mark.parametrize(
    "text", ["relative\n", "1:2 relative\n", "1 /x\n", "a:b /x\n", "1:2:3:4 /x\n"]
)
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
