"""The judged file is the opened file, also while a process swaps directories of the path."""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from paddock import Action, ToolCall, ToolPolicy
from paddock.tools.policy import open_judged
from paddock.tools.policy.open_judged import open_straight
from paddock.workspace.system_calls import exchange
from tests.support.features import need
from tests.support.waiting import NeverHappened

SWAPS, OPENS = 10_000, 2_000


@pytest.fixture(params=["openat2", "walk"])
def by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "walk":
        monkeypatch.setattr(open_judged, "_has_openat2", lambda: False)
    else:
        need("openat2", open_judged._has_openat2(), "this kernel has none")
    return str(request.param)


def read(fd: int) -> bytes:
    try:
        return os.read(fd, 100)
    finally:
        os.close(fd)


@pytest.mark.usefixtures("by")
def test_a_straight_path_opens_and_no_other(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "f").write_text("x")
    (tmp_path / "link").symlink_to("d")
    (tmp_path / "d" / "g").symlink_to("f")
    assert read(open_straight(f"{tmp_path}/d/f", os.O_RDONLY)) == b"x"
    for path in ("link/f", "d/g"):
        with pytest.raises(OSError, match=r"symbolic links|Not a directory"):
            open_straight(f"{tmp_path}/{path}", os.O_RDONLY)
    with pytest.raises(FileNotFoundError):
        open_straight(f"{tmp_path}/d/none", os.O_RDONLY)
    with pytest.raises(ValueError, match="not an absolute path"):
        open_straight(f"{tmp_path}/d/../d/f", os.O_RDONLY)
    with pytest.raises(ValueError, match="not an absolute path"):
        open_straight("d/f", os.O_RDONLY)


@pytest.mark.usefixtures("by")
def test_a_new_file_gets_its_mode_and_a_dangling_link_makes_none(tmp_path: Path) -> None:
    os.close(open_straight(f"{tmp_path}/new", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o640))
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) & ~0o640 == 0
    (tmp_path / "dangling").symlink_to("elsewhere")
    with pytest.raises(OSError, match=r"symbolic links|exists"):
        open_straight(f"{tmp_path}/dangling", os.O_WRONLY | os.O_CREAT)
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.usefixtures("by")
def test_a_fifo_does_not_block_the_call(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    os.close(open_straight(f"{tmp_path}/fifo", os.O_RDONLY))


@contextmanager
def swapping(work: Path, one: str, other: str) -> Iterator[mmap.mmap]:
    """A process that exchanges two names as fast as it can. It counts in the first eight bytes."""
    count = mmap.mmap(-1, 16)
    pid = os.fork()
    if pid == 0:
        try:
            fd = os.open(work, os.O_RDONLY | os.O_DIRECTORY)
            swaps = 0
            while count[8] == 0:
                exchange(one, other, fd)
                swaps += 1
                count[:8] = swaps.to_bytes(8, "little")
        finally:
            os._exit(0)
    try:
        yield count
    finally:
        count[8] = 1
        os.waitpid(pid, 0)


def swaps(count: mmap.mmap) -> int:
    return int.from_bytes(count[:8], "little")


def race(tmp_path: Path) -> Path:
    work = tmp_path / "work"
    for place, text in ((work / "d", "inside"), (tmp_path / "outside", "OUTSIDE")):
        place.mkdir(parents=True)
        (place / "f").write_text(text)
    (work / "e").symlink_to(tmp_path / "outside")
    return work


def test_ten_thousand_swaps_and_no_escape(
    tmp_path: Path, by: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A-175"""
    work = race(tmp_path)
    policy = ToolPolicy(cwd=work, home=tmp_path)
    seen: dict[str, int] = {}
    with swapping(work, "d", "e") as count:
        # The answers depend on the race, so the loop continues until each came once.
        while (
            swaps(count) < SWAPS
            or sum(seen.values()) < OPENS
            or not {"inside", "denied"} <= seen.keys()
        ):
            decision = policy.check(ToolCall(name="read_file", arguments={"path": "d/f"}))
            if decision.action is not Action.ALLOW:
                outcome = "denied"
            else:
                (place,) = decision.paths
                assert place.real is not None
                try:
                    outcome = read(open_straight(place.real, os.O_RDONLY)).decode()
                except OSError as error:
                    outcome = error.strerror or "error"
            seen[outcome] = seen.get(outcome, 0) + 1
        done = swaps(count)
    with capsys.disabled():
        print(f"\n{by}: {done} swaps, {sum(seen.values())} opens: {seen}")
    assert done >= SWAPS
    assert "OUTSIDE" not in seen


def test_control_check_then_open_by_name_loses_the_race(tmp_path: Path) -> None:
    work = race(tmp_path)
    inside = os.path.realpath(work)
    with swapping(work, "d", "e") as count:
        for _ in range(2_000_000):
            with suppress(OSError):
                looked = os.path.realpath(work / "d" / "f")
                if looked.startswith(f"{inside}/") and (work / "d" / "f").read_text() == "OUTSIDE":
                    return
    raise NeverHappened(f"not once in {swaps(count)} swaps")


def test_writing_through_the_race_changes_nothing_outside(tmp_path: Path) -> None:
    work = race(tmp_path)
    policy = ToolPolicy(cwd=work, home=tmp_path, require_approval_for_writes=False)
    written = 0
    with swapping(work, "d", "e") as count:
        while swaps(count) < SWAPS or not written:
            decision = policy.check(
                ToolCall(name="write_file", arguments={"path": "d/f", "content": "new"})
            )
            if decision.action is not Action.ALLOW or decision.paths[0].real is None:
                continue
            try:
                fd = open_straight(decision.paths[0].real, os.O_WRONLY | os.O_CREAT)
            except OSError:
                continue
            os.write(fd, b"changed")
            os.close(fd)
            written += 1
    assert (tmp_path / "outside" / "f").read_text() == "OUTSIDE"
    assert written
