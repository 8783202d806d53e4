"""Every error Paddock raises. The type says whose fault it is.

    PaddockError              exit code
    ├── UsageError            125   the command line is wrong
    ├── PolicyError           125   what a person wrote is wrong: file, line, key
    ├── HostError             125   this machine can not enforce what was asked
    ├── CoreError             125   the native program is missing, old or failed
    ├── JournalError          125   the journal can not be opened, or does not verify
    ├── ExecutorError         125   a command could not be started at all
    ├── SessionError          125   a session is unknown, running, broken, or could not be applied
    └── Bug                   125   Paddock contradicts itself

A denial is not an error (it is an Event, and the command sees its errno), nor is a command that
fails (it is a Result). Only ``cli/`` prints an error or exits.
"""

from __future__ import annotations

EXIT_PADDOCK = 125
"""Paddock itself failed or refused to start; never the command's own status."""
EXIT_NOT_EXECUTABLE = 126
EXIT_NOT_FOUND = 127


class PaddockError(Exception):
    """``message`` says what went wrong and where. ``hint`` says what to do."""

    exit_code = EXIT_PADDOCK

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(PaddockError):
    pass


class PolicyError(PaddockError):
    """``where`` is ``file:line`` or a flag. It precedes the message."""

    def __init__(self, message: str, *, where: str | None = None, hint: str | None = None) -> None:
        super().__init__(f"{where}: {message}" if where else message, hint=hint)
        self.where = where


class HostError(PaddockError):
    pass


class CoreError(PaddockError):
    pass


class JournalError(PaddockError):
    pass


class ExecutorError(PaddockError):
    pass


class SessionError(PaddockError):
    pass


class Bug(PaddockError):  # noqa: N818
    pass
