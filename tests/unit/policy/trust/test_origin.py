"""The user, the home and the current directory of a request. $HOME does not decide the home."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from paddock.errors import UsageError
from paddock.policy import Origin
from paddock.policy.trust.origin import checked_home


def passwd(monkeypatch: pytest.MonkeyPatch, home: str | None) -> None:
    def entry(uid: int) -> pwd.struct_passwd:
        if home is None:
            raise KeyError(uid)
        return pwd.struct_passwd(("ada", "x", uid, 4321, "", home, "/bin/sh"))

    monkeypatch.setattr(pwd, "getpwuid", entry)


def test_home_comes_from_the_passwd_entry(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """C-025: XDG variables are ignored."""
    passwd(monkeypatch, str(tmp_path))
    monkeypatch.setenv("HOME", "/")
    monkeypatch.setenv("USER", "root")
    monkeypatch.setenv("XDG_CONFIG_HOME", "/evil")
    monkeypatch.setenv("XDG_STATE_HOME", "/evil")
    origin = Origin.of_process()
    assert (origin.home, origin.user, origin.uid, origin.gid) == (
        str(tmp_path),
        "ada",
        os.getuid(),
        4321,
    )
    assert origin.config_dir == f"{tmp_path}/.config/paddock"
    assert origin.state_dir == f"{tmp_path}/.local/state/paddock"


def test_without_a_passwd_entry_a_home_of_the_user_is_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    passwd(monkeypatch, None)
    monkeypatch.setenv("HOME", str(tmp_path))
    origin = Origin.of_process()
    assert (origin.home, origin.user) == (str(tmp_path), str(os.getuid()))


@pytest.mark.parametrize(
    "home", ["", "/", "//", "/.", "relative", "./x", "/usr/..", "/nonexistent/home"]
)
def test_without_a_passwd_entry_a_bad_home_is_refused(
    monkeypatch: pytest.MonkeyPatch, home: str
) -> None:
    passwd(monkeypatch, None)
    monkeypatch.setenv("HOME", home)
    with pytest.raises(UsageError) as caught:
        Origin.of_process()
    assert caught.value.hint


@pytest.mark.parametrize("home", ["", "/", "//", "relative"])
def test_a_bad_passwd_entry_is_refused_too(monkeypatch: pytest.MonkeyPatch, home: str) -> None:
    passwd(monkeypatch, home)
    with pytest.raises(UsageError, match="home directory"):
        Origin.of_process()


def test_a_link_to_the_root_directory_is_the_root_directory(tmp_path: Path) -> None:
    link = tmp_path / "home"
    link.symlink_to("/")
    with pytest.raises(UsageError, match="root directory"):
        checked_home(str(link), os.getuid(), said_by="test")


def test_a_home_of_another_user_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="belongs to uid"):
        checked_home(str(tmp_path), os.getuid() + 1, said_by="test")


def test_a_home_that_is_not_there_is_no_danger() -> None:
    assert (
        checked_home("/nonexistent/home", os.getuid(), said_by="the passwd entry")
        == "/nonexistent/home"
    )
