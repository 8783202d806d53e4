"""Copies one file or symlink between trees: content, permissions, times, user attributes."""

from __future__ import annotations

import contextlib
import errno
import os

from paddock.workspace.change import PERMISSIONS, Type
from paddock.workspace.dir_fd_access import BLOCK_BYTES, entry, opened_file

_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_NOT_HERE = (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)


def copy_entry(
    source_name: str,
    source: int,
    name: str,
    target: int,
    mode: int | None,
    content: bytes | None = None,
) -> None:
    """Creates a file or symlink under a new name. ``mode``, ``content`` None: unchanged."""
    found = entry(source_name, source)
    if found is None or found.type not in (Type.FILE, Type.LINK):
        raise OSError(errno.ESTALE, "is no longer a file", source_name)
    if found.target is not None:
        os.symlink(found.target, name, dir_fd=target)
        os.utime(name, ns=(found.mtime_ns, found.mtime_ns), dir_fd=target, follow_symlinks=False)
        return
    with opened_file(source_name, source) as old:
        fd = os.open(name, _NEW, 0o600, dir_fd=target)
        try:
            if content is None:
                _copy_content(old, fd)
            else:
                _write(fd, content)
            _copy_attributes(old, fd)
            os.fchmod(fd, (found.mode if mode is None else mode) & PERMISSIONS)
            _copy_times(old, fd)
        finally:
            os.close(fd)


def _copy_content(source: int, target: int) -> None:
    """Holes stay holes: an empty file of a terabyte must not fill a disk."""
    size = os.fstat(source).st_size
    start = 0
    while start < size:
        try:
            start = os.lseek(source, start, os.SEEK_DATA)
            end = os.lseek(source, start, os.SEEK_HOLE)
        except OSError as error:
            if error.errno == errno.ENXIO:  # only a hole follows
                break
            raise
        _copy_range(source, target, start, end)
        start = end
    os.ftruncate(target, size)


def _write(target: int, content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(target, rest) :]


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
            block = os.pread(source, min(end - start, BLOCK_BYTES), start)
            done = os.pwrite(target, block, start) if block else 0
        if not done:  # it became shorter during the copy
            return
        start += done


def _copy_attributes(source: int, target: int) -> None:
    """Copies the user's extended attributes, not those of the overlay. Failures are ignored; the
    content counts.
    """
    with contextlib.suppress(OSError):
        for name in os.listxattr(source):
            if name.startswith("user.") and not name.startswith("user.overlay."):
                os.setxattr(target, name, os.getxattr(source, name))


def _copy_times(source: int, target: int) -> None:
    facts = os.fstat(source)
    os.utime(target, ns=(facts.st_atime_ns, facts.st_mtime_ns))
