"""Host: facts measured on this machine and about this installation. It contains no policy."""

from __future__ import annotations

from paddock.frozen import dataclass
from paddock.host.closed_namespaces import ClosedBy
from paddock.text.path_walk import Tree


@dataclass(frozen=True, slots=True, kw_only=True)
class Usable:
    """A mechanism that was tried: whether it works here, and if not, the step and the errno."""

    usable: bool
    errno: str | None = None
    step: str | None = None
    closed_by: ClosedBy | None = None

    @property
    def refusal(self) -> str:
        failed = ": ".join(filter(None, (self.step, self.errno))) or "not usable"
        return f"{failed}; {self.closed_by.setting}" if self.closed_by else failed


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    kernel: str
    arch: str
    landlock_abi: int  # 0: not available
    landlock_errno: str | None  # the reason if it is not available
    seccomp: bool
    user_notification: bool
    listener: bool  # the core may answer system calls here: no outer sandbox does
    filtered: (
        # this process already has a foreign system call filter, for example that of a container
        # engine
        bool
    )
    no_new_privs: bool
    namespaces: Usable  # user, mount, pid, ipc and uts, with the mounts of the full tier inside
    overlay: Usable  # for copy-on-write workspaces
    uid: int
    user: str
    home: str
    cwd: str
    previously_writable: tuple[
        Tree, ...
    ]  # every path that a sandboxed command of this user could ever write
    journals: tuple[str, ...]  # journals of earlier runs of this user in other directories
    own_paths: tuple[
        str, ...
    ]  # paths that no grant may make writable: configuration, state, the installation
    # missing paths at which a new program would be started instead of Paddock
    missing_entries: tuple[str, ...] = ()
    program_dirs: tuple[str, ...] = ()  # the directories of the user's PATH, resolved


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One mechanism, with the result of a real attempt."""

    mechanism: str
    held: bool
    detail: str
    needs: str
