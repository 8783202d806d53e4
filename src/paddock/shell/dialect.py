"""Which shell reads a line."""

from __future__ import annotations

from enum import Enum


class Dialect(Enum):
    """Which shell runs a command. ``SH`` is any shell of the POSIX kind that is not known to be
    bash: dash, busybox, or bash in POSIX mode. Text that these read differently than bash can not
    be judged for them.
    """

    BASH = "bash"
    SH = "sh"
