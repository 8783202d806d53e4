"""The environment as the caller gave it.

In the C locale Python sets LC_CTYPE in its own environment before any of our code runs (PEP 538),
and under -E no variable talks it out of that. The command would see it after a compiled start and
not after a remembered one, which is native.
"""

from __future__ import annotations

import os

COERCED = "LC_CTYPE"


def restore() -> None:
    """Take Python's own change back; the locale that Python itself uses stays."""
    if COERCED not in os.environ:
        return
    given = _at_start(COERCED)
    if given is None:
        del os.environ[COERCED]
    else:
        os.environ[COERCED] = given


def _at_start(name: str) -> str | None:
    """The kernel shows the block that execve(2) was given; setenv(3) leaves that one alone
    (proc_pid_environ(5)).
    """
    prefix = os.fsencode(name) + b"="
    with open("/proc/self/environ", "rb") as file:
        entries = file.read().split(b"\0")
    # Of two with one name the first counts, as for getenv(3).
    return next(
        (os.fsdecode(entry.removeprefix(prefix)) for entry in entries if entry.startswith(prefix)),
        None,
    )
