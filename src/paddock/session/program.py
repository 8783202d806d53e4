"""What else the kernel starts when a file is executed: the interpreter of its first line, or its dynamic loader.

Both are looked up when the file is executed, behind the fence, so a program can be allowed and still not start.
"""

from __future__ import annotations

import os
import struct
from typing import BinaryIO

HEAD = 256  # as much of a first line as the kernel reads (BINPRM_BUF_SIZE)
_ELF64 = b"\x7fELF\x02\x01"  # little endian; programs of other kinds are refused as a whole
_ELF_HEADER = struct.Struct("<32xQ14xHH")  # where the program headers begin, how long one is, how many there are
_PROGRAM_HEADER = struct.Struct("<I4xQ16xQ16x")  # kind, where its part of the file begins, how long that is
_INTERPRETER = 3  # PT_INTERP
_PATH_MAX = 4096
NESTED = 5  # a script may be interpreted by a script, and so on: the kernel stops there


def interpreter_of(path: str, *, loader: bool = True) -> str | None:
    """As written in the file, so maybe relative. None: it has none, or can not be read or understood."""
    try:
        # O_NONBLOCK: opening a pipe must not wait for a writer.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            head = file.read(HEAD) or b""
            script = head.startswith(b"#!")
            written = _first_line(head) if script or not loader else _loader(head, file)
    except (OSError, struct.error, ValueError):  # ValueError: an offset beyond all files
        # What may be executed need not be readable, and what looks like a program need not be one: the kernel decides.
        return None
    return os.fsdecode(written.partition(b"\0")[0]) or None


def script_chain(path: str, directory: str) -> list[tuple[str, str]]:
    """The file and the interpreter of each ``#!`` line, as it is named and where that leads: what the kernel brings to
    run."""
    chain = [(path, os.path.realpath(path))]
    while len(chain) <= NESTED and (interpreter := interpreter_of(chain[-1][1], loader=False)):
        chain.append((interpreter, os.path.realpath(os.path.join(directory, interpreter))))
    return chain


def _first_line(head: bytes) -> bytes:
    if not head.startswith(b"#!"):
        return b""
    words = head[2:].partition(b"\n")[0].split()
    return words[0] if words else b""


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
