"""Opens the judged path, which contains no link, without following any.

``LocatedPath.real`` is the resolved path at the time of judging. A directory on it may have become
a link since. So the kernel is told to follow none (openat2(2), RESOLVE_NO_SYMLINKS), or the path is
walked by descriptors if that call is missing. The result is the file with the judged name, or an
error: ELOOP or ENOTDIR.
"""

from __future__ import annotations

import ctypes
import errno
import os
from functools import cache

_OPENAT2 = 437  # the same on every architecture
_NO_MAGICLINKS, _NO_SYMLINKS = 0x02, 0x04
_AT_FDCWD = -100
# Never a controlling terminal, and never a wait for the other end of a fifo.
_ALWAYS = os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK | os.O_NOFOLLOW
_ALWAYS_PATH = (
    os.O_CLOEXEC | os.O_NOFOLLOW
)  # nothing is opened, and the kernel accepts no other flags
_STEP = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


def open_straight(path: str, flags: int, mode: int = 0o666) -> int:
    """A descriptor for an absolute path without ``.``, ``..`` and links. OSError if there is a link
    now.
    """
    if not path.startswith("/") or any(name in (".", "..") for name in path.split("/")):
        raise ValueError(f"not an absolute path without '.' and '..': {path!r}")
    flags |= _ALWAYS_PATH if flags & os.O_PATH else _ALWAYS
    if _has_openat2():
        return _openat2(path, flags, mode if flags & os.O_CREAT else 0)
    return _walk(path, flags, mode)


def _walk(path: str, flags: int, mode: int) -> int:
    *above, name = [part for part in path.split("/") if part] or ["."]
    here = os.open("/", _STEP)
    try:
        for part in above:
            here, before = os.open(part, _STEP, dir_fd=here), here
            os.close(before)
        return os.open(name, flags, mode, dir_fd=here)
    finally:
        os.close(here)


@cache
def _has_openat2() -> bool:
    """Kernels before 5.6 lack it, and the filters of some containers deny it."""
    try:
        os.close(_openat2("/", os.O_PATH | os.O_CLOEXEC, 0))
    except OSError:
        return False
    return True


def _openat2(path: str, flags: int, mode: int) -> int:
    how = _OpenHow(flags=flags, mode=mode, resolve=_NO_SYMLINKS | _NO_MAGICLINKS)
    name = ctypes.c_char_p(os.fsencode(path))
    while True:
        fd = _libc().syscall(_OPENAT2, _AT_FDCWD, name, ctypes.byref(how), ctypes.sizeof(how))
        if fd >= 0:
            return int(fd)
        number = ctypes.get_errno()
        if number not in (
            errno.EINTR,
            errno.EAGAIN,
        ):  # EAGAIN: the kernel reports a concurrent rename
            raise OSError(number, os.strerror(number), path)


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
