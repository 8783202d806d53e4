"""Paddock: run an AI agent inside a fence that the kernel holds."""

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

__version__ = "0.1.0"

__all__ = [
    "Bug",
    "CoreError",
    "HostError",
    "JournalError",
    "PaddockError",
    "PolicyError",
    "SessionError",
    "UsageError",
    "__version__",
]
