"""What git's configuration makes git execute or obey: the files it includes, hooks, attributes,
drivers, helpers.

Where such a file lies in a place the command may write, it is as good as a hook. Conditions of
``includeIf`` are not judged: what may be included counts.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from itertools import chain

from paddock.errors import PolicyError
from paddock.host.git.config_file import ConfigEntry, entries
from paddock.host.git.file_snapshot import Looked
from paddock.host.git.repository import Repository
from paddock.policy.git_layout import Key, key_of

SYSTEM_CONFIG = "/etc/gitconfig"
CONFIG_VARIABLES = ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM")
MOST_FILES = 100
MOST_LETTERS = 4096  # of a command; git's own examples have fifty
MOST_WORDS, MOST_BASES = 64, 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Trust:
    """git obeys ``path``, because ``said`` (file and key) says so."""

    path: str
    said: str


def trusted_by(
    repository: Repository | None,
    top: str,
    home: str,
    looked: Looked,
    *,
    environ: Mapping[str, str] | None = None,
) -> Iterator[Trust]:
    """``top``: where git would stand; relative names are meant from there. ``environ``: the
    caller's variables, which may name further files of configuration. May name a path more than
    once. The person's own configuration is among them: git obeys it in every repository.
    """
    variables = environ or {}
    config_home = variables.get("XDG_CONFIG_HOME") or f"{home}/.config"
    named = [variables.get(name, "") for name in CONFIG_VARIABLES]
    own = [SYSTEM_CONFIG, f"{config_home}/git/config", f"{home}/.gitconfig"]
    own += [
        os.path.normpath(os.path.join(top, file)) for file in named if file and file != os.devnull
    ]
    yield from (Trust(path=file, said=f"{file}: it is git's own configuration") for file in own)
    pending = list(own)
    if repository is not None:
        pending += [f"{repository.common_dir}/config", f"{repository.git_dir}/config.worktree"]
    known = set(pending)
    texts = _files_read(pending, looked)
    for base, said, entry in chain(_of_environment(variables, top), texts):
        if not entry.value:
            continue
        match key_of(entry.section, entry.key):
            case Key.INCLUDE:
                path = _expanded(entry.value, base, home)
                if path and path not in known:
                    known.add(path)
                    pending.append(path)
                    if len(known) > MOST_FILES:
                        raise PolicyError(
                            f"git's configuration includes more than {MOST_FILES} files ({said})",
                            hint="Paddock must read every file that git obeys, to protect it: "
                            "include fewer files",
                        )
                if path:
                    yield Trust(path=path, said=said)
            case Key.PATH:
                path = _expanded(entry.value, top, home)
                if path:
                    yield Trust(path=path, said=said)
            case Key.ALIAS if not entry.value.startswith("!"):
                pass
            case Key.PROGRAM | Key.ALIAS:
                yield from (
                    Trust(path=path, said=said) for path in _files_of(entry, top, home, looked)
                )
            case Key.WORKTREE | Key.NONE | None:
                pass


ConfigSource = tuple[str, str, ConfigEntry]
"""The directory that a relative include is meant from, who says it, and what."""


def _files_read(pending: list[str], looked: Looked) -> Iterator[ConfigSource]:
    """Of each file, also of those that are added meanwhile."""
    while pending:
        file = pending.pop()
        text = looked.text(file)
        for entry in () if text is None else entries(text):
            yield os.path.dirname(file), f"{file}: {entry.name}", entry


def _of_environment(variables: Mapping[str, str], top: str) -> Iterator[ConfigSource]:
    """git-config(1), ENVIRONMENT; and what ``git -c`` gives to the programs that it starts."""
    count = variables.get("GIT_CONFIG_COUNT", "")
    for number in range(int(count) if count.isascii() and count.isdigit() else 0):
        variable = f"GIT_CONFIG_KEY_{number}"
        key, value = variables.get(variable), variables.get(f"GIT_CONFIG_VALUE_{number}")
        if key is None or value is None:
            return  # git refuses them all
        yield from ((top, f"{variable}: {entry.name}", entry) for entry in _named(key, value))
    for word in _split(variables.get("GIT_CONFIG_PARAMETERS", "")):
        key, _, value = word.partition("=")
        yield from (
            (top, f"GIT_CONFIG_PARAMETERS: {entry.name}", entry) for entry in _named(key, value)
        )


def _named(key: str, value: str) -> Iterator[ConfigEntry]:
    section, _, rest = key.partition(".")
    subsection, _, last = rest.rpartition(".")
    if section and last:
        yield ConfigEntry(
            section=section.lower(), subsection=subsection or None, key=last.lower(), value=value
        )


def _expanded(written: str, base: str, home: str) -> str | None:
    """None: somebody else's home, or git's own installation."""
    if written.startswith("~/"):
        return os.path.normpath(home + written[1:])
    if written.startswith(("~", "%(prefix)")) or "\0" in written:
        return None
    return os.path.normpath(os.path.join(base, written))


def _files_of(entry: ConfigEntry, top: str, home: str, looked: Looked) -> Iterator[str]:
    """The program, if it is given by a path, and the files among its arguments (``python3
    tools/clean.py``). A word with a slash counts also where nothing lies yet; a directory never
    does: it is the work that is done there.
    """
    command = re.sub(r"\$(HOME\b|\{HOME\})", lambda _: home, entry.value or "")
    for number, word in enumerate(_words(command)):
        path = _expanded(word, top, home)
        if path is None or path == "/" or not (number or "/" in word):
            continue
        found = _kind(path, looked) if path.startswith(f"{top}/") else None
        if found is not _Kind.DIRECTORY and ("/" in word or found is _Kind.FILE):
            yield path
    yield from _files_in_expression(command, top, looked)


def _files_in_expression(command: str, top: str, looked: Looked) -> Iterator[str]:
    """What a shell would make of ``cd tools && ./clean``, ``"$PWD/tools/clean"``,
    ``PATH=tools:$PATH clean`` or ``python3 -m tools.clean`` is not worked out: every file of the
    work tree that its words spell counts.
    """
    fixed = re.sub(r"\$(\w+|\{\w+\}|\([^()]*\))", " ", command[:MOST_LETTERS])
    words = list(dict.fromkeys(re.findall(r"[\w.@+-]+(?:/[\w.@+-]+)*", fixed)))[:MOST_WORDS]
    spelled = [os.path.normpath(os.path.join(top, word)) for word in words]
    below = [path for path in spelled if path.startswith(f"{top}/")]
    bases = [top, *(path for path in below if _kind(path, looked) is _Kind.DIRECTORY)][:MOST_BASES]
    for base in bases:
        for word in words:
            for name in (
                word,
                word.replace(".", "/") + ".py",
                f"{word.replace('.', '/')}/__main__.py",
            ):
                path = os.path.normpath(os.path.join(base, name))
                if path.startswith(f"{top}/") and _kind(path, looked) is _Kind.FILE:
                    yield path


# What a shell would make more of than a name.
_IS_EXPRESSION = re.compile(r"""["'$|&;<>()%]|\s-""")


def _words(command: str) -> Iterator[str]:
    for word in _split(command[:MOST_LETTERS].removeprefix("!")):
        inner = _split(word) if " " in word else []  # sh -c "tools/clean %f"
        if not inner or not _IS_EXPRESSION.search(word):
            yield word
        yield from inner


def _split(command: str) -> list[str]:
    import shlex  # seldom needed

    try:
        return shlex.split(command)
    except ValueError:
        return command.split()


class _Kind(Enum):
    FILE = "file"
    DIRECTORY = "directory"


def _kind(path: str, looked: Looked) -> _Kind | None:
    try:
        found = looked.at(path)
    except PolicyError:  # a directory that is shut: what lies there may be opened again
        return _Kind.FILE
    if found is None:
        return None
    return _Kind.DIRECTORY if stat.S_ISDIR(found.st_mode) else _Kind.FILE
