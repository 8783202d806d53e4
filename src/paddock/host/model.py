"""Host: facts measured on this machine and about this installation. No opinion, no policy."""

from __future__ import annotations

from dataclasses import dataclass

from paddock.way import Tree


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    kernel: str
    arch: str
    landlock_abi: int  # 0: none
    landlock_errno: str | None  # why there is none
    seccomp: bool
    user_notification: bool
    filtered: bool  # somebody else's system call filter is on this process: a container engine's, for one
    no_new_privs: bool
    uid: int
    user: str
    home: str
    cwd: str
    reached: tuple[Tree, ...]  # every place a fenced command of this user could ever write
    own_paths: tuple[str, ...]  # what no grant may make writable: configuration, state, the installation


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One mechanism, really tried."""

    mechanism: str
    held: bool
    detail: str
    needs: str
