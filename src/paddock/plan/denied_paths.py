"""The paths that are denied despite any grant, and those that stay read-only. Each tier enforces
them in its own way.
"""

from __future__ import annotations

import shlex

from paddock.frozen import dataclass
from paddock.host.facts import Host
from paddock.policy.glob import Glob
from paddock.policy.model import Deny, Filesystem

# For an ordinary user the file modes protect these. Root bypasses modes, so the sandbox must
# protect them.
_ROOT_SECRETS = ("/etc/shadow", "/etc/shadow-", "/etc/gshadow", "/etc/gshadow-", "/etc/sudoers",
                 "/etc/sudoers.d",
                 "/etc/ssh", "/proc/kcore", "/sys/firmware")  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class DeniedPaths:
    """``names`` are the denies that no single path expresses: ``**/.env``, ``/srv/*/key``."""

    denies: tuple[tuple[Deny, Glob], ...]
    denied: tuple[str, ...]
    names: tuple[tuple[Deny, Glob], ...]
    journals: tuple[str, ...]
    secrets: tuple[str, ...]  # files that only root can read
    own: tuple[str, ...]  # Paddock's own paths: readable, not writable
    missing_entries: tuple[str, ...]  # a program there would be started instead of Paddock

    def remedy(self, above: str) -> str:
        """What opens a denied path or pattern. Empty: a path that the run itself keeps closed."""
        return next(
            (remedy_of(deny) for deny, glob in self.denies if above in (glob.prefix, deny.pattern)),
            "",
        )

    @property
    def unreadable(self) -> tuple[str, ...]:
        return (*self.journals, *self.secrets)

    @property
    def to_everything(self) -> tuple[str, ...]:
        return tuple(sorted({*self.denied, *self.unreadable}))

    @property
    def to_writing(self) -> tuple[str, ...]:
        return tuple(sorted({*self.own, *self.missing_entries}))


def remedy_of(deny: Deny) -> str:
    if is_openable(deny):
        return f"to open it, add --open-protected {shlex.quote(deny.pattern)}"
    if deny.source.builtin:
        return (
            "it holds secrets, and nothing opens it; copy what the command needs to another "
            "directory, and grant that one"
        )
    return f"to open it, remove this deny: {deny.source}"


def is_openable(deny: Deny) -> bool:
    return deny.optional and deny.source.builtin


def denied_paths_of(filesystem: Filesystem, host: Host, journals: tuple[str, ...]) -> DeniedPaths:
    """A policy may open a deny that the built-in profiles add as optional (``**/.env?``)."""
    opened = {one.value for one in filesystem.open_protected}
    globs = [
        (deny, Glob.parse(deny.pattern))
        for deny in filesystem.denies
        if not (is_openable(deny) and deny.pattern in opened)
    ]
    return DeniedPaths(
        denies=tuple(globs),
        denied=tuple(glob.prefix for _, glob in globs if glob.exact),
        names=tuple((deny, glob) for deny, glob in globs if not glob.exact),
        journals=journals,
        secrets=_ROOT_SECRETS if host.uid == 0 else (),
        own=tuple(host.own_paths),
        missing_entries=tuple(host.missing_entries),
    )
