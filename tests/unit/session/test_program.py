"""Which interpreter or loader a file asks for, whatever the file is."""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

import pytest

from paddock.session.program import interpreter_of, script_chain


@pytest.mark.parametrize(
    ("content", "interpreter"),
    [
        (b"#!/bin/sh\necho\n", "/bin/sh"),
        (b"#! /usr/bin/env python3\n", "/usr/bin/env"),
        (b"#!/bin/sh", "/bin/sh"),
        (b"#!/bin/sh\0x\n", "/bin/sh"),
        (b"#!sh -e\n", "sh"),
        (b"#!/caf\xe9\n", "/caf\udce9"),
        (b"#!\n/bin/sh\n", None),
        (b"#!", None),
        (b"echo\n", None),
        (b"", None),
        (b"\x7fELF\x02\x01", None),
        (b"\x7fELF\x01\x01" + bytes(300), None),
        (b"\x7fELF\x02\x01" + b"\xff" * 300, None),
    ],
)
def test_the_first_line_names_it_or_nobody(tmp_path: Path, content: bytes, interpreter: str | None) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    assert interpreter_of(str(path)) == interpreter


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b"#!/bin/sh\n", ("/bin/sh", None)),
        (b"#! \t/usr/bin/env -S a b \t\n", ("/usr/bin/env", "-S a b")),
        (b"#!/bin/sh a\0b\n", ("/bin/sh", "a")),
        (b"#!/bin/sh\0 x\n", ("/bin/sh", None)),
    ],
)
def test_a_first_line_has_one_argument(tmp_path: Path, line: bytes, expected: tuple[str, str | None]) -> None:
    """As the core reads it (core/src/gate/program.rs)."""
    path = tmp_path / "file"
    path.write_bytes(line)
    _, (named, _, argument), *_ = script_chain(str(path), "/")
    assert (named, argument) == expected


def test_a_dynamic_program_names_its_loader() -> None:
    loader = interpreter_of(os.path.realpath(sys.executable))
    assert loader is not None
    assert os.path.basename(loader).startswith("ld-")
    assert os.path.exists(loader)


def test_what_can_not_be_read_has_none(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path / "nowhere", tmp_path):
        assert interpreter_of(str(path)) is None


def test_a_damaged_program_is_no_error(tmp_path: Path) -> None:
    choose = random.Random(20261115)
    whole = Path(os.path.realpath("/bin/true")).read_bytes()[:8192]
    path = tmp_path / "file"
    for _ in range(300):
        damaged = bytearray(whole)
        for _ in range(4):
            damaged[choose.randrange(6, 200)] = choose.randrange(256)
        path.write_bytes(damaged)
        found = interpreter_of(str(path))
        assert found is None or "\0" not in found
