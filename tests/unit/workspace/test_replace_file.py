"""The host changes a file after it was judged and before it is replaced. The version of the host
stays or comes back.

The upper directory is handmade here. tests/system/workspace tests real mounts.
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


class OverlayDirs:
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
        os.mknod(
            self.upper / name, 0o20000, 0
        )  # a whiteout: the one device that every user may create

    @property
    def found(self) -> dict[str, str]:
        return {
            str(path.relative_to(self.lower)): path.read_text() if path.is_file() else ""
            for path in sorted(self.lower.rglob("*"))
        }


@pytest.fixture
def overlay(tmp_path: Path) -> OverlayDirs:
    return OverlayDirs(tmp_path)


@pytest.fixture(params=["exchange", "steps"])
def meanwhile(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[Callable[[], object]], None]]:
    """Calls a function when all files are staged and none is in place, on file systems with and
    without exchange.
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


def test_control_apply_without_a_concurrent_change(
    overlay: OverlayDirs, meanwhile: Meanwhile
) -> None:
    (overlay.lower / "f").write_text("base")
    (overlay.upper / "f").write_text("session")
    meanwhile(lambda: None)
    assert not overlay.apply().left
    assert overlay.found == {"f": "session"}


@pytest.mark.parametrize("edit", [Path.write_text, replaced])
@pytest.mark.parametrize("session", ["changed", "deleted", "directory"])
def test_a_file_that_is_written_in_the_last_moment_comes_back(
    overlay: OverlayDirs, meanwhile: Meanwhile, edit: Callable[[Path, str], object], session: str
) -> None:
    (overlay.lower / "f").write_text("base")
    if session == "changed":
        (overlay.upper / "f").write_text("session")
    elif session == "deleted":
        overlay.whiteout("f")
    else:
        (overlay.upper / "f").mkdir()
        (overlay.upper / "f" / "inner").write_text("session")
    meanwhile(lambda: edit(overlay.lower / "f", "the host's"))
    outcome = overlay.apply()
    assert {change.obstacle for change in outcome.left} == {Obstacle.CONFLICT}
    assert overlay.found == {"f": "the host's"}


def test_a_name_that_is_taken_in_the_last_moment_stays_taken(
    overlay: OverlayDirs, meanwhile: Meanwhile
) -> None:
    (overlay.upper / "f").write_text("session")
    (overlay.upper / "d").mkdir()
    (overlay.upper / "d" / "f").write_text("session")

    def take() -> None:
        (overlay.lower / "f").write_text("the host's")
        (overlay.lower / "d").mkdir()
        (overlay.lower / "d" / "theirs").write_text("the host's")

    meanwhile(take)
    assert [change.path for change in overlay.apply().left] == ["d", "d/f", "f"]
    assert overlay.found == {"d": "", "d/theirs": "the host's", "f": "the host's"}


def test_a_directory_that_is_filled_in_the_last_moment_is_neither_removed_nor_replaced(
    overlay: OverlayDirs, meanwhile: Meanwhile
) -> None:
    for name in ("gone", "file"):
        (overlay.lower / name).mkdir()
        (overlay.lower / name / "old").write_text("base")
    overlay.whiteout("gone")
    (overlay.upper / "file").write_text("session")

    def fill() -> None:
        for name in ("gone", "file"):
            (overlay.lower / name / "theirs").write_text("the host's")

    meanwhile(fill)
    assert [change.path for change in overlay.apply().left] == ["file", "gone"]
    assert overlay.found == {
        "file": "",
        "file/theirs": "the host's",
        "gone": "",
        "gone/theirs": "the host's",
    }


def test_a_file_that_is_deleted_in_the_last_moment_is_a_conflict(
    overlay: OverlayDirs, meanwhile: Meanwhile
) -> None:
    (overlay.lower / "f").write_text("base")
    (overlay.upper / "f").write_text("session")
    meanwhile((overlay.lower / "f").unlink)
    assert [change.obstacle for change in overlay.apply().left] == [Obstacle.CONFLICT]
    assert overlay.found == {}


def test_a_mode_that_is_changed_in_the_last_moment_stays(
    overlay: OverlayDirs, meanwhile: Meanwhile
) -> None:
    for root, mode in ((overlay.lower, 0o644), (overlay.upper, 0o755)):
        (root / "f").write_text("same")
        (root / "f").chmod(mode)
    meanwhile(lambda: (overlay.lower / "f").chmod(0o600))
    assert [change.obstacle for change in overlay.apply().left] == [Obstacle.CONFLICT]
    assert (overlay.lower / "f").stat().st_mode & 0o777 == 0o600


def test_the_last_host_version_is_kept_or_nothing_is_overwritten(
    overlay: OverlayDirs, meanwhile: Meanwhile
) -> None:
    (overlay.lower / "f").write_text("the host's")
    (overlay.upper / "f").write_text("session")
    overlay.started_ns = 1
    meanwhile(lambda: (overlay.lower / "f").write_text("the host's newest"))
    assert [change.obstacle for change in overlay.apply("f").left] == [Obstacle.CONFLICT]
    assert overlay.found == {"f": "the host's newest"}
    meanwhile(lambda: None)
    assert not overlay.apply("f").left
    assert overlay.found == {"f": "session"}
    assert [path.read_text() for path in overlay.state.glob("kept/*/f")] == ["the host's newest"]


def test_a_host_version_that_cannot_be_kept_is_not_overwritten(
    overlay: OverlayDirs, meanwhile: Meanwhile
) -> None:
    (overlay.lower / "f").write_text("the host's")
    (overlay.upper / "f").write_text("session")
    overlay.started_ns = 1
    (overlay.state / "kept").write_text("in the way")
    meanwhile(lambda: None)
    outcome = overlay.apply("f")
    assert [change.obstacle for change in outcome.left] == [Obstacle.CONFLICT]
    assert "cannot remove the host's version" in outcome.left[0].reason
    assert overlay.found == {"f": "the host's"}


def test_an_apply_that_was_killed_before_its_last_line_has_nothing_left_to_settle(
    overlay: OverlayDirs,
) -> None:
    for name in ("file", "link", "gone"):
        (overlay.lower / name).mkdir()
        (overlay.lower / name / "old").write_text("base")
    (overlay.lower / "directory").write_text("base")
    (overlay.upper / "file").write_text("session")
    (overlay.upper / "link").symlink_to("/")
    overlay.whiteout("gone")
    (overlay.upper / "directory").mkdir()
    (overlay.upper / "directory" / "new").write_text("session")
    assert not overlay.apply().left
    found = overlay.found
    record = overlay.state / NAME
    record.write_text("".join(record.read_text().splitlines(keepends=True)[:-1]))
    outcome = overlay.apply()  # reports that everything is settled
    assert not outcome.applied
    assert not outcome.left
    assert overlay.found == found
    assert record.read_text().count('"end"') == 1
