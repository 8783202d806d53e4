"""Files in the full tier: the root inside holds what is granted and nothing else; mounts mask what
is closed and lock what must not be written. Nothing is carved, so a grant is the whole of its
place.
"""

from __future__ import annotations

from collections.abc import Iterable

from paddock.errors import PolicyError
from paddock.host.surroundings import Terrain
from paddock.plan.denied_paths import DeniedPaths
from paddock.plan.grants import TMP, RequestedGrant
from paddock.plan.landlock_files import refuse_closed
from paddock.plan.model import Level, Notice, PathGrant
from paddock.plan.paths import within

# The private /dev and /proc of this tier: other terminals and processes are not in them, so what is
# can be used.
_PRIVATE = (("/dev", "read"), ("/dev/pts", "device"), ("/dev/console", "device"))

# Sockets through which a service acts for whoever connects. Seccomp keeps unix sockets shut in the
# landlock tier; here they can be made, and /var/lib is readable.
SERVICES = (
    "/var/lib/docker",
    "/var/lib/containerd",
    "/var/lib/incus",
    "/var/lib/lxd",
    "/var/lib/libvirt",
)


def grants_for(
    asked: Iterable[RequestedGrant],
    closed: DeniedPaths,
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
    for one in asked:
        if one.path == TMP:
            notices.append(
                _said(
                    one,
                    "/tmp is private to the run and empty at its start; grant a directory inside "
                    "/tmp by its name",
                )
            )
        above = _above(one, closed)
        if above is not None:
            refuse_closed(one, above, closed, notices)
            continue
        if one.writes:
            _refuse_own(one, closed, notices)
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


def _above(asked: RequestedGrant, closed: DeniedPaths) -> str | None:
    """The closed place that the grant lies in, if it does."""
    for path in closed.to_everything:
        if within(asked.path, path):
            return path
    for deny, glob in closed.names:
        if glob.covers(asked.path):
            return deny.pattern
    return None


def _refuse_own(asked: RequestedGrant, closed: DeniedPaths, notices: list[Notice]) -> None:
    """What Paddock relies on stays read-only inside a writable grant. A grant inside of it would be
    no writable grant.
    """
    for path in closed.own:
        if within(asked.path, path) and asked.workspace:
            raise PolicyError(
                f"the workspace {asked.path} is in {path}, which Paddock itself needs",
                where=asked.source,
                hint="start paddock in a project directory; install paddock outside this directory",
            )
        if within(asked.path, path) or (asked.workspace and within(path, asked.path)):
            notices.append(_said(asked, f"{path} stays read-only: Paddock itself needs it"))


def _said(asked: RequestedGrant, text: str) -> Notice:
    return Notice(level=Level.WARNING, text=f"{asked.source}: {text}")
