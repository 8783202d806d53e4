"""One file's content and times, from one descriptor to another."""

from __future__ import annotations

import contextlib
import errno
import os

from paddock.changes.tree import BLOCK

_NOT_HERE = (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)


def copy_content(source: int, target: int) -> None:
    """Holes stay holes: a file of a terabyte that holds nothing must not fill a disk."""
    size = os.fstat(source).st_size
    start = 0
    while start < size:
        try:
            start = os.lseek(source, start, os.SEEK_DATA)
            end = os.lseek(source, start, os.SEEK_HOLE)
        except OSError as error:
            if error.errno == errno.ENXIO:  # nothing but a hole from here on
                break
            raise
        _copy_range(source, target, start, end)
        start = end
    os.ftruncate(target, size)


def _copy_range(source: int, target: int, start: int, end: int) -> None:
    in_kernel = True
    while start < end:
        if in_kernel:
            try:
                done = os.copy_file_range(source, target, min(end - start, 1 << 30), start, start)
            except OSError as error:
                if error.errno not in _NOT_HERE:
                    raise
                in_kernel = False
                continue
        else:
            block = os.pread(source, min(end - start, BLOCK), start)
            done = os.pwrite(target, block, start) if block else 0
        if not done:  # it became shorter while it was read
            return
        start += done


def copy_attributes(source: int, target: int) -> None:
    """The user's own extended attributes, not the overlay's. Where they can not be kept, the content still counts."""
    with contextlib.suppress(OSError):
        for name in os.listxattr(source):
            if name.startswith("user.") and not name.startswith("user.overlay."):
                os.setxattr(target, name, os.getxattr(source, name))


def copy_times(source: int, target: int) -> None:
    facts = os.fstat(source)
    os.utime(target, ns=(facts.st_atime_ns, facts.st_mtime_ns))
