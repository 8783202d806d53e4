"""Origin: who asks, and from where. Everything a policy may depend on besides its own text.

The home directory comes from the passwd entry, never from ``$HOME``: with ``HOME=/`` a line such as
``rw $HOME`` would hand out the whole machine. The XDG variables are ignored for the same reason:
whoever sets them would choose which policy files count.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from paddock.errors import UsageError
from paddock.policy.trust.journal_history import NO_JOURNALS, Journals
from paddock.policy.trust.trusted_list import Trusted
from paddock.policy.trust.writable_history import NOTHING_REACHED, WritableHistory

BUILTIN_DIR = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "profiles")
SYSTEM_DIR = "/etc/paddock"
NOTHING_TRUSTED = Trusted()


def _machine() -> str:
    return os.uname().machine


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    cwd: str
    uid: int
    user: str
    home: str
    environ: Mapping[str, str]
    gid: int = -1  # the primary group; -1 belongs to nobody
    machine: str = field(default_factory=_machine)
    system_dir: str = SYSTEM_DIR
    builtin_dir: str = BUILTIN_DIR
    trusted: Trusted = NOTHING_TRUSTED
    reach: WritableHistory = NOTHING_REACHED
    journals: Journals = NO_JOURNALS

    @property
    def config_dir(self) -> str:
        return f"{self.home}/.config/paddock"

    @property
    def state_dir(self) -> str:
        return state_dir_of(self.home)

    @classmethod
    def of_process(cls) -> Origin:
        import pwd

        uid = os.getuid()
        try:
            entry = pwd.getpwuid(uid)
        except KeyError:
            user, gid = str(uid), os.getgid()
            home = checked_home(os.environ.get("HOME", ""), uid, said_by="$HOME")
        else:
            user, gid = entry.pw_name, entry.pw_gid
            home = checked_home(entry.pw_dir, uid, said_by="the passwd entry")
        return cls(
            cwd=current_directory(),
            uid=uid,
            gid=gid,
            user=user,
            home=home,
            environ=dict(os.environ),
            trusted=Trusted.read(state_dir_of(home), uid),
            reach=WritableHistory.read(state_dir_of(home)),
            journals=Journals.read(state_dir_of(home)),
        )


def state_dir_of(home: str) -> str:
    return f"{home}/.local/state/paddock"


def current_directory() -> str:
    try:
        cwd = os.getcwd()
    except FileNotFoundError:
        raise UsageError(
            "the current directory no longer exists",
            hint="change to a directory that exists, then try again",
        ) from None
    except OSError as error:
        raise UsageError(
            f"cannot get the path of the current directory: {error.strerror}"
        ) from None
    if not cwd.startswith("/"):
        raise UsageError(f"the current directory lies outside this mount namespace: {cwd!r}")
    return cwd


def checked_home(home: str, uid: int, *, said_by: str) -> str:
    """A home that is absolute, not the root directory, and nobody else's. One that does not exist
    is no danger.
    """
    hint = "give this user its own home directory"
    clean = os.path.normpath(home) if home else ""
    if not clean.startswith("/"):
        raise UsageError(
            f"the home directory of uid {uid} is not absolute: {home!r} ({said_by})", hint=hint
        )
    if clean.strip("/") == "" or os.path.realpath(clean) == "/":
        raise UsageError(
            f"the home directory of uid {uid} is the root directory ({said_by})", hint=hint
        )
    try:
        owner = os.stat(clean).st_uid
    except (FileNotFoundError, NotADirectoryError):
        if said_by == "$HOME":
            raise UsageError(
                f"the home directory {clean!r} does not exist ({said_by})", hint=hint
            ) from None
        return clean
    except OSError as error:
        raise UsageError(
            f"the home directory {clean!r} cannot be examined: {error.strerror}", hint=hint
        ) from None
    if owner != uid:
        raise UsageError(
            f"the home directory {clean!r} belongs to uid {owner}, not to uid {uid} ({said_by})",
            hint=hint,
        )
    # Where it really lies: the current directory is named that way, too, and the two get compared.
    return os.path.realpath(clean)
