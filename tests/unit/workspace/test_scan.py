"""Overlay marks are read from attributes. A read error does not count as "no marks"."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from paddock.workspace.scan import _marks_of


def test_attributes_that_cannot_be_read_are_an_error(tmp_path: Path) -> None:
    unreadable = os.open(tmp_path, os.O_PATH)
    try:
        with pytest.raises(OSError, match="Bad file descriptor"):
            _marks_of(unreadable)
    finally:
        os.close(unreadable)
    readable = os.open(tmp_path, os.O_RDONLY)
    try:
        assert _marks_of(readable) == frozenset()
    finally:
        os.close(readable)
