"""A directory tree accessed only by descriptors: by component, never through a symlink."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator

from paddock.workspace import system_calls
from paddock.workspace.change import TreeEntry, Type

MAX_DEPTH = 200  # each level of a walk holds two descriptors
DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
BLOCK_BYTES = 1 << 20
_HANDLE = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


@contextlib.contextmanager
def opened(name: str, flags: int, dir_fd: int | None = None) -> Iterator[int]:
    try:
        fd = os.open(name, flags, dir_fd=dir_fd)
    except PermissionError:
        if not system_calls.override_modes():
            raise
        fd = os.open(name, flags, dir_fd=dir_fd)
    try:
        yield fd
    finally:
        os.close(fd)


@contextlib.contextmanager
def opened_directory(name: str, dir_fd: int | None = None) -> Iterator[int]:
    """Opens a directory to look up and change names. A mode that excludes its owner is bypassed."""
    with opened(name, DIRECTORY, dir_fd) as fd:
        facts = os.fstat(fd)
        if facts.st_mode & stat.S_IRWXU != stat.S_IRWXU and facts.st_uid == os.geteuid():
            system_calls.override_modes()
        yield fd


@contextlib.contextmanager
def opened_file(name: str, dir_fd: int) -> Iterator[int]:
    """A regular file, or an OSError: never a blocking object, and never one that replaced it
    meanwhile.
    """
    with opened(name, FILE, dir_fd) as fd:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.ESTALE, "is no longer a regular file", name)
        yield fd


@contextlib.contextmanager
def parent_of(root: int, path: str) -> Iterator[tuple[int, str]]:
    """The directory that contains ``path``, and its name there."""
    *parts, name = path.split("/")
    with contextlib.ExitStack() as stack:
        fd = root
        for part in parts:
            fd = stack.enter_context(opened_directory(part, fd))
        yield fd, name


def entry(name: str, dir_fd: int) -> TreeEntry | None:
    """None if there is no such name."""
    try:
        facts = os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
        target = os.readlink(name, dir_fd=dir_fd) if stat.S_ISLNK(facts.st_mode) else None
    except FileNotFoundError:
        return None
    return TreeEntry.of(facts, target)


def set_mode(fd: int, mode: int) -> None:
    """By a descriptor that may be O_PATH only, so that nothing is followed."""
    os.chmod(f"/proc/self/fd/{fd}", mode)


@contextlib.contextmanager
def handle(name: str, dir_fd: int) -> Iterator[int]:
    with opened(name, _HANDLE, dir_fd) as fd:
        yield fd


def remove(name: str, dir_fd: int) -> None:
    """One name; a directory only if it is empty."""
    found = entry(name, dir_fd)
    if found and found.type is Type.DIRECTORY:
        os.rmdir(name, dir_fd=dir_fd)
    else:
        os.unlink(name, dir_fd=dir_fd)


def remove_all(name: str, parent: int) -> None:
    """Removes a whole tree of any depth and any modes, with three descriptors: directories are
    emptied and moved up first.

    A hostile program can create a tree that is deeper than any recursion or path name.
    """
    waiting = [name]
    made = 0
    while waiting:
        top = waiting.pop()
        _let_owner_in(top, parent)
        with opened_directory(top, parent) as fd:
            for child in os.listdir(fd):
                facts = os.stat(child, dir_fd=fd, follow_symlinks=False)
                if not stat.S_ISDIR(facts.st_mode):
                    os.unlink(child, dir_fd=fd)
                    continue
                _let_owner_in(child, fd)  # a directory that moves must be writable itself
                made += 1
                moved = f"{name}.{made}"
                os.rename(child, moved, src_dir_fd=fd, dst_dir_fd=parent)
                waiting.append(moved)
        os.rmdir(top, dir_fd=parent)


def _let_owner_in(name: str, dir_fd: int) -> None:
    facts = os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
    if facts.st_mode & stat.S_IRWXU != stat.S_IRWXU:
        with handle(name, dir_fd) as fd:
            set_mode(fd, stat.S_IRWXU)
