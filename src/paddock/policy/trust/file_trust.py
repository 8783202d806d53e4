"""Trust: which policy files are accepted, decided on the descriptor from which they are read.

A file is opened once. Owner, mode, type, content and hash come from that descriptor, so the checked
file is the one that is read. There are two separate questions:

- *Could another user have written this?* (owner, mode, parent directory: ``read_policy``)

- *Has this user agreed to this text?* (the hash in ``~/.local/state/paddock/trusted``:
trusted_list.py)
"""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Iterable

from paddock.errors import PolicyError
from paddock.frozen import dataclass
from paddock.policy.trust.origin import Origin
from paddock.policy.trust.path_list import facts_of
from paddock.policy.trust.trusted_list import TrustedList, read_all, reason_of
from paddock.text.path_walk import Identity, PathWalk, follow


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyText:
    """A policy file as read. ``path``: its resolved path. ``walk``: the walk that found it. A
    built-in one has no hash, walk or facts.
    """

    path: str
    text: str
    sha256: str
    walk: PathWalk | None = None
    facts: tuple[int, ...] = ()  # of the descriptor

    @property
    def written(self) -> str:
        """The path as named, made absolute, without following links."""
        return self.walk.written if self.walk else self.path


def read_policy(path: str, origin: Origin, *, shown: str, within: str | None = None) -> PolicyText:
    """Reads a policy file. ``within``: the config directory that a file found by name may not leave
    through a symlink.
    """
    import hashlib

    walk = follow(path)
    real = walk.end.path
    if within is not None and not real.startswith(follow(within).end.path + "/"):
        raise PolicyError(
            f"is a symbolic link that leaves {within}",
            where=shown,
            hint=f"name the file itself: {real}",
        )
    data, found = _read_file(real, shown)
    if Identity.of(found) != walk.end.object:
        raise PolicyError("changed while Paddock read it", where=shown, hint="start again")
    _check_owner_and_mode(found, origin, shown)
    _check_directory(os.path.dirname(real), origin, shown)
    return PolicyText(
        path=real,
        text=decode(data, shown),
        sha256=hashlib.sha256(data).hexdigest(),
        walk=walk,
        facts=facts_of(found),
    )


def read_builtin(path: str) -> PolicyText:
    """Reads a file of the installation, which is as trustworthy as this code."""
    with open(path, encoding="utf-8") as file:
        return PolicyText(path=path, text=file.read(), sha256="")


def decode(data: bytes, shown: str) -> str:
    nul = data.find(b"\0")
    if nul >= 0:
        raise PolicyError(
            "contains a NUL byte: the file is damaged or truncated", where=_at(shown, data, nul)
        )
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise PolicyError("is not valid UTF-8", where=_at(shown, data, error.start)) from None


def _at(shown: str, data: bytes, offset: int) -> str:
    return f"{shown}:{data.count(10, 0, offset) + 1}"


def _read_file(real: str, shown: str) -> tuple[bytes, os.stat_result]:
    # O_NONBLOCK: opening a FIFO must not wait for a writer. O_NOFOLLOW: ``real`` has its links
    # resolved already, so a link here was created in between.
    try:
        descriptor = os.open(real, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise PolicyError(f"cannot be read: {reason_of(error)}", where=shown) from None
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise PolicyError("is not a regular file", where=shown)
        data = read_all(descriptor, shown)
    except OSError as error:
        raise PolicyError(f"cannot be read: {reason_of(error)}", where=shown) from None
    finally:
        os.close(descriptor)
    return data, found


def _check_owner_and_mode(found: os.stat_result, origin: Origin, shown: str) -> None:
    if found.st_uid not in (origin.uid, 0):
        raise PolicyError(f"belongs to uid {found.st_uid}, neither to you nor to root", where=shown)
    if _others_may_write(found, origin):
        raise PolicyError(
            f"is writable by others (mode {stat.S_IMODE(found.st_mode):04o})",
            where=shown,
            hint=f"type `chmod go-w {shlex.quote(shown)}`",
        )


def _check_directory(directory: str, origin: Origin, shown: str) -> None:
    try:
        found = os.stat(directory)
    except OSError as error:
        raise PolicyError(
            f"its directory {directory} cannot be examined: {reason_of(error)}", where=shown
        ) from None
    if found.st_uid not in (origin.uid, 0):
        raise PolicyError(
            f"its directory {directory} belongs to uid {found.st_uid}, neither to you nor to root",
            where=shown,
        )
    if not found.st_mode & stat.S_ISVTX and _others_may_write(found, origin):
        raise PolicyError(
            f"its directory {directory} is writable by others (mode "
            f"{stat.S_IMODE(found.st_mode):04o})",
            where=shown,
            hint=f"type `chmod go-w {shlex.quote(directory)}`",
        )


def _others_may_write(found: os.stat_result, origin: Origin) -> bool:
    if found.st_mode & stat.S_IWOTH:
        return True
    return bool(found.st_mode & stat.S_IWGRP) and not _is_private_group(found.st_gid, origin)


def _is_private_group(gid: int, origin: Origin) -> bool:
    """Distributions with a private group for each user make files group-writable (umask 002). A
    user whose primary group it is is not listed among its members.
    """
    if gid != origin.gid:
        return False
    import grp
    import pwd

    try:
        group = grp.getgrgid(gid)
    except KeyError:
        return False
    own = {user.pw_name for user in pwd.getpwall() if user.pw_gid == gid}
    return group.gr_name == origin.user and {*group.gr_mem, *own} <= {origin.user}


def require_agreement(
    file: PolicyText, origin: Origin, *, shown: str, why: str, otherwise: str = ""
) -> None:
    if origin.trusted.agrees_to(file.sha256, file.written):
        return
    state = (
        "has changed since you trusted it"
        if origin.trusted.knows(file.written)
        else "is not trusted yet"
    )
    hint = f"read it, then type `paddock trust {shlex.quote(shown)}`{otherwise}"
    raise PolicyError(f"{state}: {why}", where=shown, hint=hint)


def trust(path: str, origin: Origin) -> str:
    """Agrees to the current text of the file and returns its hash. It replaces an older agreement
    for the same path.
    """
    file = read_policy(path, origin, shown=path)
    agree([file.sha256], file.written, origin)
    return file.sha256


def agree(digests: Iterable[str], written: str, origin: Origin) -> None:
    """Stores the agreement of the user for a path, in place of an older one."""
    if "\n" in written:
        raise PolicyError("a path with a line break cannot be trusted", where=repr(written))
    others = [
        entry
        for entry in TrustedList.read(origin.state_dir, origin.uid).entries
        if entry[1] != written
    ]
    entries = (*others, *((digest, written) for digest in digests))
    TrustedList(entries).write(origin.state_dir, origin.uid)


def untrust(path: str, origin: Origin) -> bool:
    """Withdraws the agreement; False if there was none."""
    written = os.path.abspath(path)
    entries = TrustedList.read(origin.state_dir, origin.uid).entries
    remaining = tuple(entry for entry in entries if entry[1] != written)
    if len(remaining) == len(entries):
        return False
    TrustedList(remaining).write(origin.state_dir, origin.uid)
    return True


def is_trusted(path: str, origin: Origin) -> bool:
    file = read_policy(path, origin, shown=path)
    return TrustedList.read(origin.state_dir, origin.uid).agrees_to(file.sha256, file.written)
