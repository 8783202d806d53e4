"""The record of applies can be read back, also after a crash."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from paddock.errors import SessionError
from paddock.workspace.apply_record import NAME, ApplyStep, Intent, Record
from paddock.workspace.change import FileVersion, Type

OLD = FileVersion(type=Type.FILE, inode=1, mode=0o644, size=3, mtime_ns=5)
NEW = FileVersion(type=Type.FILE, inode=2, mode=0o600, size=4, mtime_ns=6)
STEP = ApplyStep(path="d/\udcff\n", temporary=".paddock-t-0", places=True, old=OLD)
INTENT = Intent(token="t", steps=(STEP,), directories={"d": (0o755, 0o700)})


@pytest.fixture(name="directory")
def _directory(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path, os.O_RDONLY)
    yield fd
    os.close(fd)


def test_a_record_is_read_back(directory: int) -> None:
    record = Record.read(directory)
    record.intend(INTENT)
    assert Record.read(directory).unfinished == INTENT
    assert Record.read(directory).temporaries == {".paddock-t-0", ".paddock-t-0~"}
    record.stage("t", {STEP.path: NEW})
    again = Record.read(directory)
    assert again.staged == {STEP.path: NEW}
    assert again.known == {OLD, NEW}
    assert again.directories == {"d": {0o755, 0o700}}
    record.end("t")
    ended = Record.read(directory)
    assert ended.unfinished is None
    assert ended.temporaries == frozenset()
    assert ended.known == {OLD, NEW}, "it still knows its files"


def test_an_overwritten_host_version_is_not_in_the_record(directory: int) -> None:
    step = ApplyStep(path="a", temporary=".paddock-t-0", places=True, old=OLD, keep=True)
    Record.read(directory).intend(Intent(token="t", steps=(step,), directories={}))
    assert Record.read(directory).known == set()


def test_a_torn_last_line_is_ignored(directory: int, tmp_path: Path) -> None:
    record = Record.read(directory)
    record.intend(INTENT)
    whole = (tmp_path / NAME).read_bytes()
    record.stage("t", {STEP.path: NEW})
    for length in range(len(whole), (tmp_path / NAME).stat().st_size):
        (tmp_path / NAME).write_bytes((whole + b'{"staged": "t", "files": {}}\n')[:length])
        torn = Record.read(directory)
        assert torn.unfinished == INTENT
    torn.end("t")
    assert Record.read(directory).unfinished is None


def test_a_record_that_is_not_understood_is_an_error(directory: int, tmp_path: Path) -> None:
    for text in ("{}\n", "[]\n", "nonsense\n", '{"apply": "t"}\n'):
        (tmp_path / NAME).write_text(text)
        with pytest.raises(SessionError, match="is invalid"):
            Record.read(directory)
