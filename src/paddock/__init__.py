"""Paddock: run an AI agent inside a fence that the kernel holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paddock.errors import (
    Bug,
    CoreError,
    HostError,
    JournalError,
    PaddockError,
    PolicyError,
    SessionError,
    UsageError,
)

if TYPE_CHECKING:
    from paddock.approve import Question, Verdict
    from paddock.session.beside import Result, run_sync

__version__ = "0.1.0"

__all__ = [
    "Bug",
    "CoreError",
    "HostError",
    "JournalError",
    "PaddockError",
    "PolicyError",
    "Question",
    "Result",
    "SessionError",
    "UsageError",
    "Verdict",
    "__version__",
    "run_sync",
]

# Imported when they are asked for: the command line, which starts anew for every run, has no use for them.
_LAZY = {
    "Question": "paddock.approve",
    "Result": "paddock.session.beside",
    "Verdict": "paddock.approve",
    "run_sync": "paddock.session.beside",
}


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_LAZY[name]), name)
