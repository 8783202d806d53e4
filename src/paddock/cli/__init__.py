"""The command line: the only package that prints or exits. One file for each command, imported when
the command is called.
"""

from __future__ import annotations

import importlib
import io
import itertools
import os
import sys
import traceback
from collections.abc import Sequence
from types import MappingProxyType

from paddock.cli.terminal_output import complain
from paddock.core import caller_environment
from paddock.errors import EXIT_PADDOCK, Bug, PaddockError, UsageError
from paddock.version import __version__

COMMANDS = MappingProxyType(
    {
        "run": "run a command in the sandbox",
        "jail": "run a command in a container that sees only one directory",
        "check": "validate policy files",
        "explain": "show all rules of a run, each with the file and line that it comes from",
        "why": "show whether the sandbox allows a path, program, host or tool call, and why",
        "sessions": "list the sessions of `run --cow`, which work on a copy",
        "diff": "show the changes of such a session",
        "apply": "copy the changes of such a session to your files",
        "discard": "remove such a session and its changes",
        "doctor": "test whether the sandbox works on this machine",
        "profiles": "list and show profiles",
        "trust": "allow a policy file that an agent could have written",
        "audit": "show, search, report and verify the journal",
        "shims": "make links that start restricted shells, for PATH",
        "approvals": "answer questions in the browser",
        "sandbox": "list, test and set up the places where an agent's commands run",
        "init": "write a first paddock.toml for this project",
        "policy": "show the rules for these tool calls, and their sources",
    }
)

INTERNAL = ("companion", "http", "observer")

_USAGE = """\
usage: paddock run [options] -- COMMAND …      paddock -- COMMAND …   (the same)
       paddock COMMAND --help

{commands}

First steps: `paddock doctor`, then `paddock run -- bash` in a project. The manual is
docs/README.md in the repository.

`paddock run` exits with the code of the command, or with 125 if paddock failed or refused to start,
126 if the command was denied or is not executable, 127 if it was not found, 128+N if signal N
killed it.
"""


def main(argv: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    # A terminal that can not show a character gets an escape, not an error.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    debug = "--debug" in _own(arguments)
    try:
        caller_environment.restore()
        code = _dispatch(
            [
                *(one for one in _own(arguments) if one != "--debug"),
                *arguments[len(_own(arguments)) :],
            ]
        )
        sys.stdout.flush()
        return code
    except PaddockError as error:
        complain(error.message, error.hint)
        if debug:
            traceback.print_exc()
        return error.exit_code
    except OSError as error:
        # Without this, Python would report the failed write once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        # a reader that went away is not an error of Paddock
        if not isinstance(error, BrokenPipeError):
            complain(f"{error.filename or 'output'}: {error.strerror or error}")
        if debug:
            traceback.print_exc()
        return EXIT_PADDOCK
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        if debug:
            traceback.print_exc()
        bug = Bug(
            f"internal error: {type(error).__name__}: {error}",
            hint="please report this; `paddock --debug …` shows the traceback",
        )
        complain(bug.message, bug.hint)
        return bug.exit_code


def _own(arguments: list[str]) -> list[str]:
    """The arguments before the first ``--``; the rest belongs to the command. Without ``--`` the
    command of ``run`` and ``jail`` may begin at the first word that is no option.
    """
    if "--" in arguments:
        return arguments[: arguments.index("--")]
    if arguments[:1] not in (["run"], ["jail"]):
        return arguments
    options = itertools.takewhile(lambda word: word.startswith("-"), arguments[1:])
    return [arguments[0], *options]


def _dispatch(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        width = max(map(len, COMMANDS))
        sys.stdout.write(
            _USAGE.format(
                commands="\n".join(f"  {n:{width}}  {what}" for n, what in COMMANDS.items())
            )
        )
        return 0 if arguments else EXIT_PADDOCK
    if arguments[0] == "--version":
        sys.stdout.write(f"paddock {__version__}\n")
        return 0
    if arguments[0] == "--":
        arguments = ["run", *arguments]
    name, rest = arguments[0], arguments[1:]
    if name not in (*COMMANDS, *INTERNAL):
        import difflib

        near = difflib.get_close_matches(name, COMMANDS, 1)
        raise UsageError(
            f"unknown command {name!r}",
            hint=f"did you mean `paddock {near[0]}`?"
            if near
            else f"to run a program, type `paddock -- {name} …`",
        )
    return int(importlib.import_module(f"paddock.cli.{name}").execute(rest))
