"""A command for display and for the journal: without secrets, but with every program that it would
start.

The redactor keeps the syntax of a shell. It does not know the role of a word: in ``exec -a token:
./x`` the apparent token value is a program. So both texts are parsed and must start the same
programs.
"""

from __future__ import annotations

from paddock.core.redact import Redactor


def shown_command(text: str, redactor: Redactor, *, cwd: str) -> str:
    shown = redactor.command(text)
    if shown == text:
        return shown
    started = _started(text, cwd)
    return (
        shown if started is not None and _started(shown, cwd) == started else redactor.known(text)
    )


def _started(text: str, cwd: str) -> tuple[str, ...] | None:
    """None: unknown."""
    from paddock.shell.denied_commands import read

    line = read(text, cwd=cwd, home="/").line
    return (
        None
        if line is None
        else tuple(command.words[0] for command in line.commands if command.words)
    )
