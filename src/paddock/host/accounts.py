"""Users and their ids as this machine knows them. The passwd file of a container is not read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from paddock.errors import PolicyError
from paddock.frozen import dataclass

_SUB_UIDS = Path("/etc/subuid")
_SUB_GIDS = Path("/etc/subgid")
# not from PATH, because they are set-user-id
_PROGRAMS = ("/usr/bin", "/usr/sbin", "/bin", "/sbin")


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    name: str
    uid: int
    gid: int
    home: str


@dataclass(frozen=True, slots=True, kw_only=True)
class IdSpan:
    """Ids that an account may map."""

    first: int
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Accounts:
    service: Account  # the account of the container's command
    caller_gid: int
    caller_groups: tuple[int, ...]  # besides that one
    sub_uids: tuple[IdSpan, ...]  # of the caller
    sub_gids: tuple[IdSpan, ...]
    mapper_uid: str | None  # newuidmap
    mapper_gid: str | None


def look_up(username: str, *, where: str, uid: int, user: str) -> Accounts:
    """``uid`` and ``user``: the caller."""
    import pwd

    try:
        entry = pwd.getpwnam(username)
    except KeyError:
        raise PolicyError(
            f"this machine has no user {username!r}",
            where=where,
            hint="Paddock looks the name up on this machine, not in the container; give the ids "
            "with -u and -g",
        ) from None
    gid = os.getgid()
    return Accounts(
        service=Account(name=username, uid=entry.pw_uid, gid=entry.pw_gid, home=entry.pw_dir),
        caller_gid=gid,
        caller_groups=tuple(sorted(set(os.getgroups()) - {gid})),
        sub_uids=tuple(spans_of(_text(_SUB_UIDS), uid, user)),
        sub_gids=tuple(spans_of(_text(_SUB_GIDS), uid, user)),
        mapper_uid=_program("newuidmap"),
        mapper_gid=_program("newgidmap"),
    )


def spans_of(text: str, uid: int, user: str) -> Iterator[IdSpan]:
    """subuid(5): ``name-or-number:first:count`` on each line. Other lines are ignored."""
    for line in text.splitlines():
        fields = line.strip().split(":")
        if (
            len(fields) == 3
            and fields[0] in (user, str(uid))
            and all(one.isdecimal() for one in fields[1:])
        ):
            first, count = int(fields[1]), int(fields[2])
            if count > 0 and first + count < 2**32:
                yield IdSpan(first=first, count=count)


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except OSError:  # no account has subordinate ids
        return ""


def _program(name: str) -> str | None:
    paths = (os.path.join(directory, name) for directory in _PROGRAMS)
    return next((path for path in paths if os.access(path, os.X_OK)), None)
