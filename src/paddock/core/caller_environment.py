"""The environment as the caller set it.

In the C locale Python sets LC_CTYPE in its own environment before any of our code runs (PEP 538).
Under -E no variable prevents this. The command would then see LC_CTYPE after a compiled start, but
not after a start from the memo, which is native.
"""

from __future__ import annotations

import os

COERCED = "LC_CTYPE"


def restore() -> None:
    """Undoes the change of Python. The locale that Python itself uses stays."""
    if COERCED not in os.environ:
        return
    given = _at_start(COERCED)
    if given is None:
        del os.environ[COERCED]
    else:
        os.environ[COERCED] = given


def _at_start(name: str) -> str | None:
    """The kernel shows the block that execve(2) received; setenv(3) does not change that block
    (proc_pid_environ(5)).
    """
    prefix = os.fsencode(name) + b"="
    with open("/proc/self/environ", "rb") as file:
        entries = file.read().split(b"\0")
    # If a name occurs twice, the first one counts, as for getenv(3).
    return next(
        (os.fsdecode(entry.removeprefix(prefix)) for entry in entries if entry.startswith(prefix)),
        None,
    )
