"""A command as it is shown and written down: without secrets, and with everything that it would
start.

The redactor leaves the syntax of a shell alone. What a word is for it does not know: in ``exec -a
token: ./x`` what looks like a token's value is a program. So both texts are read, and have to start
the same.
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
    """None: nobody can tell."""
    from paddock.shell.denied_commands import read

    line = read(text, cwd=cwd, home="/").line
    return (
        None
        if line is None
        else tuple(command.words[0] for command in line.commands if command.words)
    )
