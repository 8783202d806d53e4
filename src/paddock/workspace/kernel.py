"""System calls that Python does not have: rename without replacing, exchange, sync of one file
system, user namespace.

Where a file system knows no flags of ``renameat2`` (NFS, FAT, some FUSE: EINVAL), both renames are
made of smaller steps. A crash between them leaves the old version under ``spare_of(…)``; ``mend``
puts that right.
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
    """Rename inside one directory; FileExistsError if the new name is taken."""
    try:
        _renameat2(old, new, dir_fd, _NOREPLACE)
    except OSError as error:
        if error.errno not in _UNKNOWN:
            raise
        if _exists(
            new, dir_fd
        ):  # for a moment somebody else may take it: these file systems can do no better
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), new) from None
        os.rename(old, new, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)


def exchange(temporary: str, name: str, dir_fd: int) -> None:
    """Both must exist; afterwards each is the other."""
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
        try:  # a second name instead of a move: then the file is never missing
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
    """Finish, or take back, an exchange in steps that was interrupted."""
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
    """Everything written to the file system of ``fd`` is on the disk; OSError if it can not be."""
    _check(_libc.syncfs(fd))


_entered: bool | None = None


def override_modes() -> bool:
    """Let this process pass by the file modes of its own user's files, as root passes by
    everybody's.

    A command may leave directories it can not read itself (``chmod 000``). Changing their modes to
    look inside would change what is looked at; in a user namespace of one's own there is no need
    to. Once, and for the whole process; False where the machine does not let it (also: more than
    one thread).
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
    call = getattr(_libc, "renameat2", None)  # an old C library
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
