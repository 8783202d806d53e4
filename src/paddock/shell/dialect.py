"""The shell that reads a line."""

from __future__ import annotations

from enum import Enum


class Dialect(Enum):
    """The shell that runs a command. ``SH`` is any POSIX shell that is not known to be bash: dash,
    busybox, or bash in POSIX mode. Text that these read differently than bash can not be judged for
    them.
    """

    BASH = "bash"
    SH = "sh"
