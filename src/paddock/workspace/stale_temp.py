"""Private temporary directories whose run was killed before it could remove them.

A living run holds a lock on its directory; the kernel drops it with the process, whatever ended
that.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time

from paddock.plan.grants import TMP

YOUNG_S = 60  # a run that is just starting has made its directory and not yet locked it


def sweep(uid: int) -> None:
    try:
        names = [name for name in os.listdir(TMP) if name.startswith(f"paddock-{uid}-")]
    except OSError:  # behind a fence already
        return
    for name in names:
        # Somebody else's, in use, or gone meanwhile: not ours to care for.
        # Or too deep for Python: a sweep never stops a run.
        with contextlib.suppress(OSError, RecursionError):
            _remove_if_abandoned(os.path.join(TMP, name), uid)


def _remove_if_abandoned(path: str, uid: int) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        facts = os.fstat(fd)
        if facts.st_uid == uid and time.time() - facts.st_ctime > YOUNG_S:
            import shutil  # slow to import, seldom needed

            shutil.rmtree(path)
    finally:
        os.close(fd)
