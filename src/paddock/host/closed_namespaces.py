"""The setting of this machine that closes user namespaces, and what opens them."""

from __future__ import annotations

from pathlib import Path

from paddock.frozen import dataclass

# user_namespaces(7). The second one is of Debian, the third of Ubuntu (AppArmor).
_CLOSING = (
    ("user.max_user_namespaces", "0", "15000"),
    ("kernel.unprivileged_userns_clone", "0", "1"),
    ("kernel.apparmor_restrict_unprivileged_userns", "1", "0"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedBy:
    setting: str
    opened_by: str  # what to type, or to do


def closed_by(*, filtered: bool, settings: Path = Path("/proc/sys")) -> ClosedBy | None:
    """None: no known setting closes them. ``filtered``: this process has a foreign filter."""
    for name, closing, opening in _CLOSING:
        try:
            value = (settings / name.replace(".", "/")).read_text("ascii").strip()
        except OSError:
            continue  # this kernel does not have it
        if value == closing:
            return ClosedBy(
                setting=f"{name} is {value}", opened_by=f"type `sudo sysctl -w {name}={opening}`"
            )
    if filtered:
        return ClosedBy(
            setting="this process has a system call filter, as in a container or a sandbox",
            opened_by="start it outside, or the container with --security-opt seccomp=unconfined",
        )
    return None
