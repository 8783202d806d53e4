"""Paths that a git configuration makes git execute or obey: included files, hooks, attributes,
drivers, helpers.

If the command may write such a file, it is equal to a hook. Conditions of ``includeIf`` are not
evaluated: every file that may be included counts.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping
from enum import Enum
from itertools import chain

from paddock.errors import PolicyError
from paddock.frozen import dataclass
from paddock.host.git.config_file import ConfigEntry, entries
from paddock.host.git.file_snapshot import FileSnapshot
from paddock.host.git.repository import Repository
from paddock.policy.git_layout import Key, key_of

SYSTEM_CONFIG = "/etc/gitconfig"
CONFIG_VARIABLES = ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM")
_REMOTE_URLS = ("remote.url", "remote.pushurl")
MAX_CONFIG_FILES = 100
MAX_COMMAND_CHARS = 4096  # of a command; git's own examples have fifty
MAX_COMMAND_WORDS, MAX_BASE_DIRECTORIES = 64, 8


@dataclass(frozen=True, slots=True, kw_only=True)
class GitTrustedPath:
    """git obeys ``path``, because of ``source`` (file and key). ``anywhere``: the same path,
    relative to the work tree, if the configuration counts in every repository of the user.
    """

    path: str
    source: str
    anywhere: str | None = None


def trusted_by(
    repository: Repository | None,
    top: str,
    home: str,
    snapshot: FileSnapshot,
    *,
    environ: Mapping[str, str] | None = None,
    remotes: set[str] | None = None,
) -> Iterator[GitTrustedPath]:
    """``top``: the directory in which git would run; relative names start there. ``environ``: the
    caller's variables, which may name more configuration files. A path may occur more than once.
    The user's own configuration is included, because git obeys it in every repository. ``remotes``
    gets the remotes with a URL that are not in the repository's own files.
    """
    variables = environ or {}
    config_home = variables.get("XDG_CONFIG_HOME") or f"{home}/.config"
    named = [variables.get(name, "") for name in CONFIG_VARIABLES]
    own = [SYSTEM_CONFIG, f"{config_home}/git/config", f"{home}/.gitconfig"]
    own += [
        os.path.normpath(os.path.join(top, file)) for file in named if file and file != os.devnull
    ]
    yield from (
        GitTrustedPath(path=file, source=f"{file}: it is git's own configuration") for file in own
    )
    of_repository = (
        (f"{repository.common_dir}/config", f"{repository.git_dir}/config.worktree")
        if repository is not None
        else ()
    )
    pending = [*own, *of_repository]
    known = set(pending)

    def is_of_user(source: str) -> bool:
        return not source.startswith(tuple(f"{file}: " for file in of_repository))

    def obeyed(path: str, source: str) -> GitTrustedPath:
        relative = path[len(top) + 1 :] if path.startswith(f"{top}/") else None
        anywhere = relative if is_of_user(source) else None
        return GitTrustedPath(path=path, source=source, anywhere=anywhere)

    texts = _files_read(pending, snapshot)
    for base, source, entry in chain(_of_environment(variables, top), texts):
        if not entry.value:
            continue
        is_url = entry.name in _REMOTE_URLS and is_of_user(source)
        if remotes is not None and is_url and entry.subsection is not None:
            remotes.add(entry.subsection)
        match key_of(entry.section, entry.key):
            case Key.INCLUDE:
                path = _expanded(entry.value, base, home)
                if path and path not in known:
                    known.add(path)
                    pending.append(path)
                    if len(known) > MAX_CONFIG_FILES:
                        raise PolicyError(
                            f"git's configuration includes more than {MAX_CONFIG_FILES} files "
                            f"({source})",
                            hint="Paddock must read every file that git obeys, to protect it: "
                            "include fewer files",
                        )
                if path:
                    yield GitTrustedPath(path=path, source=source)
            case Key.PATH:
                path = _expanded(entry.value, top, home)
                if path:
                    yield obeyed(path, source)
            case Key.ALIAS if not entry.value.startswith("!"):
                pass
            case Key.PROGRAM | Key.ALIAS:
                yield from (obeyed(path, source) for path in _files_of(entry, top, home, snapshot))
            case Key.WORKTREE | Key.NONE:
                pass


ConfigSource = tuple[str, str, ConfigEntry]
"""The base directory of relative includes, the source, and the entry."""


def _files_read(pending: list[str], snapshot: FileSnapshot) -> Iterator[ConfigSource]:
    """Of each file, including files that are added during the iteration."""
    while pending:
        file = pending.pop()
        text = snapshot.text(file)
        for entry in () if text is None else entries(text):
            yield os.path.dirname(file), f"{file}: {entry.name}", entry


def _of_environment(variables: Mapping[str, str], top: str) -> Iterator[ConfigSource]:
    """git-config(1), ENVIRONMENT, and the variables that ``git -c`` passes to the programs it
    starts.
    """
    count = variables.get("GIT_CONFIG_COUNT", "")
    for number in range(int(count) if count.isascii() and count.isdigit() else 0):
        variable = f"GIT_CONFIG_KEY_{number}"
        key, value = variables.get(variable), variables.get(f"GIT_CONFIG_VALUE_{number}")
        if key is None or value is None:
            return  # git refuses all of them
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
    """None: another user's home, or git's own installation."""
    if written.startswith("~/"):
        return os.path.normpath(home + written[1:])
    if written.startswith(("~", "%(prefix)")) or "\0" in written:
        return None
    return os.path.normpath(os.path.join(base, written))


def _files_of(entry: ConfigEntry, top: str, home: str, snapshot: FileSnapshot) -> Iterator[str]:
    """The program, if it is given by a path, and the files among its arguments (``python3
    tools/clean.py``). A word with a slash counts even if no file exists there. A directory never
    counts, because it is data for the program.
    """
    command = re.sub(r"\$(HOME\b|\{HOME\})", lambda _: home, entry.value or "")
    for number, word in enumerate(_words(command)):
        path = _expanded(word, top, home)
        if path is None or path == "/" or not (number or "/" in word):
            continue
        found = _kind(path, snapshot) if path.startswith(f"{top}/") else None
        if found is not _Kind.DIRECTORY and ("/" in word or found is _Kind.FILE):
            yield path
    yield from _files_in_expression(command, top, snapshot)


def _files_in_expression(command: str, top: str, snapshot: FileSnapshot) -> Iterator[str]:
    """Shell expressions such as ``cd tools && ./clean``, ``"$PWD/tools/clean"``, ``PATH=tools:$PATH
    clean`` or ``python3 -m tools.clean`` are not evaluated. Every file of the work tree that their
    words name counts.
    """
    fixed = re.sub(r"\$(\w+|\{\w+\}|\([^()]*\))", " ", command[:MAX_COMMAND_CHARS])
    words = list(dict.fromkeys(re.findall(r"[\w.@+-]+(?:/[\w.@+-]+)*", fixed)))[:MAX_COMMAND_WORDS]
    spelled = [os.path.normpath(os.path.join(top, word)) for word in words]
    below = [path for path in spelled if path.startswith(f"{top}/")]
    bases = [top, *(path for path in below if _kind(path, snapshot) is _Kind.DIRECTORY)][
        :MAX_BASE_DIRECTORIES
    ]
    for base in bases:
        for word in words:
            for name in (
                word,
                word.replace(".", "/") + ".py",
                f"{word.replace('.', '/')}/__main__.py",
            ):
                path = os.path.normpath(os.path.join(base, name))
                if path.startswith(f"{top}/") and _kind(path, snapshot) is _Kind.FILE:
                    yield path


# Characters that a shell interprets.
_IS_EXPRESSION = re.compile(r"""["'$|&;<>()%]|\s-""")


def _words(command: str) -> Iterator[str]:
    for word in _split(command[:MAX_COMMAND_CHARS].removeprefix("!")):
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


def _kind(path: str, snapshot: FileSnapshot) -> _Kind | None:
    try:
        found = snapshot.at(path)
    except PolicyError:  # an inaccessible directory may become accessible again
        return _Kind.FILE
    if found is None:
        return None
    return _Kind.DIRECTORY if stat.S_ISDIR(found.st_mode) else _Kind.FILE
