"""System calls that Python lacks: rename without replacing, exchange, sync of one file system, user
namespace.

If a file system does not support the flags of ``renameat2`` (NFS, FAT, some FUSE: EINVAL), both
renames use smaller steps. A crash between them leaves the old version under ``spare_of(…)``;
``mend`` repairs this.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import stat

_NOREPLACE, _EXCHANGE, _NEWUSER = 1, 2, 0x10000000
_UNKNOWN = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)
_libc = ctypes.CDLL(None, use_errno=True)


def rename_new(old: str, new: str, dir_fd: int) -> None:
    """Renames inside one directory; FileExistsError if the new name exists."""
    try:
        _renameat2(old, new, dir_fd, _NOREPLACE)
    except OSError as error:
        if error.errno not in _UNKNOWN:
            raise
        if _exists(
            new, dir_fd
        ):  # another process may take the name in between: these file systems offer nothing better
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), new) from None
        os.rename(old, new, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)


def exchange(temporary: str, name: str, dir_fd: int) -> None:
    """Exchanges two existing names."""
    try:
        _renameat2(temporary, name, dir_fd, _EXCHANGE)
    except OSError as error:
        if error.errno not in _UNKNOWN:
            raise
        _exchange_in_steps(temporary, name, dir_fd)


def _exchange_in_steps(temporary: str, name: str, dir_fd: int) -> None:
    spare = spare_of(temporary)
    facts = os.stat(temporary, dir_fd=dir_fd, follow_symlinks=False)
    both_plain = not stat.S_ISDIR(facts.st_mode)
    if both_plain:
        try:  # a second link and not a move, so the file is never missing
            os.link(name, spare, src_dir_fd=dir_fd, dst_dir_fd=dir_fd, follow_symlinks=False)
        except PermissionError:  # a directory, or a file system without links
            both_plain = False
    if not both_plain:
        os.rename(name, spare, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
    os.rename(temporary, name, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
    os.rename(spare, temporary, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)


def spare_of(temporary: str) -> str:
    return f"{temporary}~"


def mend(temporary: str, name: str, dir_fd: int) -> None:
    """Completes or reverts an interrupted exchange in steps."""
    spare = spare_of(temporary)
    try:
        left = os.stat(spare, dir_fd=dir_fd, follow_symlinks=False)
    except FileNotFoundError:
        return
    try:
        now = os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
    except FileNotFoundError:
        os.rename(spare, name, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
        return
    if now.st_ino == left.st_ino:
        os.unlink(spare, dir_fd=dir_fd)
    elif not _exists(temporary, dir_fd):
        os.rename(spare, temporary, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)


def sync(fd: int) -> None:
    """Writes everything on the file system of ``fd`` to the disk; OSError if it can not."""
    _check(_libc.syncfs(fd))


_entered: bool | None = None


def override_modes() -> bool:
    """Lets this process bypass the modes of its own user's files, as root bypasses all modes.

    A command may leave directories that it can not read itself (``chmod 000``). Changing their
    modes would change the reviewed state; in a user namespace this is not needed. It is done once
    for the whole process. False if the machine does not permit it, or with more than one thread.
    """
    global _entered
    if _entered is None:
        _entered = os.geteuid() == 0
        with contextlib.suppress(OSError):
            _entered = _entered or _enter_namespace()
    return _entered


def _enter_namespace() -> bool:
    uid, gid = os.geteuid(), os.getegid()
    _check(_libc.unshare(_NEWUSER))
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{uid} {uid} 1"),
        ("gid_map", f"{gid} {gid} 1"),
    ):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
            file.write(text)
    return True


def _renameat2(old: str, new: str, dir_fd: int, flags: int) -> None:
    call = getattr(_libc, "renameat2", None)  # missing in an old C library
    if call is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    _check(call(dir_fd, os.fsencode(old), dir_fd, os.fsencode(new), flags), new)


def _exists(name: str, dir_fd: int) -> bool:
    try:
        os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _check(result: int, name: str | None = None) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), name)
