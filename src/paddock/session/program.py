"""What else the kernel starts when a file is executed: the interpreter of its first line, or its dynamic loader.

Both are looked up when the file is executed, behind the fence, so a program can be allowed and still not start.
"""

from __future__ import annotations

import struct

HEAD = 256  # as much of a first line as the kernel reads (BINPRM_BUF_SIZE)
_ELF64 = b"\x7fELF\x02\x01"  # little endian; other kinds of machine are refused as a whole
_PROGRAM_HEADERS = struct.Struct("<32xQ14xHH")  # where they begin, how long one is, how many there are
_PROGRAM_HEADER = struct.Struct("<I4xQ16xQ")  # kind, where its part of the file begins, how long that is
_INTERPRETER = 3  # PT_INTERP


def interpreter_of(path: str) -> str | None:
    """As written in the file, so maybe relative. None: it has none, or is no file that can be read or understood."""
    try:
        with open(path, "rb") as file:
            head = file.read(HEAD)
            if head.startswith(b"#!"):
                words = head[2:].partition(b"\n")[0].split()
                return words[0].decode("utf-8", "surrogateescape") if words else None
            if not head.startswith(_ELF64):
                return None
            start, size, count = _PROGRAM_HEADERS.unpack_from(head)
            file.seek(start)
            headers = file.read(size * count)
            for at in range(0, size * count, max(size, 1)):
                kind, offset, length = _PROGRAM_HEADER.unpack_from(headers, at)
                if kind == _INTERPRETER:
                    file.seek(offset)
                    return file.read(min(length, 4096)).rstrip(b"\0").decode("utf-8", "surrogateescape") or None
    except (OSError, struct.error):
        # What may be executed need not be readable, and what looks like a program need not be one: the kernel decides.
        return None
    return None
