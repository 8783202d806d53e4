"""The list of files that start Paddock: complete, without files that the user cannot change."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from paddock.core import process as core
from paddock.host import installation
from paddock.host.installation import entries_of, missing_entries, own_paths, search_dirs
from paddock.text.path_walk import Tree


def covered(path: str | Path, paths: tuple[str, ...]) -> bool:
    return any(Tree(path=own).names(os.path.realpath(path)) for own in paths)


def test_everything_this_very_process_was_started_from_is_listed(tmp_path: Path) -> None:
    paths = own_paths("/home/ada", "", "/")
    assert {"/home/ada/.config/paddock", "/home/ada/.local/state/paddock", "/etc/paddock"} <= set(
        paths
    )
    loaded = [
        module.__file__ for module in sys.modules.values() if getattr(module, "__file__", None)
    ]
    started = [core.program(), sys.executable, *filter(None, loaded)]
    ours = [path for path in started if os.access(os.path.dirname(os.path.realpath(path)), os.W_OK)]
    assert not [
        path
        for path in ours
        if not covered(path, paths) and not path.startswith(str(Path.cwd() / "tests"))
    ]


def test_links_are_listed_with_what_they_lead_to(tmp_path: Path) -> None:
    target = tmp_path / "real" / "paddock"
    target.parent.mkdir()
    target.touch()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "paddock").symlink_to(target)
    paths = own_paths("/home/ada", f"/absent:relative::{tmp_path}/bin", "/")
    assert {f"{tmp_path}/bin/paddock", str(target)} <= set(paths)


def test_no_name_lies_below_another() -> None:
    paths = own_paths("/home/ada", os.environ["PATH"], "/")
    assert not [
        (one, other)
        for one in paths
        for other in paths
        if one != other and Tree(path=one).names(other)
    ]
    assert list(paths) == sorted(paths)


def test_a_file_that_this_user_cannot_change_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installation, "_is_ours", lambda path: False)
    monkeypatch.setattr(os, "access", lambda path, mode, **more: False)
    monkeypatch.setattr(core, "program", lambda: "/usr/bin/paddock-core")
    assert own_paths("/home/ada", "/usr/bin", "/") == (
        "/etc/paddock", "/home/ada/.config/paddock", "/home/ada/.local/state/paddock",
        "/sys/fs/cgroup",
    )  # fmt: skip


def test_relative_entries_of_the_search_path_start_in_the_current_directory() -> None:
    assert search_dirs("bin::/usr/bin:.:/usr/bin/", "/work") == ("/work/bin", "/work", "/usr/bin")
    assert search_dirs("", "/work") == ()


def test_an_entry_is_a_path_that_exists_or_that_this_user_could_create(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = f"{tmp_path}/:{tmp_path}/:/proc/absent:bin"
    monkeypatch.setattr(os, "access", lambda path, mode: str(path).startswith(str(tmp_path)))
    monkeypatch.setattr(installation, "_is_ours", lambda path: False)
    assert list(entries_of(path, str(tmp_path))) == [
        f"{tmp_path}/paddock",
        f"{tmp_path}/bin/paddock",
    ]


def test_missing_entries_end_where_paddock_is_found(tmp_path: Path) -> None:
    (tmp_path / "found").mkdir()
    (tmp_path / "found" / "paddock").touch(mode=0o755)
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    path = f"first:absent/bin:link:{tmp_path}/found:last"
    assert missing_entries(path, str(tmp_path)) == tuple(
        f"{tmp_path}/{name}"
        for name in ("absent/bin/paddock", "first/paddock", "link", "real/paddock")
    )
    control = missing_entries(path.replace("found", "other"), str(tmp_path))
    assert f"{tmp_path}/last/paddock" in control
