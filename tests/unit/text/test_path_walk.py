"""A path is walked as the kernel walks it. A path that cannot be read never counts as missing."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from paddock.errors import PolicyError
from paddock.text.path_walk import Identity, Tree, follow

EXAMPLES = json.loads(
    (Path(__file__).parents[3] / "schema" / "examples" / "paths.json").read_text()
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    tree, top = EXAMPLES["tree"], tmp_path.resolve()
    for name in tree["directories"]:
        (top / name).mkdir(parents=True)
    for name in tree["files"]:
        (top / name).write_text("")
    for name, target in tree["links"].items():
        (top / name).symlink_to(target.replace("{root}", str(top)))
    return top


@pytest.mark.parametrize("example", EXAMPLES["paths"], ids=lambda example: example["path"])
def test_path_walk_finds_the_same_links_and_end_as_the_core(
    root: Path, example: dict[str, Any]
) -> None:
    """core/src/kernel/resolved_path.rs reads the same examples."""
    walk = follow(f"{root}/{example['path']}")
    real, links, exists = root / example["real"], example["links"], example["exists"]
    assert walk.end.path == str(real)
    assert [link.path for link in walk.links] == [str(root / name) for name in links]
    assert walk.straight == (not links)
    assert walk.end.object == (Identity.of(os.lstat(real)) if exists else None)
    assert walk.end.directory == (exists and real.is_dir())
    for link in walk.links:
        assert link.object == Identity.of(os.lstat(link.path))
        assert link.above[0] == Identity.of(os.stat(os.path.dirname(link.path)))
    assert walk.end.above[-1] == Identity.of(os.stat("/"))


def test_kernel_resolves_the_same_path(root: Path) -> None:
    (root / "root").symlink_to("/")
    for written in ("a/b", "one/b", "two", "one/../file", "root", "root/../tmp", "two/..", "."):
        way = follow(f"{root}/{written}")
        assert way.end.path == os.path.realpath(root / written), written
        assert way.end.object == Identity.of(os.stat(root / written)), written


def test_the_written_name_is_absolute_and_follows_nothing(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(root)
    assert follow("./one/../one/b").written == f"{root}/one/b"


@pytest.mark.parametrize("path", EXAMPLES["loops"])
def test_a_loop_is_an_error(root: Path, path: str) -> None:
    with pytest.raises(PolicyError, match="too many symbolic links"):
        follow(f"{root}/{path}")


@pytest.mark.parametrize(("ours", "searchable"), [(True, False), (False, True), (False, False)])
def test_a_denied_lookup_counts_as_missing_only_below_a_foreign_closed_directory(
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


def test_other_lookup_errors_never_count_as_missing(root: Path) -> None:
    with pytest.raises(PolicyError, match="File name too long"):
        follow(f"{root}/{'x' * 300}")


def test_a_tree_is_named_by_whole_components() -> None:
    assert Tree(path="/a").names("/a/b")
    assert Tree(path="/a").names("/a")
    assert Tree(path="/").names("/a")
    assert not Tree(path="/a").names("/ab")
