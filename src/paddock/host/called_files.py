"""Files of a workspace that start-up scripts and hooks call: ``source ./x.sh`` in ``.envrc``,
``./scripts/lint.sh`` in a hook. A command may write them, because they are the work itself, so the
run lists the changed ones.

No script is evaluated. Each word that is the path of a file counts, from the workspace or from the
directory of the script. Files that those files call in turn are not searched.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator

from paddock.errors import PolicyError
from paddock.host.git.file_snapshot import FileSnapshot
from paddock.policy.protected import protected

MAX_SCRIPTS = 64
MAX_SCRIPT_BYTES = 64 * 1024
MAX_WORDS = 512  # of one script

_GROUPS = ("directories", "git-hooks")
# direnv only looks at the time of these files.
_NOT_CALLS = re.compile(r"^\s*(#|watch_(file|dir)\b).*$", re.MULTILINE)
_EXPANSION = re.compile(r"\$(\w+|\{[^{}]*\}|\([^()]*\))")
_WORD = re.compile(r"[\w.@+-]+(?:/[\w.@+-]+)*")


def called_files(
    top: str, others: Iterable[str], snapshot: FileSnapshot, remarks: list[str]
) -> Iterator[str]:
    """The paths in ``top`` that scripts call. ``others``: more scripts, or directories of them.
    ``remarks`` gets the scripts that can not be read.
    """
    names = [
        name
        for group in protected().groups
        if group.title in _GROUPS
        for name in group.any
        if "*" not in name
    ]
    places = [*others, *(os.path.join(top, name) for name in names)]
    texts: dict[str, str] = {}
    for place in dict.fromkeys(places):
        try:
            for script in _scripts(place, snapshot):
                if len(texts) < MAX_SCRIPTS:
                    texts[script] = snapshot.text(script) or ""
        except PolicyError as error:
            remarks.append(f"changed files that scripts call are not listed: {error.message}")
    for script, text in texts.items():
        for base in dict.fromkeys((top, os.path.dirname(script))):
            yield from _named_in(text, base, top, snapshot)


def _scripts(place: str, snapshot: FileSnapshot) -> Iterator[str]:
    found = snapshot.at(place)
    if found is None:
        return
    paths = snapshot.names(place) if stat.S_ISDIR(found.st_mode) else [place]
    for path in paths:
        if path.endswith(".sample"):
            continue
        found = snapshot.at(path)
        # A longer file is a program, and its text names nothing.
        if found and stat.S_ISREG(found.st_mode) and found.st_size <= MAX_SCRIPT_BYTES:
            yield path


def _named_in(text: str, base: str, top: str, snapshot: FileSnapshot) -> Iterator[str]:
    fixed = _EXPANSION.sub(" ", _NOT_CALLS.sub("", text))
    for word in list(dict.fromkeys(_WORD.findall(fixed)))[:MAX_WORDS]:
        path = os.path.normpath(os.path.join(base, word))
        if not path.startswith(f"{top}/"):
            continue
        try:
            found = snapshot.at(path)
        except PolicyError:  # an inaccessible directory may become accessible again
            yield path
            continue
        if found and stat.S_ISREG(found.st_mode):
            yield path
