"""What else the kernel starts when a file is executed: the interpreter of its first line, or its dynamic loader.

Both are looked up when the file is executed, behind the fence, so a program can be allowed and still not start.
"""

from __future__ import annotations

import os
import re
import struct
from typing import BinaryIO

HEAD = 256  # as much of a first line as the kernel reads (BINPRM_BUF_SIZE)
_ELF64 = b"\x7fELF\x02\x01"  # little endian; programs of other kinds are refused as a whole
_ELF_HEADER = struct.Struct("<32xQ14xHH")  # where the program headers begin, how long one is, how many there are
_PROGRAM_HEADER = struct.Struct("<I4xQ16xQ16x")  # kind, where its part of the file begins, how long that is
_INTERPRETER = 3  # PT_INTERP
_PATH_MAX = 4096
NESTED = 5  # a script may be interpreted by a script, and so on: the kernel stops there


def interpreter_of(path: str) -> str | None:
    """As written in the file, so maybe relative. None: it has none, or can not be read or understood."""
    try:
        # O_NONBLOCK: opening a pipe must not wait for a writer.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            head = file.read(HEAD) or b""
            written = _first_line(head)[0] if head.startswith(b"#!") else _loader(head, file)
    except (OSError, struct.error, ValueError):  # ValueError: an offset beyond all files
        # What may be executed need not be readable, and what looks like a program need not be one: the kernel decides.
        return None
    return os.fsdecode(written.partition(b"\0")[0]) or None


def script_chain(path: str, directory: str) -> list[tuple[str, str, str | None]]:
    """The file and the interpreter of each ``#!`` line, as it is named, where that leads, and the argument that the
    line gives to it: what the kernel brings to run."""
    chain: list[tuple[str, str, str | None]] = [(path, os.path.realpath(path), None)]
    while len(chain) <= NESTED:
        try:
            with open(os.open(chain[-1][1], os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
                interpreter, argument = _first_line(file.read(HEAD) or b"")
        except OSError:
            break
        if not interpreter:
            break
        named = os.fsdecode(interpreter)
        told = None if argument is None else os.fsdecode(argument)
        chain.append((named, os.path.realpath(os.path.join(directory, named)), told))
    return chain


def _first_line(head: bytes) -> tuple[bytes, bytes | None]:
    """The interpreter and its one argument, which may have blanks inside."""
    if not head.startswith(b"#!"):
        return b"", None
    line = head[2:].partition(b"\n")[0].strip(b" \t")
    interpreter = re.split(rb"[ \t\0]", line, maxsplit=1)[0]
    rest = line[len(interpreter) :].lstrip(b" \t").partition(b"\0")[0]
    return interpreter, rest or None


def _loader(head: bytes, file: BinaryIO) -> bytes:
    if not head.startswith(_ELF64):
        return b""
    start, size, count = _ELF_HEADER.unpack_from(head)
    if size != _PROGRAM_HEADER.size:
        return b""
    file.seek(start)
    for kind, offset, length in _PROGRAM_HEADER.iter_unpack(file.read(size * count)):
        if kind == _INTERPRETER:
            file.seek(offset)
            return file.read(min(length, _PATH_MAX))
    return b""
