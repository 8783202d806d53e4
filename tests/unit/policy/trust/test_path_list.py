"""Paths that later runs need are kept, also with strange names. An entry is removed only for a
reason.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from paddock.errors import PolicyError
from paddock.policy.trust.journal_history import MIN_AGE_S, JournalHistory
from paddock.policy.trust.path_list import PathListFile, facts_of
from paddock.policy.trust.writable_history import WritableHistory
from paddock.text.path_walk import follow

STRANGE = ["/a b", "/line\nbreak", "/back\\slash", "/\\n", "/\\\\n\n", "/caf\udce9"]


@pytest.fixture
def state(tmp_path: Path) -> str:
    return str(tmp_path / "state")


def named(reach: WritableHistory) -> list[str]:
    return [tree.path for tree in reach.trees]


def test_every_name_comes_back_as_it_went(state: str) -> None:
    assert PathListFile(state, "x").read().facts == ()
    with PathListFile(state, "x").locked():
        written = PathListFile(state, "x").write(STRANGE)
    assert PathListFile(state, "x").read() == written
    assert list(written.paths) == STRANGE
    assert written.facts == facts_of(os.lstat(f"{state}/x"))
    assert os.listdir(state) == ["x"]
    assert os.lstat(f"{state}/x").st_mode & 0o777 == 0o600


@pytest.mark.parametrize("umask", [0o000, 0o777], ids=oct)
def test_umask_does_not_change_the_mode_of_the_list(state: str, umask: int) -> None:
    before = os.umask(umask)
    try:
        WritableHistory.record(state, [follow("/srv/a")])
        assert named(WritableHistory.record(state, [follow("/srv/b")])) == ["/srv/a", "/srv/b"]
    finally:
        os.umask(before)
    modes = [os.lstat(path).st_mode & 0o777 for path in (state, f"{state}/reach")]
    assert modes == [0o700, 0o600]


def test_nothing_to_remember_writes_nothing(state: str) -> None:
    assert WritableHistory.record(state, []).facts == ()
    assert JournalHistory.record(state, []).facts == ()
    assert os.listdir(state) == []


def test_an_unusable_state_directory_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file")
    with pytest.raises(PolicyError, match="cannot be used"):
        WritableHistory.record(str(tmp_path / "state"), [follow("/srv")])
    with pytest.raises(PolicyError, match="cannot be used"):
        JournalHistory.record(str(tmp_path / "state"), ["/srv"])


@pytest.mark.parametrize("mode", [0o602, 0o620, 0o666], ids=oct)
def test_a_path_list_that_others_could_have_written_is_refused(state: str, mode: int) -> None:
    WritableHistory.record(state, [follow("/srv/a")])
    os.chmod(f"{state}/reach", mode)
    with pytest.raises(PolicyError, match="only you can write"):
        WritableHistory.read(state)


def age(state: str) -> None:
    long_ago = os.lstat(f"{state}/journals").st_mtime - 2 * MIN_AGE_S
    os.utime(f"{state}/journals", (long_ago, long_ago))


def test_a_journal_that_is_gone_is_forgotten_but_not_before_its_run_could_make_it(
    state: str, tmp_path: Path
) -> None:
    made, never = tmp_path / "made", tmp_path / "never"
    made.mkdir()
    assert JournalHistory.record(state, [str(made), str(never)]).paths == (str(made), str(never))
    assert JournalHistory.record(state, []).paths == (str(made), str(never))
    age(state)
    assert JournalHistory.record(state, []).paths == (str(made),)
    assert JournalHistory.read(state).paths == (str(made),)


def test_a_journal_that_cannot_be_seen_is_not_gone(
    state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden = "/hidden/journal"
    JournalHistory.record(state, [hidden])
    age(state)
    look = os.lstat

    def refused(path: str) -> os.stat_result:
        if path == hidden:
            raise PermissionError(13, "Permission denied")
        return look(path)

    monkeypatch.setattr(os, "lstat", refused)
    assert JournalHistory.record(state, []).paths == (hidden,)


def test_a_journal_is_remembered_by_its_real_name(state: str, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert JournalHistory.record(state, [f"{tmp_path}/link/j"]).paths == (f"{tmp_path}/real/j",)
