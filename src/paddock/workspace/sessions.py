"""Copy-on-write sessions on the disk: find, list, lock, open, remove.

The core makes ``<store>/<id>/`` with ``session.json``, ``upper/`` and ``work/``, and holds a lock
on it while the command runs; the kernel drops the lock with the process, whatever ended that. So a
session without a lock has ended, also after a crash or a reboot, and all it holds is on the disk.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace

from paddock.errors import SessionError
from paddock.policy.glob import GlobError
from paddock.workspace.masked_names import Hidden
from paddock.workspace.protection import Protection
from paddock.workspace.replace_file import KEPT, Roots
from paddock.workspace.tree import DIRECTORY, opened_directory, remove_all

STORE = "sessions"
VERSION = 1
_ID = re.compile(r"[0-9A-Za-z][0-9A-Za-z_-]{0,63}")
_MAX_FILE_BYTES = 16 << 20
_MAX_DIRECTORIES_BYTES = 1 << 30
_LEAVING = ".discarded-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A directory of the store."""

    id: str
    place: str

    @property
    def running(self) -> bool:
        try:
            with _locked(self.place, fcntl.LOCK_SH):
                return False
        except BlockingIOError:
            return True

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """For whoever changes or applies it: not while its command runs."""
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(_locked(self.place, fcntl.LOCK_EX))
            except BlockingIOError:
                raise SessionError(
                    f"session {self.id} is running, or another apply is in progress",
                    hint=f"wait until it has ended; type `paddock diff {self.id}` to see its "
                    "changes now",
                ) from None
            yield


@dataclass(frozen=True, slots=True, kw_only=True)
class Session(Kept):
    workspace: str
    inode: int
    started_ns: int
    command: tuple[str, ...]
    hidden: Hidden
    is_protected: Protection

    @contextlib.contextmanager
    def roots(self) -> Iterator[Roots]:
        """The workspace must be the directory the session began with: a name can be given to
        another one. Its device number may be another one after a reboot.
        """
        with contextlib.ExitStack() as stack:
            state = stack.enter_context(_opened(self.place))
            try:  # the command may have taken its owner's rights away
                upper = stack.enter_context(opened_directory("upper", state))
            except PermissionError as error:
                raise SessionError(
                    f"cannot open the changes of session {self.id}: {error.strerror}",
                    hint=f"type `chmod u+rwx {shlex.quote(self.place)}/upper`",
                ) from None
            try:
                lower = stack.enter_context(opened_directory(self.workspace))
            except OSError as error:
                raise SessionError(
                    f"cannot open the workspace of session {self.id}: {self.workspace}: "
                    f"{error.strerror}",
                    hint=f"the changes of the command are in {self.place}/upper",
                ) from None
            if os.fstat(lower).st_ino != self.inode:
                raise SessionError(
                    f"{self.workspace} is not the same directory as when session {self.id} started",
                    hint=f"the changes of the command are in {self.place}/upper",
                )
            yield Roots(upper=upper, lower=lower, state=state)

    def holds(self, directory: str) -> bool:
        return f"{directory}/".startswith(f"{self.workspace.rstrip('/')}/")


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken(Kept):
    """What a run on the live workspace left: protected names that were taken away, for review."""

    reason: str = (
        "is not a copy-on-write session; it holds names that a run removed from the "
        "workspace (taken/)"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken(Kept):
    """No session one could diff or apply, and why."""

    reason: str


def store_of(state_dir: str) -> str:
    return f"{state_dir}/{STORE}"


def listed(store: str) -> list[Session | Taken | Broken]:
    """Newest first; what is no session last."""
    try:
        names = sorted(name for name in os.listdir(store) if not name.startswith("."))
    except FileNotFoundError:
        return []
    found = [_read(store, name) for name in names]
    whole = sorted(
        (one for one in found if isinstance(one, Session)), key=lambda one: -one.started_ns
    )
    return [*whole, *(one for one in found if not isinstance(one, Session))]


def is_session(store: str, name: str) -> bool:
    return _ID.fullmatch(name) is not None and os.path.isdir(os.path.join(store, name))


def look(store: str, name: str) -> Session | Taken | Broken:
    if not is_session(store, name):
        raise SessionError(
            f"the session {name} does not exist",
            hint="type `paddock sessions` to list the sessions",
        )
    return _read(store, name)


def find(store: str, name: str) -> Session:
    """One that can be looked at, applied and resumed."""
    found = look(store, name)
    if not isinstance(found, Session):
        raise SessionError(
            f"session {name}: {found.reason}",
            hint=f"check {found.place}; type `paddock discard {name}` to remove it",
        )
    return found


def of_directory(store: str, directory: str) -> list[Session]:
    """Those whose workspace is, or holds, the directory; newest first."""
    return [one for one in listed(store) if isinstance(one, Session) and one.holds(directory)]


def discard(store: str, one: Kept) -> str | None:
    """The caller holds its lock. Renamed first, so that an interrupted removal leaves no half
    session; the next one sweeps what it left. The person's own versions, which an apply kept, are
    moved out before: the answer says where.
    """
    saved = _save_kept(store, one)
    with _opened(store) as fd:
        os.rename(one.id, _LEAVING + one.id, src_dir_fd=fd, dst_dir_fd=fd)
        with contextlib.suppress(FileNotFoundError):  # another discard sweeps it already
            remove_all(_LEAVING + one.id, fd)
        for left in os.listdir(fd):
            if left.startswith(_LEAVING):
                with contextlib.suppress(OSError):  # one that can not be removed is not in the way
                    remove_all(left, fd)
    return saved


def _save_kept(store: str, one: Kept) -> str | None:
    place = os.path.join(os.path.dirname(store), KEPT)
    target = os.path.join(place, one.id)
    if not os.path.lexists(os.path.join(one.place, KEPT)):
        return target if os.path.lexists(target) else None  # by a discard that was interrupted
    try:
        os.makedirs(place, mode=0o700, exist_ok=True)
        os.rename(os.path.join(one.place, KEPT), target)
    except OSError as error:
        raise SessionError(
            f"cannot move your versions in session {one.id} to {target}: {error.strerror}",
            hint=f"move {shlex.quote(one.place)}/{KEPT} to another directory, then type `paddock "
            f"discard {one.id}` again",
        ) from None
    return target


def _read(store: str, name: str) -> Session | Taken | Broken:
    place = os.path.join(store, name)
    try:
        with _opened(place) as fd:
            session = _parsed(_content("session.json", fd), name)
            return replace(
                session,
                place=place,
                hidden=_hidden(_content("hidden.jsonl", fd), session.workspace),
            )
    except FileNotFoundError:
        if os.path.isdir(os.path.join(place, "taken")) and not os.path.isdir(
            os.path.join(place, "upper")
        ):
            return Taken(id=name, place=place)
        reason = "has no session.json"
    except OSError as error:
        reason = f"cannot be read: {error.strerror}"
    except (ValueError, KeyError, TypeError, GlobError) as error:
        reason = f"session.json is invalid: {error}"
    return Broken(id=name, place=place, reason=reason)


def _content(name: str, dir_fd: int, limit: int = _MAX_FILE_BYTES) -> bytes:
    fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=dir_fd)
    with open(fd, "rb") as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise ValueError("it is too large")
    return content


def _parsed(content: bytes, name: str) -> Session:
    fields = json.loads(content)
    if fields["version"] != VERSION:
        raise ValueError(f"version {fields['version']!r}; this Paddock reads version {VERSION}")
    if fields["id"] != name:
        raise ValueError(f"it belongs to session {fields['id']!r}")
    workspace = _text(fields["workspace"])
    files = fields["plan"]["files"] or {"protect": [], "opened": []}  # null: files are not fenced
    return Session(
        id=name,
        place="",
        workspace=workspace,
        inode=_number(fields["inode"]),
        started_ns=_number(fields["started_ns"]),
        command=tuple(_text(word) for word in fields["command"]),
        hidden=Hidden(),
        is_protected=Protection.of(
            workspace, map(_text, files["protect"]), map(_text, files["opened"])
        ),
    )


def directories_of(state: int) -> dict[str, int]:
    """Those of the workspace when the session began, with their numbers; none where nobody watched
    them.
    """
    try:
        content = _content("directories", state, _MAX_DIRECTORIES_BYTES)
        lines = (line.split(b" ", 1) for line in content.split(b"\0")[:-1])
        return {os.fsdecode(path): int(inode) for inode, path in lines}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise SessionError(f"the session's list of directories is invalid: {error}") from None


def _hidden(content: bytes, workspace: str) -> Hidden:
    parts = [json.loads(line) for line in content.splitlines()]
    return Hidden.of(
        workspace,
        (_text(path).strip("/") for part in parts for path in part["masked"]),
        (_text(pattern) for part in parts for pattern in part["deny"]),
    )


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a text")
    return value


def _number(value: object) -> int:
    if type(value) is not int:
        raise TypeError(f"{value!r} is not a number")
    return value


@contextlib.contextmanager
def _opened(path: str, dir_fd: int | None = None) -> Iterator[int]:
    fd = os.open(path, DIRECTORY, dir_fd=dir_fd)
    try:
        yield fd
    finally:
        os.close(fd)


@contextlib.contextmanager
def _locked(place: str, how: int) -> Iterator[None]:
    with _opened(place) as fd:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
        yield
