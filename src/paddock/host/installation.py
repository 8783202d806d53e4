"""Own paths: the files from which Paddock starts outside the sandbox the next time, and the control
groups that hold its limits. No grant may make them writable.

They are: configuration and state; the package, the programs, the interpreter with its libraries,
every import path; the name that a person types. A link is listed together with its target, because
changing the link starts another program. Paths that this user can not change are left out: file
modes protect them, and a shorter list starts faster. Control groups are always listed, because a
group that is made for a run belongs to the user.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator

from paddock.core import process as core
from paddock.errors import PolicyError
from paddock.text.path_walk import ResolvedPath, Tree, follow

LAUNCHER = "paddock"
_PROGRAMS = (LAUNCHER, "paddock-core", "paddock-python")


def own_paths(home: str, search_path: str, cwd: str) -> tuple[str, ...]:
    """``search_path``: the PATH on which the user finds Paddock."""
    paths = {
        f"{home}/.config/paddock",
        f"{home}/.local/state/paddock",
        "/etc/paddock",
        *_cgroup_trees(),
    }
    entries = (entry for entry in entries_of(search_path, cwd) if os.path.lexists(entry))
    for path in (*_installed(), *entries):
        paths.update(
            resolved.path for resolved in follow(path).resolved_paths if _could_change(resolved)
        )
    return _outermost(paths)


def _cgroup_trees() -> Iterator[str]:
    yield "/sys/fs/cgroup"
    with open("/proc/self/mountinfo", "rb") as mounts:
        for line in mounts:
            # ID PARENT DEVICE ROOT POINT OPTIONS [TAG…] - TYPE SOURCE OPTIONS
            # (proc_pid_mountinfo(5))
            mount, _, kind = line.partition(b" - ")
            if kind.startswith((b"cgroup ", b"cgroup2 ")):
                point = mount.split(b" ")[4]
                yield os.fsdecode(
                    re.sub(rb"\\([0-7]{3})", lambda octal: bytes([int(octal[1], 8)]), point)
                )


def missing_entries(search_path: str, cwd: str) -> tuple[str, ...]:
    """The missing paths at which a new program would be started instead of Paddock, with the links
    that lead there: in each directory of PATH before the one in which Paddock is found.
    """
    missing: set[str] = set()
    for directory in search_dirs(search_path, cwd):
        entry = os.path.join(directory, LAUNCHER)
        if os.path.isfile(entry) and os.access(entry, os.X_OK):
            break
        if not os.path.lexists(entry) and _could_create(entry):
            missing.update(_resolved_paths(entry))
    return tuple(sorted(missing))


def search_dirs(search_path: str, cwd: str) -> tuple[str, ...]:
    """The directories of PATH. A relative or empty entry starts in the current directory."""
    entries = search_path.split(":") if search_path else []
    return tuple(dict.fromkeys(os.path.normpath(os.path.join(cwd, entry)) for entry in entries))


def entries_of(search_path: str, cwd: str) -> Iterator[str]:
    """The paths under which a user may find Paddock, existing or not, if this user could create
    them.
    """
    for directory in search_dirs(search_path, cwd):
        entry = os.path.join(directory, LAUNCHER)
        if os.path.lexists(entry) or _could_create(entry):
            yield entry


def _could_create(path: str) -> bool:
    """Whether this user could create it, with the directories above it."""
    directory = os.path.dirname(path)
    while not os.path.exists(directory):
        directory = os.path.dirname(directory)
    return os.access(directory, os.W_OK) or _is_ours(directory)


def _resolved_paths(path: str) -> tuple[str, ...]:
    try:
        return tuple(resolved.path for resolved in follow(path).resolved_paths)
    except PolicyError:  # an inaccessible directory of this user
        return (os.path.realpath(path),)


def _installed() -> Iterator[str]:
    yield os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    program = core.program()
    for directory in dict.fromkeys(
        (os.path.dirname(program), os.path.dirname(os.path.realpath(program)))
    ):
        yield from (os.path.join(directory, name) for name in _PROGRAMS)
    yield sys.executable
    if sys.prefix != sys.base_prefix:
        # a virtual environment as a whole: its configuration names the other parts
        yield sys.prefix
    for prefix in dict.fromkeys((sys.base_prefix, sys.base_exec_prefix)):
        yield from (os.path.join(prefix, name) for name in ("bin", "lib", "lib64"))
    # Without -P the first entry is the directory of the script or the current directory, which is
    # not part of the installation.
    yield from (path for path in sys.path[not sys.flags.safe_path :] if path.startswith("/"))


def _could_change(resolved: ResolvedPath) -> bool:
    """Whether this user owns or can write it, or a directory above it. The owner counts, because
    the owner can change the mode.
    """
    if resolved.object is None:
        return False
    path = resolved.path
    while not (_is_ours(path) or os.access(path, os.W_OK, follow_symlinks=False)):
        if path == "/":
            return False
        path = os.path.dirname(path)
    return True


def _is_ours(path: str) -> bool:
    try:
        return os.lstat(path).st_uid == os.getuid()
    except OSError:  # it existed a moment ago
        return True


def _outermost(paths: Iterable[str]) -> tuple[str, ...]:
    outermost: list[Tree] = []
    for path in sorted(paths, key=lambda path: path.split("/")):
        if not outermost or not outermost[-1].names(path):
            outermost.append(Tree(path=path))
    return tuple(sorted(tree.path for tree in outermost))
