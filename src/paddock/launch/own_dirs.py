"""Creates Paddock's own directories before a run that could create them itself: only an existing
directory can be locked or masked.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator

from paddock.errors import HostError
from paddock.plan.path_containment import within
from paddock.policy import Origin


def make_lockable(origin: Origin, writable: Iterable[str]) -> None:
    """``writable``: the resolved paths that the command may write."""
    trees = list(writable)
    for path, mode in _own(origin):
        if os.path.lexists(path) or not any(within(path, tree) for tree in trees):
            continue
        try:
            # The command runs as the same user, so it can not create it either.
            with contextlib.suppress(PermissionError):
                os.makedirs(path, mode=mode, exist_ok=True)
        except OSError as error:
            raise HostError(f"cannot create {path} to lock it: {error.strerror}") from error


def _own(origin: Origin) -> Iterator[tuple[str, int]]:
    yield origin.config_dir, 0o700
    yield origin.state_dir, 0o700
    yield f"/var/tmp/paddock-audit-{origin.uid}", 0o700
    yield origin.system_dir, 0o755  # policies of all users
