"""The birth time of a file. The file system gives an inode number to the next file when the first
one is removed; it does not give the same number with the same birth time.

No system call sets a birth time. Python has no statx before 3.15, so libc is called.
"""

from __future__ import annotations

import ctypes
import os
import struct
from typing import NamedTuple

_AT_FDCWD = -100
_AT_SYMLINK_NOFOLLOW = 0x100
_STATX_INO = 0x100
_STATX_BTIME = 0x800
_STATX_BYTES = 256
_NS_PER_S = 1_000_000_000


class BornObject(NamedTuple):
    device: int
    inode: int
    born_ns: int | None  # None: the file system has no birth times


def born_object_at(path: str) -> BornObject | None:
    """Links are not followed. None: it does not exist, can not be examined, or this system has no
    statx.
    """
    statx = getattr(ctypes.CDLL(None), "statx", None) if os.name == "posix" else None
    name = os.fsencode(path)
    if statx is None or b"\0" in name:
        return None
    answer = ctypes.create_string_buffer(_STATX_BYTES)
    wanted = _STATX_INO | _STATX_BTIME
    if statx(_AT_FDCWD, name, _AT_SYMLINK_NOFOLLOW, wanted, answer) != 0:
        return None
    (mask,) = struct.unpack_from("=I", answer, 0)
    (inode,) = struct.unpack_from("=Q", answer, 32)
    seconds, nanoseconds = struct.unpack_from("=qI", answer, 80)
    major, minor = struct.unpack_from("=II", answer, 136)
    born_ns = seconds * _NS_PER_S + nanoseconds if mask & _STATX_BTIME else None
    return BornObject(os.makedev(major, minor), inode, born_ns)
