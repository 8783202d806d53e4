"""A program that makes or changes one file name in many ways, each in a directory of its own.

It runs inside the sandbox, and outside as the control. It imports nothing of the tests. The first
argument is the table (``make`` or ``change``), the second a directory, the third a name. Each way
acts on ``DIRECTORY/WAY/NAME``. stdout is a start marker, then one line for each way: the name of
the way and ``ok`` or an errno.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import socket
import stat
import struct
import sys
import threading
from collections.abc import Callable

TEXT = b"planted\n"
# Planted in a git configuration: git runs the program at the next command.
PROGRAM_KEY = b'[core]\n\tfsmonitor = "touch planted"\n'
NOREPLACE, EXCHANGE = 1, 2
AT_FDCWD, AT_SYMLINK_FOLLOW, AT_EMPTY_PATH = -100, 0x400, 0x1000
RESOLVE = {
    "no_xdev": 0x01,
    "no_magiclinks": 0x02,
    "no_symlinks": 0x04,
    "beneath": 0x08,
    "in_root": 0x10,
}
RESOLVE_CACHED = 0x20
# The same on every architecture.
OPENAT2, FCHMODAT2, SETXATTRAT, REMOVEXATTRAT = 437, 452, 463, 466
KERNEL = tuple(int(part) for part in platform.release().split("-")[0].split(".")[:2])

libc = ctypes.CDLL(None, use_errno=True)
Way = Callable[[str], None]
table = top = name = ""
MAKE: dict[str, Way] = {}
CHANGE: dict[str, Way] = {}


def making(way: Way) -> Way:
    MAKE[way.__name__] = way
    return way


def changing(way: Way) -> Way:
    CHANGE[way.__name__] = way
    return way


def checked(result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def text_for(path: str) -> bytes:
    return PROGRAM_KEY if os.path.basename(path).startswith("config") else TEXT


def write_and_close(fd: int, path: str) -> None:
    try:
        os.write(fd, text_for(path))
    finally:
        os.close(fd)


def aside(path: str, name: str) -> str:
    """A free name in the directory of the way."""
    return f"{top}/{path.removeprefix(top).split('/')[1]}/{name}"


def payload(path: str) -> str:
    made = aside(path, "payload")
    write_and_close(os.open(made, os.O_WRONLY | os.O_CREAT, 0o644), path)
    return made


def directory(path: str) -> int:
    return os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY)


def create_in(place: str, path: str, flags: int = os.O_CREAT | os.O_EXCL) -> None:
    name = f"{place}/{os.path.basename(path)}"
    write_and_close(os.open(name, os.O_WRONLY | flags, 0o644), path)


def open_how(fd: int, name: str, flags: int, resolve: int) -> int:
    mode = 0o644 if flags & os.O_CREAT else 0
    how = struct.pack("QQQ", flags, mode, resolve)
    return checked(libc.syscall(OPENAT2, fd, os.fsencode(name), how, len(how)))


def renameat2(old: str, new: str, flags: int) -> None:
    checked(libc.renameat2(AT_FDCWD, os.fsencode(old), AT_FDCWD, os.fsencode(new), flags))


def link_descriptor(fd: int, new: str) -> None:
    old = os.fsencode(f"/proc/self/fd/{fd}")
    checked(libc.linkat(AT_FDCWD, old, AT_FDCWD, os.fsencode(new), AT_SYMLINK_FOLLOW))


# A name that does not exist is made.


@making
def create(path: str) -> None:
    write_and_close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o644), path)


@making
def create_to_read(path: str) -> None:
    os.close(os.open(path, os.O_RDONLY | os.O_CREAT, 0o644))


@making
def creat(path: str) -> None:
    write_and_close(checked(libc.creat(os.fsencode(path), 0o644)), path)


@making
def create_at_descriptor(path: str) -> None:
    name = os.path.basename(path)
    flags = os.O_WRONLY | os.O_CREAT
    write_and_close(os.open(name, flags, 0o644, dir_fd=directory(path)), path)


@making
def create_at_descriptor_above(path: str) -> None:
    """The relative path has ``..`` in it."""
    parent, name = os.path.split(path)
    relative = f"../{os.path.basename(parent)}/./{name}"
    flags = os.O_WRONLY | os.O_CREAT
    write_and_close(os.open(relative, flags, 0o644, dir_fd=directory(path)), path)


@making
def create_in_thread(path: str) -> None:
    failures: list[OSError] = []

    def act() -> None:
        try:
            create(path)
        except OSError as error:
            failures.append(error)

    thread = threading.Thread(target=act)
    thread.start()
    thread.join()
    if failures:
        raise failures[0]


@making
def through_linked_directory(path: str) -> None:
    os.symlink(os.path.dirname(path), aside(path, "way"))
    create_in(aside(path, "way"), path)


@making
def through_dangling_link(path: str) -> None:
    os.symlink(path, aside(path, "way"))
    write_and_close(os.open(aside(path, "way"), os.O_WRONLY | os.O_CREAT, 0o644), path)


@making
def through_proc_fd(path: str) -> None:
    create_in(f"/proc/self/fd/{directory(path)}", path)


@making
def through_proc_fd_of_path(path: str) -> None:
    fd = os.open(os.path.dirname(path), os.O_PATH)
    create_in(f"/proc/{os.getpid()}/fd/{fd}", path)


@making
def through_proc_cwd(path: str) -> None:
    os.chdir(os.path.dirname(path))
    create_in("/proc/self/cwd", path)


@making
def through_proc_thread_cwd(path: str) -> None:
    os.chdir(os.path.dirname(path))
    create_in(f"/proc/self/task/{threading.get_native_id()}/cwd", path)


@making
def through_proc_root(path: str) -> None:
    create_in("/proc/self/root" + os.path.dirname(path), path)


def openat2_making(label: str, resolve: int) -> None:
    def way(path: str) -> None:
        flags = os.O_WRONLY | os.O_CREAT
        fd = open_how(directory(path), os.path.basename(path), flags, resolve)
        write_and_close(fd, path)

    MAKE[label] = way


openat2_making("openat2", 0)
for _name, _flag in RESOLVE.items():
    openat2_making(f"openat2_{_name}", _flag)


def tmpfile(path: str) -> int:
    fd = os.open(os.path.dirname(path), os.O_WRONLY | os.O_TMPFILE, 0o644)
    os.write(fd, text_for(path))
    return fd


@making
def linked_tmpfile(path: str) -> None:
    link_descriptor(tmpfile(path), path)


if KERNEL >= (6, 10):  # before, the flag needs a capability

    @making
    def linked_tmpfile_by_descriptor(path: str) -> None:
        checked(libc.linkat(tmpfile(path), b"", AT_FDCWD, os.fsencode(path), AT_EMPTY_PATH))


@making
def rename(path: str) -> None:
    os.rename(payload(path), path)


@making
def rename_noreplace(path: str) -> None:
    renameat2(payload(path), path, NOREPLACE)


@making
def rename_at_descriptors(path: str) -> None:
    old, new = directory(payload(path)), directory(path)
    os.rename("payload", os.path.basename(path), src_dir_fd=old, dst_dir_fd=new)


@making
def link(path: str) -> None:
    os.link(payload(path), path)


@making
def symlink(path: str) -> None:
    os.symlink(payload(path), path)


@making
def bind(path: str) -> None:
    """The path of an address is short, so it is relative."""
    os.chdir(os.path.dirname(path))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.path.basename(path))


@making
def mkfifo(path: str) -> None:
    os.mkfifo(path)


@making
def mknod(path: str) -> None:
    os.mknod(path, stat.S_IFREG | 0o644)


@making
def mkdir(path: str) -> None:
    os.mkdir(path)


# A name that exists is changed.


@changing
def overwrite(path: str) -> None:
    write_and_close(os.open(path, os.O_WRONLY | os.O_TRUNC), path)


@changing
def append(path: str) -> None:
    write_and_close(os.open(path, os.O_WRONLY | os.O_APPEND), path)


@changing
def read_and_write(path: str) -> None:
    write_and_close(os.open(path, os.O_RDWR), path)


@changing
def truncate_at_open(path: str) -> None:
    os.close(os.open(path, os.O_RDONLY | os.O_TRUNC))


@changing
def truncate(path: str) -> None:
    os.truncate(path, 0)


@changing
def write_through_link(path: str) -> None:
    os.symlink(path, aside(path, "way"))
    write_and_close(os.open(aside(path, "way"), os.O_WRONLY), path)


@changing
def write_through_hard_link(path: str) -> None:
    os.link(path, aside(path, "second"))
    write_and_close(os.open(aside(path, "second"), os.O_WRONLY), path)


@changing
def hard_link_by_descriptor(path: str) -> None:
    link_descriptor(os.open(path, os.O_RDONLY), aside(path, "second"))


@changing
def reopen_by_proc_fd(path: str) -> None:
    fd = os.open(path, os.O_RDONLY)
    write_and_close(os.open(f"/proc/self/fd/{fd}", os.O_WRONLY), path)


@changing
def reopen_path_by_proc_fd(path: str) -> None:
    fd = os.open(path, os.O_PATH)
    write_and_close(os.open(f"/proc/self/fd/{fd}", os.O_WRONLY), path)


@changing
def reopen_by_dev_fd(path: str) -> None:
    fd = os.open(path, os.O_RDONLY)
    write_and_close(os.open(f"/dev/fd/{fd}", os.O_WRONLY), path)


def openat2_changing(label: str, resolve: int) -> None:
    def way(path: str) -> None:
        os.stat(path)  # RESOLVE_CACHED needs the name in the cache of the kernel
        fd = open_how(directory(path), os.path.basename(path), os.O_WRONLY, resolve)
        write_and_close(fd, path)

    CHANGE[label] = way


openat2_changing("openat2", 0)
for _name, _flag in {**RESOLVE, "cached": RESOLVE_CACHED}.items():
    openat2_changing(f"openat2_{_name}", _flag)


@changing
def remove(path: str) -> None:
    os.unlink(path)


@changing
def remove_at_descriptor(path: str) -> None:
    os.unlink(os.path.basename(path), dir_fd=directory(path))


@changing
def rename_away(path: str) -> None:
    os.rename(path, aside(path, "away"))


@changing
def rename_over(path: str) -> None:
    os.rename(payload(path), path)


@changing
def exchange(path: str) -> None:
    renameat2(payload(path), path, EXCHANGE)


@changing
def exchange_from(path: str) -> None:
    renameat2(path, payload(path), EXCHANGE)


@changing
def rename_directory_above(path: str) -> None:
    os.rename(os.path.dirname(path), os.path.dirname(path) + "-away")


@changing
def exchange_directory_above(path: str) -> None:
    parent = os.path.dirname(path)
    os.mkdir(parent + "-other")
    renameat2(parent, parent + "-other", EXCHANGE)


@changing
def chmod(path: str) -> None:
    os.chmod(path, 0o755)


@changing
def fchmod(path: str) -> None:
    os.fchmod(os.open(path, os.O_RDONLY), 0o755)


@changing
def chmod_by_proc_fd(path: str) -> None:
    os.chmod(f"/proc/self/fd/{os.open(path, os.O_PATH)}", 0o755)


@changing
def chmod_at_descriptor(path: str) -> None:
    os.chmod(os.path.basename(path), 0o755, dir_fd=directory(path))


if KERNEL >= (6, 6):

    @changing
    def fchmodat2(path: str) -> None:
        fd = os.open(path, os.O_PATH)
        checked(libc.syscall(FCHMODAT2, fd, b"", 0o755, AT_EMPTY_PATH))


@changing
def chown(path: str) -> None:
    os.chown(path, os.getuid(), os.getgid())


@changing
def lchown(path: str) -> None:
    os.lchown(path, os.getuid(), os.getgid())


@changing
def fchown(path: str) -> None:
    os.fchown(os.open(path, os.O_RDONLY), os.getuid(), os.getgid())


@changing
def utime(path: str) -> None:
    os.utime(path, (1, 1))


@changing
def utime_by_descriptor(path: str) -> None:
    os.utime(os.open(path, os.O_RDONLY), (1, 1))


@changing
def utime_now(path: str) -> None:
    os.utime(path)


@changing
def setxattr(path: str) -> None:
    os.setxattr(path, "user.planted", b"x")


@changing
def lsetxattr(path: str) -> None:
    os.setxattr(path, "user.planted", b"x", follow_symlinks=False)


@changing
def fsetxattr(path: str) -> None:
    os.setxattr(os.open(path, os.O_RDONLY), "user.planted", b"x")


@changing
def removexattr(path: str) -> None:
    os.removexattr(path, "user.old")


@changing
def fremovexattr(path: str) -> None:
    os.removexattr(os.open(path, os.O_RDONLY), "user.old")


if KERNEL >= (6, 13):

    @changing
    def setxattrat(path: str) -> None:
        value = ctypes.create_string_buffer(b"x")
        arguments = struct.pack("QII", ctypes.addressof(value), 1, 0)
        name = os.fsencode(path)
        checked(libc.syscall(SETXATTRAT, AT_FDCWD, name, 0, b"user.planted", arguments, 16))

    @changing
    def removexattrat(path: str) -> None:
        checked(libc.syscall(REMOVEXATTRAT, AT_FDCWD, os.fsencode(path), 0, b"user.old"))


TABLES = {"make": MAKE, "change": CHANGE}


def main() -> None:
    print("started", flush=True)
    for label, way in TABLES[table].items():
        try:
            way(f"{top}/{label}/{name}")
            print(label, "ok")
        except OSError as error:
            print(label, errno.errorcode.get(error.errno or 0, "?"))


if __name__ == "__main__":
    table, top, name = sys.argv[1:4]
    main()
