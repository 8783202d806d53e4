"""Files in the full tier: the root inside contains only granted paths. Mounts mask denied paths and
lock paths that must not be written. No grant has gaps, so it covers its whole tree.
"""

from __future__ import annotations

from collections.abc import Iterable

from paddock.errors import PolicyError
from paddock.host.grant_targets import Terrain
from paddock.plan.denied_paths import DeniedPaths
from paddock.plan.grants import TMP, RequestedGrant
from paddock.plan.landlock_files import refuse_denied
from paddock.plan.path_containment import within
from paddock.plan.plan import Level, Notice, PathGrant
from paddock.policy.glob import covering

# The private /dev and /proc of this tier contain no foreign terminals or processes, so their
# content can be used.
_PRIVATE = (("/dev", "read"), ("/dev/pts", "device"), ("/dev/console", "device"))

# Sockets of services that act for their clients. In the landlock tier seccomp denies unix sockets.
# Here they can be made, and /var/lib is readable.
SERVICES = (
    "/var/lib/docker",
    "/var/lib/containerd",
    "/var/lib/incus",
    "/var/lib/lxd",
    "/var/lib/libvirt",
)


def grants_for(
    requested: Iterable[RequestedGrant],
    denied_paths: DeniedPaths,
    terrain: Terrain,
    notices: list[Notice],
    *,
    temp: str | None,
) -> list[PathGrant]:
    grants = [
        PathGrant(path=path, access=access, except_=(), optional=True, source="private")
        for path, access in _PRIVATE
    ]
    if temp is not None:
        grants.append(
            PathGrant(path=TMP, access=temp, except_=(), optional=False, source="private")
        )
    closed = denied_paths.to_everything
    for one in requested:
        if one.path == TMP:
            notices.append(
                _notice(
                    one,
                    "/tmp is private to the run and empty at its start; grant a directory inside "
                    "/tmp by its name",
                )
            )
        above = _above(one, closed, denied_paths)
        if above is not None:
            refuse_denied(one, above, denied_paths, notices)
            continue
        if one.writes:
            _refuse_own(one, denied_paths, notices)
        grants.append(one.grant())
    for opening in terrain.openings:
        source = f"{opening.top}/.git"
        grants.append(
            PathGrant(path=opening.read, access="read", except_=(), optional=False, source=source)
        )
        grants += [
            PathGrant(path=p, access="allow", except_=(), optional=True, source=source)
            for p in opening.write
        ]
    return grants


def _above(
    requested: RequestedGrant, closed: tuple[str, ...], denied_paths: DeniedPaths
) -> str | None:
    """The denied path that contains the grant, if there is one."""
    for path in closed:
        if within(requested.path, path):
            return path
    covers = covering(requested.path)
    for deny, glob in denied_paths.names:
        if covers(glob):
            return deny.pattern
    return None


def _refuse_own(
    requested: RequestedGrant, denied_paths: DeniedPaths, notices: list[Notice]
) -> None:
    """Paddock's own paths stay read-only inside a writable grant. A grant inside them would not be
    writable.
    """
    for path in denied_paths.own:
        if within(requested.path, path) and requested.workspace:
            raise PolicyError(
                f"the workspace {requested.path} is in {path}, which Paddock itself needs",
                where=requested.source,
                hint="start paddock in a project directory; install paddock outside this directory",
            )
        if within(requested.path, path) or (requested.workspace and within(path, requested.path)):
            notices.append(_notice(requested, f"{path} stays read-only: Paddock itself needs it"))


def _notice(requested: RequestedGrant, text: str) -> Notice:
    return Notice(level=Level.WARNING, text=f"{requested.source}: {text}")
