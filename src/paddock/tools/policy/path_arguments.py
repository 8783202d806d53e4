"""Guesses which arguments of a tool without a ToolSpec are paths.

An argument counts as a path by its annotation in the handler's signature, by its name, or by its
value: text that names an existing object, or a new name in an existing directory. The other
arguments can not be judged, and the question names them.
"""

from __future__ import annotations

import errno
import inspect
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

from paddock.tools.policy.calls import ToolCall

_NAMED = re.compile(
    r"(?:^|_)(?:path|file|filename|filepath|dir|directory|folder|root|cwd|workdir|src|dst|dest|destination)s?$"
)
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_MAX_PATH_CHARS = 4096
_MAX_DEPTH = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Guess:
    """``paths``: as written. ``judged`` and ``others``: names of arguments."""

    paths: tuple[str, ...]
    judged: tuple[str, ...]
    others: tuple[str, ...]

    def __str__(self) -> str:
        parts = [f"checked as paths: {', '.join(self.judged)}"] if self.judged else []
        parts += [f"not checked: {', '.join(self.others)}"] if self.others else []
        return "; ".join(parts)


def guess(call: ToolCall, *, annotated: Collection[str], cwd: str, home: str) -> Guess:
    paths: list[str] = []
    judged: list[str] = []
    others: list[str] = []
    for name, value in call.arguments.items():
        named = name in annotated or _NAMED.search(_CAMEL.sub("_", str(name)).lower()) is not None
        texts = list(_texts(value, 0))
        found = [_spellings(text, named=named, cwd=cwd, home=home) for text in texts]
        paths += [path for both in found for path in both if path]
        if any(found):
            judged.append(str(name))
        if not all(found) or (not texts and not isinstance(value, int | float | None)):
            others.append(str(name))
    return Guess(paths=tuple(dict.fromkeys(paths)), judged=tuple(judged), others=tuple(others))


def takes_a_call(handler: Callable[..., object]) -> bool:
    """A handler has one parameter, for the ToolCall; or one for each argument, by name."""
    parameters = _parameters(handler)
    if parameters is None or len(parameters) != 1:
        return parameters is None
    (only,) = parameters
    annotated = only.annotation in (ToolCall, "ToolCall", "paddock.ToolCall")
    return annotated or (
        only.annotation is inspect.Parameter.empty and only.kind is not only.KEYWORD_ONLY
    )


def annotated_paths(handler: Callable[..., object]) -> frozenset[str]:
    """Parameters with a path annotation: ``Path``, ``Path

    None``, ``list[os.PathLike[str]]``.
    """
    found = _parameters(handler) or ()
    return frozenset(one.name for one in found if re.search(r"Path\b|PathLike", _annotation(one)))


def _annotation(parameter: inspect.Parameter) -> str:
    annotation = parameter.annotation
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)


def _parameters(handler: Callable[..., object]) -> list[inspect.Parameter] | None:
    try:
        return list(inspect.signature(handler).parameters.values())
    except (TypeError, ValueError):  # a builtin without a signature
        return None


def _texts(value: Any, depth: int) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, bytes | os.PathLike):
        yield os.fsdecode(value)
    elif depth < _MAX_DEPTH and isinstance(value, Mapping):
        for one in (*value.keys(), *value.values()):
            yield from _texts(one, depth + 1)
    elif depth < _MAX_DEPTH and isinstance(value, list | tuple | set | frozenset):
        for one in value:
            yield from _texts(one, depth + 1)


def _spellings(text: str, *, named: bool, cwd: str, home: str) -> list[str]:
    """A handler may use a path unchanged, or expand ``~user``, ``file:`` and blanks first: both
    must pass.
    """
    unfolded = _as_path(text, cwd, home)
    return [text] * named + ([] if unfolded is None else [unfolded])


def _as_path(text: str, cwd: str, home: str) -> str | None:
    """The path that a text names, in any spelling; None: it does not look like one."""
    written = text.strip()
    if written.lower().startswith("file:"):
        written = unquote(urlsplit(written).path)
    written = written.removeprefix("@")  # the notation of curl and others for a file
    if not written or len(written) > _MAX_PATH_CHARS or "\0" in written or "\n" in written:
        return None
    if written in ("~", "..") or written.startswith(("~/", "../")):
        return written
    if written.startswith("~"):
        written = os.path.expanduser(written)  # another user's home
    whole = os.path.join(cwd, written)
    above = os.path.dirname(whole.rstrip("/"))
    known = _is_there(whole) or (
        "/" in written.strip("/") and above not in ("/", cwd) and _is_there(above)
    )
    return written if known else None


def _is_there(path: str) -> bool:
    """Only these errors mean that the object is missing."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (OSError, ValueError) as error:
        return not isinstance(error, ValueError) and error.errno != errno.ENAMETOOLONG
    return True
