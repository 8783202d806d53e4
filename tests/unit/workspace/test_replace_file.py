"""The host changes something after it was judged and before it is replaced: its version stays, or
comes back.

Upper is made by hand here. tests/system/workspace tests real mounts.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from paddock.workspace import system_calls
from paddock.workspace.apply import ApplyOutcome, apply
from paddock.workspace.apply_record import NAME, Record
from paddock.workspace.change import Obstacle
from paddock.workspace.conflicts import Selection, Terms, judge
from paddock.workspace.replace_file import Roots, recover
from paddock.workspace.scan import scan


class Ground:
    def __init__(self, root: Path) -> None:
        self.lower, self.upper, self.state = root / "lower", root / "upper", root / "state"
        for directory in (self.lower, self.upper, self.state):
            directory.mkdir()
        self.started_ns = 0

    def apply(self, *overwrite: str) -> ApplyOutcome:
        fds = [os.open(path, os.O_RDONLY) for path in (self.upper, self.lower, self.state)]
        try:
            roots = Roots(upper=fds[0], lower=fds[1], state=fds[2])
            record = Record.read(roots.state)
            assert recover(roots, record) == []
            selection = Selection(paths=overwrite)
            terms = Terms(
                started_ns=self.started_ns or time.time_ns() + 10**9,
                is_protected=lambda path, *, directory, link=False: False,
                selection=selection,
                overwrite=bool(overwrite),
            )
            return apply(roots, judge(scan(roots.upper, roots.lower), terms, record), terms, record)
        finally:
            for fd in fds:
                os.close(fd)

    def whiteout(self, name: str) -> None:
        os.mknod(self.upper / name, 0o20000, 0)  # the one device that anybody may make

    @property
    def found(self) -> dict[str, str]:
        return {
            str(path.relative_to(self.lower)): path.read_text() if path.is_file() else ""
            for path in sorted(self.lower.rglob("*"))
        }


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    return Ground(tmp_path)


@pytest.fixture(params=["exchange", "steps"])
def meanwhile(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[Callable[[], object]], None]]:
    """Do something when everything is staged and nothing is in place, on file systems of both
    kinds.
    """
    if request.param == "steps":

        def refuse(*_: object) -> None:
            raise OSError(errno.EINVAL, "no flags here")

        monkeypatch.setattr(system_calls, "_renameat2", refuse)
    acts: list[Callable[[], object]] = []

    def sync(_: int) -> None:
        while acts:
            acts.pop()()

    monkeypatch.setattr(system_calls, "sync", sync)
    yield acts.append
    assert not acts, "it was done"


Meanwhile = Callable[[Callable[[], object]], None]


def replaced(path: Path, text: str) -> None:
    path.with_name("host-editor").write_text(text)
    path.with_name("host-editor").rename(path)


def test_the_control_without_a_host_that_interferes(ground: Ground, meanwhile: Meanwhile) -> None:
    (ground.lower / "f").write_text("base")
    (ground.upper / "f").write_text("session")
    meanwhile(lambda: None)
    assert not ground.apply().left
    assert ground.found == {"f": "session"}


@pytest.mark.parametrize("edit", [Path.write_text, replaced])
@pytest.mark.parametrize("session", ["changed", "deleted", "directory"])
def test_a_file_that_is_written_in_the_last_moment_comes_back(
    ground: Ground, meanwhile: Meanwhile, edit: Callable[[Path, str], object], session: str
) -> None:
    (ground.lower / "f").write_text("base")
    if session == "changed":
        (ground.upper / "f").write_text("session")
    elif session == "deleted":
        ground.whiteout("f")
    else:
        (ground.upper / "f").mkdir()
        (ground.upper / "f" / "inner").write_text("session")
    meanwhile(lambda: edit(ground.lower / "f", "the host's"))
    outcome = ground.apply()
    assert {change.obstacle for change in outcome.left} == {Obstacle.CONFLICT}
    assert ground.found == {"f": "the host's"}


def test_a_name_that_is_taken_in_the_last_moment_stays_taken(
    ground: Ground, meanwhile: Meanwhile
) -> None:
    (ground.upper / "f").write_text("session")
    (ground.upper / "d").mkdir()
    (ground.upper / "d" / "f").write_text("session")

    def take() -> None:
        (ground.lower / "f").write_text("the host's")
        (ground.lower / "d").mkdir()
        (ground.lower / "d" / "theirs").write_text("the host's")

    meanwhile(take)
    assert [change.path for change in ground.apply().left] == ["d", "d/f", "f"]
    assert ground.found == {"d": "", "d/theirs": "the host's", "f": "the host's"}


def test_a_directory_that_is_filled_in_the_last_moment_is_neither_removed_nor_replaced(
    ground: Ground, meanwhile: Meanwhile
) -> None:
    for name in ("gone", "file"):
        (ground.lower / name).mkdir()
        (ground.lower / name / "old").write_text("base")
    ground.whiteout("gone")
    (ground.upper / "file").write_text("session")

    def fill() -> None:
        for name in ("gone", "file"):
            (ground.lower / name / "theirs").write_text("the host's")

    meanwhile(fill)
    assert [change.path for change in ground.apply().left] == ["file", "gone"]
    assert ground.found == {
        "file": "",
        "file/theirs": "the host's",
        "gone": "",
        "gone/theirs": "the host's",
    }


def test_a_file_that_is_deleted_in_the_last_moment_is_a_conflict(
    ground: Ground, meanwhile: Meanwhile
) -> None:
    (ground.lower / "f").write_text("base")
    (ground.upper / "f").write_text("session")
    meanwhile((ground.lower / "f").unlink)
    assert [change.obstacle for change in ground.apply().left] == [Obstacle.CONFLICT]
    assert ground.found == {}


def test_a_mode_that_is_changed_in_the_last_moment_stays(
    ground: Ground, meanwhile: Meanwhile
) -> None:
    for root, mode in ((ground.lower, 0o644), (ground.upper, 0o755)):
        (root / "f").write_text("same")
        (root / "f").chmod(mode)
    meanwhile(lambda: (ground.lower / "f").chmod(0o600))
    assert [change.obstacle for change in ground.apply().left] == [Obstacle.CONFLICT]
    assert (ground.lower / "f").stat().st_mode & 0o777 == 0o600


def test_the_overwritten_version_is_the_one_that_was_there_in_the_end_or_nothing_is_done(
    ground: Ground, meanwhile: Meanwhile
) -> None:
    (ground.lower / "f").write_text("the host's")
    (ground.upper / "f").write_text("session")
    ground.started_ns = 1
    meanwhile(lambda: (ground.lower / "f").write_text("the host's newest"))
    assert [change.obstacle for change in ground.apply("f").left] == [Obstacle.CONFLICT]
    assert ground.found == {"f": "the host's newest"}
    meanwhile(lambda: None)
    assert not ground.apply("f").left
    assert ground.found == {"f": "session"}
    assert [path.read_text() for path in ground.state.glob("kept/*/f")] == ["the host's newest"]


def test_no_room_to_keep_the_hosts_version_means_it_stays(
    ground: Ground, meanwhile: Meanwhile
) -> None:
    (ground.lower / "f").write_text("the host's")
    (ground.upper / "f").write_text("session")
    ground.started_ns = 1
    (ground.state / "kept").write_text("in the way")
    meanwhile(lambda: None)
    outcome = ground.apply("f")
    assert [change.obstacle for change in outcome.left] == [Obstacle.CONFLICT]
    assert "cannot remove the host's version" in outcome.left[0].reason
    assert ground.found == {"f": "the host's"}


def test_an_apply_that_was_killed_before_its_last_line_has_nothing_left_to_settle(
    ground: Ground,
) -> None:
    for name in ("file", "link", "gone"):
        (ground.lower / name).mkdir()
        (ground.lower / name / "old").write_text("base")
    (ground.lower / "directory").write_text("base")
    (ground.upper / "file").write_text("session")
    (ground.upper / "link").symlink_to("/")
    ground.whiteout("gone")
    (ground.upper / "directory").mkdir()
    (ground.upper / "directory" / "new").write_text("session")
    assert not ground.apply().left
    found = ground.found
    record = ground.state / NAME
    record.write_text("".join(record.read_text().splitlines(keepends=True)[:-1]))
    outcome = ground.apply()  # says that all could be settled
    assert not outcome.applied
    assert not outcome.left
    assert ground.found == found
    assert record.read_text().count('"end"') == 1
