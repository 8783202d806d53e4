"""Origin: the user and the directory of a request, with every input of a policy besides its own
text.

The home directory comes from the passwd entry, never from ``$HOME``: with ``HOME=/`` a line such as
``rw $HOME`` would grant the whole machine. The XDG variables are ignored for the same reason: they
would choose which policy files count.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import field

from paddock.errors import UsageError
from paddock.frozen import dataclass
from paddock.policy.trust.journal_history import EMPTY_JOURNAL_HISTORY, JournalHistory
from paddock.policy.trust.trusted_list import TrustedList
from paddock.policy.trust.workspace_path import current_directory, require_honest_cwd
from paddock.policy.trust.writable_history import EMPTY_HISTORY, WritableHistory

BUILTIN_DIR = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "profiles")
SYSTEM_DIR = "/etc/paddock"
EMPTY_TRUSTED_LIST = TrustedList()


def _machine() -> str:
    return os.uname().machine


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    cwd: str
    uid: int
    user: str
    home: str
    environ: Mapping[str, str]
    gid: int = -1  # the primary group; -1: no group
    machine: str = field(default_factory=_machine)
    system_dir: str = SYSTEM_DIR
    builtin_dir: str = BUILTIN_DIR
    trusted: TrustedList = EMPTY_TRUSTED_LIST
    writable_history: WritableHistory = EMPTY_HISTORY
    journals: JournalHistory = EMPTY_JOURNAL_HISTORY

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
        cwd = current_directory()
        history = WritableHistory.read(state_dir_of(home))
        require_honest_cwd(cwd, os.environ, history)
        return cls(
            cwd=cwd,
            uid=uid,
            gid=gid,
            user=user,
            home=home,
            environ=dict(os.environ),
            trusted=TrustedList.read(state_dir_of(home), uid),
            writable_history=history,
            journals=JournalHistory.read(state_dir_of(home)),
        )


def state_dir_of(home: str) -> str:
    return f"{home}/.local/state/paddock"


def checked_home(home: str, uid: int, *, said_by: str) -> str:
    """A home that is absolute, not the root directory, and not of another user. A missing home is
    accepted.
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
    # Its resolved path, because it is compared with the current directory, which is resolved too.
    return os.path.realpath(clean)
