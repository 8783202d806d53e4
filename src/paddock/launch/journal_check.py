"""Checks whether the core can use a journal, without creating or changing anything.

The core is the only writer and checks again on the files that it opens. This check is for code that
must know earlier: a dry run, and the list of journals that later runs deny.
"""

from __future__ import annotations

import os
import stat
import time

from paddock.errors import JournalError
from paddock.plan.plan import JournalPlan

_ELSEWHERE = "give your own directory with --audit-log DIR, or run without a journal: --off audit"
_ALONE = (
    "only you may have access to the journal: correct owner and mode, or give another "
    "directory with --audit-log DIR"
)


def require_usable(journal: JournalPlan, uid: int) -> None:
    try:
        facts = os.lstat(journal.dir)
    except FileNotFoundError:
        return _require_makeable(journal.dir)
    except OSError as error:
        raise JournalError(
            f"cannot open the journal directory {journal.dir}: {error.strerror}"
        ) from error
    mode = stat.S_IMODE(facts.st_mode)
    # A named file may be in a directory that others can read. Only the owner may replace it.
    private = mode & 0o022 == 0 if journal.file else mode == 0o700
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != uid or not private:
        raise JournalError(
            f"the journal {journal.dir} is not a directory that only you can access (mode "
            f"{mode:04o})",
            hint=_ALONE,
        )
    today = journal.file or time.strftime("%Y-%m-%d.jsonl", time.gmtime())
    for name in (today, journal.head):
        path = os.path.join(journal.dir, name)
        if os.path.lexists(path):
            _require_own(path, uid)
    return None


def _require_makeable(directory: str) -> None:
    parent = os.path.dirname(directory)
    if not os.path.isdir(parent):
        why = "No such file or directory"
    elif not os.access(parent, os.W_OK | os.X_OK):
        why = "Permission denied"
    else:
        return
    raise JournalError(f"cannot create the journal directory {directory}: {why}", hint=_ELSEWHERE)


def _require_own(path: str, uid: int) -> None:
    facts = os.lstat(path)
    regular = stat.S_ISREG(facts.st_mode) and facts.st_nlink == 1
    if not regular or facts.st_uid != uid or stat.S_IMODE(facts.st_mode) != 0o600:
        raise JournalError(
            f"the journal {path} is not your own regular file with mode 0600", hint=_ALONE
        )
