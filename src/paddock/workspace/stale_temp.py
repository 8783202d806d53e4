"""Removes private temporary directories of runs that were killed.

A living run holds a lock on its directory. The kernel releases the lock with the process in every
case.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time

from paddock.plan.grants import TMP

MIN_AGE_S = 60  # a run that just starts has created its directory and not locked it yet


def sweep(uid: int) -> None:
    try:
        names = [name for name in os.listdir(TMP) if name.startswith(f"paddock-{uid}-")]
    except OSError:  # already inside a sandbox
        return
    for name in names:
        # Owned by another user, in use, or gone meanwhile. Or too deep for Python: a sweep never
        # stops a run.
        with contextlib.suppress(OSError, RecursionError):
            _remove_if_abandoned(os.path.join(TMP, name), uid)


def _remove_if_abandoned(path: str, uid: int) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        facts = os.fstat(fd)
        if facts.st_uid == uid and time.time() - facts.st_ctime > MIN_AGE_S:
            import shutil  # slow to import, seldom needed

            shutil.rmtree(path)
    finally:
        os.close(fd)
