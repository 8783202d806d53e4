"""Small hosts and policies to compile plans from."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from paddock.host.facts import Host, Usable
from paddock.policy.model import Access, Deny, Filesystem, Grant, Policy, Source, Sourced, Syscalls

HOST = Host(
    kernel="6.18.0",
    arch="x86_64",
    landlock_abi=7,
    landlock_errno=None,
    seccomp=True,
    user_notification=True,
    listener=True,
    filtered=False,
    no_new_privs=True,
    namespaces=Usable(usable=False, errno="EPERM", step="user namespace"),
    overlay=Usable(usable=False, errno="EPERM"),
    uid=1000,
    user="ada",
    home="/home/ada",
    cwd="/home/ada/project",
    previously_writable=(),
    journals=(),
    own_paths=(
        "/etc/paddock",
        "/home/ada/.config/paddock",
        "/home/ada/.local/state/paddock",
        "/opt/paddock",
    ),
)

# The same machine with namespaces.
FULL = replace(HOST, namespaces=Usable(usable=True), overlay=Usable(usable=True))


def source(line: int = 1, file: str = "p.toml") -> Source:
    return Source(file=file, line=line)


def grant(
    access: Access, pattern: str, *, line: int = 1, optional: bool = False, workspace: bool = False
) -> Grant:
    return Grant(
        access=access, pattern=pattern, optional=optional, workspace=workspace, source=source(line)
    )


def deny(pattern: str, *, line: int = 9, optional: bool = False) -> Deny:
    return Deny(pattern=pattern, source=source(line), optional=optional)


def files(*grants: Grant, denies: tuple[Deny, ...] = (), **more: Any) -> Filesystem:
    bare = {"no_bootstrap_reads": Sourced(True, source())}
    return Filesystem(grants=grants, denies=denies, **{**bare, **more})


def policy(filesystem: Filesystem, **more: Any) -> Policy:
    return Policy(
        profiles=("test",),
        filesystem=filesystem,
        syscalls=Syscalls(block=(Sourced("ptrace", source()),)),
        **more,
    )


def builtin(pattern: str, *, optional: bool) -> Deny:
    """A deny of the built-in profiles."""
    return Deny(pattern=pattern, source=source(file="built-in base"), optional=optional)


def builtin_grant(access: Access, pattern: str) -> Grant:
    """A grant of a built-in profile for the path of a tool."""
    return Grant(
        access=access,
        pattern=pattern,
        optional=True,
        workspace=False,
        source=source(file="built-in dev"),
    )
