"""Creates missing directories of grants with ``create = true``.

Only a run creates them, before the core opens them. Each directory on the path is opened from its
parent, and no symbolic link is followed, because a command that could write there may have left
one.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable

from paddock.errors import PolicyError
from paddock.plan import Plan
from paddock.plan.grants import TMP
from paddock.plan.path_containment import within
from paddock.policy import Policy
from paddock.policy.glob import Glob
from paddock.policy.model import Grant, Source

MODE = 0o700
# O_PATH: a directory on the path need not be readable. With O_NOFOLLOW a link is opened itself, and
# is not a directory.
_FLAGS = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def to_make(policy: Policy, plan: Plan) -> dict[str, Grant]:
    """Each missing path of a grant with ``create``. Denied paths are not created."""
    granted = {grant.path for grant in plan.files.grants} if plan.files else None
    wanted = {
        Glob.parse(grant.pattern).prefix: grant
        for grant in policy.filesystem.grants
        if grant.create
    }
    return {
        path: grant
        for path, grant in wanted.items()
        if (granted is None or path in granted) and not os.path.lexists(path)
    }


def make_missing(policy: Policy, plan: Plan) -> bool:
    """Returns whether a directory was missing."""
    wanted = to_make(policy, plan)
    for path, grant in wanted.items():
        _walk(path, grant.source, _make)
    return bool(wanted)


def require_makeable(policy: Policy, plan: Plan) -> None:
    """Raises the errors of :func:`make_missing` without creating anything."""
    for path, grant in to_make(policy, plan).items():
        _walk(path, grant.source, _look)


def require_places_of_shells(policy: Policy) -> None:
    """Refuses to run if a path for shells is missing, because every shell would be refused."""
    for grant in policy.shell.grants if policy.shell else ():
        path = Glob.parse(grant.pattern).prefix
        own = any(
            within(path, directory) for directory in (TMP, "/dev", "/proc")
        ) or not path.startswith("/")
        if not grant.optional and not own and not os.path.exists(path):
            raise PolicyError(
                f"{path} does not exist",
                where=str(grant.source),
                hint="create it, or mark the grant optional with a trailing '?'",
            )


def _walk(path: str, source: Source, enter: Callable[[str, int], int | None]) -> None:
    """Walks down from the root, name by name, until ``enter`` returns None."""
    at, here = "/", os.open("/", _FLAGS)
    try:
        for name in path.strip("/").split("/"):
            at = os.path.join(at, name)
            below = enter(name, here)
            if below is None:
                return
            os.close(here)
            here = below
    except NotADirectoryError:
        raise PolicyError(
            f"cannot create {path}: {at} is a symbolic link, or not a directory",
            where=str(source),
            hint="if the link is correct, write the path that it leads to",
        ) from None
    except OSError as error:
        raise PolicyError(
            f"cannot create {path}: {at}: {error.strerror}", where=str(source)
        ) from None
    finally:
        os.close(here)


def _make(name: str, directory: int) -> int:
    try:
        return os.open(name, _FLAGS, dir_fd=directory)
    except FileNotFoundError:
        # The umask could remove bits that the command needs.
        umask = os.umask(0)
        try:
            with contextlib.suppress(
                FileExistsError
            ):  # another process created it; opening it shows its type
                os.mkdir(name, MODE, dir_fd=directory)
        finally:
            os.umask(umask)
        return os.open(name, _FLAGS, dir_fd=directory)


def _look(name: str, directory: int) -> int | None:
    try:
        return os.open(name, _FLAGS, dir_fd=directory)
    except FileNotFoundError:
        if os.access(".", os.W_OK | os.X_OK, dir_fd=directory):
            return None
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES)) from None
