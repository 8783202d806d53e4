"""Copy-on-write sessions on disk: find, list, lock, open, remove.

The core creates ``<store>/<id>/`` with ``session.json``, ``upper/`` and ``work/``, and holds a lock
on it while the command runs. The kernel releases the lock with the process in every case. So a
session without a lock has ended, also after a crash or a reboot, and all its data is on disk.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shlex
from collections.abc import Iterator
from dataclasses import replace

from paddock.errors import SessionError
from paddock.frozen import dataclass
from paddock.policy.glob import GlobError
from paddock.workspace.dir_fd_access import DIRECTORY, opened_directory, remove_all
from paddock.workspace.masked_names import HiddenNames
from paddock.workspace.protected_names import Protection
from paddock.workspace.replace_file import HOST_VERSIONS_DIR, Roots

STORE = "sessions"
VERSION = 1
_ID = re.compile(r"[0-9A-Za-z][0-9A-Za-z_-]{0,63}")
_MAX_FILE_BYTES = 16 << 20
_MAX_DIRECTORIES_BYTES = 1 << 30
_LEAVING = ".discarded-"
_MIN_PREFIX_CHARS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredDirectory:
    """A directory of the store."""

    id: str
    path: str

    @property
    def running(self) -> bool:
        try:
            with _locked(self.path, fcntl.LOCK_SH):
                return False
        except BlockingIOError:
            return True

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """For code that changes or applies it: fails while its command runs."""
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(_locked(self.path, fcntl.LOCK_EX))
            except BlockingIOError:
                raise SessionError(
                    f"session {self.id} is running, or another apply is in progress",
                    hint=f"wait until it has ended; type `paddock diff {self.id}` to see its "
                    "changes now",
                ) from None
            yield


@dataclass(frozen=True, slots=True, kw_only=True)
class Session(StoredDirectory):
    workspace: str
    inode: int
    started_ns: int
    command: tuple[str, ...]
    hidden: HiddenNames
    is_protected: Protection

    @contextlib.contextmanager
    def roots(self) -> Iterator[Roots]:
        """Opens the three directories. The workspace must be the directory from the start, because
        another directory can get its name. Its device number may change at a reboot.
        """
        with contextlib.ExitStack() as stack:
            state = stack.enter_context(_opened(self.path))
            try:  # the command may have removed its owner's permissions
                upper = stack.enter_context(opened_directory("upper", state))
            except PermissionError as error:
                raise SessionError(
                    f"cannot open the changes of session {self.id}: {error.strerror}",
                    hint=f"type `chmod u+rwx {shlex.quote(self.path)}/upper`",
                ) from None
            try:
                lower = stack.enter_context(opened_directory(self.workspace))
            except OSError as error:
                raise SessionError(
                    f"cannot open the workspace of session {self.id}: {self.workspace}: "
                    f"{error.strerror}",
                    hint=f"the changes of the command are in {self.path}/upper",
                ) from None
            if os.fstat(lower).st_ino != self.inode:
                raise SessionError(
                    f"{self.workspace} is not the same directory as when session {self.id} started",
                    hint=f"the changes of the command are in {self.path}/upper",
                )
            yield Roots(upper=upper, lower=lower, state=state)

    def holds(self, directory: str) -> bool:
        return f"{directory}/".startswith(f"{self.workspace.rstrip('/')}/")


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenDirectory(StoredDirectory):
    """A directory that can not be compared or applied, with the reason."""

    reason: str


def store_of(state_dir: str) -> str:
    return f"{state_dir}/{STORE}"


def listed(store: str) -> list[Session | BrokenDirectory]:
    """Newest first; other directories last."""
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
    """The id of a session, or the beginning of at least one."""
    return bool(_matching(store, name))


def _matching(store: str, name: str) -> list[str]:
    if not _ID.fullmatch(name):
        return []
    if os.path.isdir(os.path.join(store, name)):
        return [name]
    if len(name) < _MIN_PREFIX_CHARS:
        return []
    return [one.id for one in listed(store) if one.id.startswith(name)]


def read_directory(store: str, name: str) -> Session | BrokenDirectory:
    match _matching(store, name):
        case []:
            raise SessionError(
                f"the session {name} does not exist",
                hint="type `paddock sessions` to list the sessions",
            )
        case [one]:
            return _read(store, one)
        case several:
            raise SessionError(
                f"{len(several)} sessions begin with {name}: {' '.join(several)}",
                hint="give more characters of the id",
            )


def find(store: str, name: str) -> Session:
    """One that can be compared, applied and resumed."""
    found = read_directory(store, name)
    if not isinstance(found, Session):
        raise SessionError(
            f"session {name}: {found.reason}",
            hint=f"check {found.path}; type `paddock discard {name}` to remove it",
        )
    return found


def of_directory(store: str, directory: str) -> list[Session]:
    """Sessions whose workspace is, or contains, the directory; newest first."""
    return [one for one in listed(store) if isinstance(one, Session) and one.holds(directory)]


def discard(store: str, one: StoredDirectory) -> str | None:
    """Removes it; the caller holds its lock. It is renamed first, so that an interrupted removal
    leaves no half session; the next discard removes the rest. Versions of the user that an apply
    kept are moved out first. Returns their path.
    """
    saved = _save_host_versions(store, one)
    with _opened(store) as fd:
        os.rename(one.id, _LEAVING + one.id, src_dir_fd=fd, dst_dir_fd=fd)
        with contextlib.suppress(FileNotFoundError):  # another discard removes it already
            remove_all(_LEAVING + one.id, fd)
        for left in os.listdir(fd):
            if left.startswith(_LEAVING):
                # a leftover that can not be removed does no harm
                with contextlib.suppress(OSError):
                    remove_all(left, fd)
    return saved


def _save_host_versions(store: str, one: StoredDirectory) -> str | None:
    path = os.path.join(os.path.dirname(store), HOST_VERSIONS_DIR)
    target = os.path.join(path, one.id)
    if not os.path.lexists(os.path.join(one.path, HOST_VERSIONS_DIR)):
        return target if os.path.lexists(target) else None  # moved by an interrupted discard
    try:
        os.makedirs(path, mode=0o700, exist_ok=True)
        os.rename(os.path.join(one.path, HOST_VERSIONS_DIR), target)
    except OSError as error:
        raise SessionError(
            f"cannot move your versions in session {one.id} to {target}: {error.strerror}",
            hint=f"move {shlex.quote(one.path)}/{HOST_VERSIONS_DIR} to another directory, then "
            f"type `paddock discard {one.id}` again",
        ) from None
    return target


def kept_versions(store: str) -> list[str]:
    """The directories in which `discard` kept the user's own versions."""
    path = os.path.join(os.path.dirname(store), HOST_VERSIONS_DIR)
    try:
        return [os.path.join(path, name) for name in sorted(os.listdir(path))]
    except FileNotFoundError:
        return []


def _read(store: str, name: str) -> Session | BrokenDirectory:
    path = os.path.join(store, name)
    try:
        with _opened(path) as fd:
            session = _parsed(_content("session.json", fd), name)
            return replace(
                session,
                path=path,
                hidden=_hidden(_content("hidden.jsonl", fd), session.workspace),
            )
    except FileNotFoundError:
        reason = "has no session.json"
    except OSError as error:
        reason = f"cannot be read: {error.strerror}"
    except (ValueError, KeyError, TypeError, GlobError) as error:
        reason = f"session.json is invalid: {error}"
    return BrokenDirectory(id=name, path=path, reason=reason)


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
    # null: files are not restricted
    files = fields["plan"]["files"] or {"protect": [], "opened": []}
    return Session(
        id=name,
        path="",
        workspace=workspace,
        inode=_number(fields["inode"]),
        started_ns=_number(fields["started_ns"]),
        command=tuple(_text(word) for word in fields["command"]),
        hidden=HiddenNames(),
        is_protected=Protection.of(
            workspace, map(_text, files["protect"]), map(_text, files["opened"])
        ),
    )


def directories_of(state: int) -> dict[str, int]:
    """The directories of the workspace at the start of the session, with their inode numbers; none
    if they were not watched.
    """
    try:
        content = _content("directories", state, _MAX_DIRECTORIES_BYTES)
        lines = (line.split(b" ", 1) for line in content.split(b"\0")[:-1])
        return {os.fsdecode(path): int(inode) for inode, path in lines}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise SessionError(f"the session's list of directories is invalid: {error}") from None


def _hidden(content: bytes, workspace: str) -> HiddenNames:
    parts = [json.loads(line) for line in content.splitlines()]
    return HiddenNames.of(
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
def _locked(path: str, how: int) -> Iterator[None]:
    with _opened(path) as fd:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
        yield
