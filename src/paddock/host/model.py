"""Host: facts measured on this machine and about this installation. No opinion, no policy."""

from __future__ import annotations

from dataclasses import dataclass

from paddock.text.path_walk import Tree


@dataclass(frozen=True, slots=True, kw_only=True)
class Usable:
    """A mechanism that was tried: does it work here, and what did the kernel answer at which step
    if not.
    """

    usable: bool
    errno: str | None = None
    step: str | None = None

    @property
    def refusal(self) -> str:
        return (
            f"{self.step}: {self.errno}"
            if self.step and self.errno
            else self.step or self.errno or "not usable"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    kernel: str
    arch: str
    landlock_abi: int  # 0: none
    landlock_errno: str | None  # why there is none
    seccomp: bool
    user_notification: bool
    filtered: (
        bool  # somebody else's system call filter is on this process: a container engine's, for one
    )
    no_new_privs: bool
    namespaces: Usable  # user, mount, pid, ipc and uts, with the mounts the full tier makes in them
    overlay: Usable  # for copy-on-write workspaces
    uid: int
    user: str
    home: str
    cwd: str
    reached: tuple[Tree, ...]  # every place a fenced command of this user could ever write
    journals: tuple[str, ...]  # that earlier runs of this user were told to keep elsewhere
    own_paths: tuple[
        str, ...
    ]  # what no grant may make writable: configuration, state, the installation


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One mechanism, really tried."""

    mechanism: str
    held: bool
    detail: str
    needs: str
