"""Programs and files that Paddock itself uses outside of the sandbox, because the user named them.

A sandboxed command must not be able to write one, because it would run or decide outside. So every
path of such a command line is checked, not only its first word: every path in every word, the
interpreters of ``#!`` lines, and the directories of ``PATH``.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from paddock.policy.trust.writable_history import WritableHistory
from paddock.text.path_walk import follow

# the working directory of these commands, so that a relative name is not found in the workspace
COMMAND_CWD = "/"
_MAX_INTERPRETERS = 5  # the number of interpreters that the kernel follows
_MAX_SHEBANG_BYTES = 256  # bytes of a ``#!`` line that the kernel reads
# Other characters may precede a path: `--key=/x`, `-f/x`, `@/x`, `a:/x`, `sh -c '. /x'`.
_PATH = re.compile(r"(?:^-[A-Za-z]|^|(?<=[\s=:,;@'\"(){}<>|&`]))([/~.\w])")
_ENDS = re.compile(r"[\s=:,;@'\"(){}<>|&`]")
_ALWAYS_PASSED = frozenset(
    {"HOME"}
)  # other variables with a previously writable path are not passed


class Planted(Exception):  # noqa: N818 (the caller adds the position)
    """``str()`` is the path that a sandboxed command could have written."""


@dataclass(frozen=True, slots=True)
class HostCommand:
    argv: tuple[str, ...]
    environ: Mapping[str, str]


def command(
    words: Sequence[str], environ: Mapping[str, str], writable_history: WritableHistory
) -> HostCommand:
    """The command as it may be run, in ``COMMAND_CWD``. Raises Planted, or FileNotFoundError if
    there is no such program.
    """
    environment = {
        name: value
        for name, value in environ.items()
        if name in _ALWAYS_PASSED or not planted(value, environ, writable_history)
    }
    path = environ.get("PATH", os.defpath).split(os.pathsep)
    environment["PATH"] = os.pathsep.join(
        one for one in path if os.path.isabs(one) and not writable_history.holds(follow(one))
    )
    program = shutil.which(words[0], path=environment["PATH"]) or shutil.which(
        words[0], path=os.pathsep.join(path)
    )
    if program is None or not os.path.isabs(program):
        raise FileNotFoundError(words[0])
    for word in (program, *words[1:], *_interpreters(program, environment["PATH"])):
        if found := planted(word, environ, writable_history):
            raise Planted(found)
    return HostCommand((program, *words[1:]), environment)


def planted(word: str, environ: Mapping[str, str], writable_history: WritableHistory) -> str | None:
    """A path in the word that a sandboxed command could write."""
    return next(
        (path for path in _paths(word, environ) if writable_history.holds(follow(path))), None
    )


def _paths(word: str, environ: Mapping[str, str]) -> Iterator[str]:
    for text in dict.fromkeys((word, _expanded(word, environ))):
        for begin in _PATH.finditer(text):
            rest = text[begin.start(1) :]
            for path in dict.fromkeys((rest, _ENDS.split(rest, maxsplit=1)[0])):
                if path.startswith("~/"):
                    path = environ.get("HOME", "") + path[1:]
                if "\0" in path:
                    continue
                if path.startswith("/"):
                    yield path
                elif os.path.lexists(relative := os.path.join(COMMAND_CWD, path)):
                    yield relative


def _expanded(word: str, environ: Mapping[str, str]) -> str:
    """Expands variables, because a shell or the program itself may do so."""
    return re.sub(r"\$(?:(\w+)|\{(\w+)\})", lambda name: environ.get(name[1] or name[2], ""), word)


def _interpreters(program: str, search_path: str) -> Iterator[str]:
    """The words of the ``#!`` line, of that of its interpreter, and so on. ``env`` searches its
    program in PATH.
    """
    for _ in range(_MAX_INTERPRETERS):
        try:
            with open(program, "rb") as file:
                line = file.read(_MAX_SHEBANG_BYTES).split(b"\n", 1)[0]
        except (
            PermissionError
        ):  # a program may be executable and not readable; then it is not a script
            return
        if not line.startswith(b"#!"):
            return
        try:
            words = shlex.split(os.fsdecode(line[2:]))
        except ValueError:
            words = os.fsdecode(line[2:]).split()
        if not words:
            return
        yield from words
        if os.path.basename(words[0]) == "env":
            names = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
            found = shutil.which(names[0], path=search_path) if names else None
            if found is None:
                return
            yield found
            words = [found]
        program = words[0]
