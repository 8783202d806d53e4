"""Paths in tool arguments, and the forms in which they are compared. Only this file computes them.

A path has several spellings that must all pass: normalised by text, and resolved as the kernel does
it, with links followed. ``/etc/./shadow``, ``link/shadow`` and ``/proc/self/root/etc/shadow`` are
one file. Paths of Windows (drive letters, UNC) are understood on every system, so that a policy
means the same everywhere; on other systems they open nothing.
"""

from __future__ import annotations

import os
import re
import sys
import unicodedata
from dataclasses import dataclass
from enum import Enum

from paddock.errors import PaddockError
from paddock.text.path_walk import follow

_DRIVE = re.compile(r"([A-Za-z]):(?=[\\/]|$)")
_SHORT = re.compile(r"~[0-9]")
_PATH_MAX, _NAME_MAX = 4096, 255
_FOLDING = ("win32", "darwin")


class PathError(ValueError):
    """Not a path, or its target is unknown; the message has the reason."""


class PathKind(Enum):
    POSIX = "posix"
    DRIVE = "drive"
    UNC = "unc"


@dataclass(frozen=True, slots=True, kw_only=True)
class LocatedPath:
    """``spellings``: each is judged, and all must pass. ``real``: the path to open, without any
    link; None if this system has no such path.
    """

    written: str
    kind: PathKind
    spellings: tuple[str, ...]
    real: str | None


def locate(written: str, *, cwd: str, home: str, platform: str = sys.platform) -> LocatedPath:
    if not written:
        raise PathError("the path is empty")
    if "\0" in written:
        raise PathError("the path contains a NUL byte")
    try:
        data = os.fsencode(written)
    except UnicodeEncodeError:
        raise PathError("the path is not valid text for a file system") from None
    if len(data) >= _PATH_MAX or any(len(name) > _NAME_MAX for name in data.split(b"/")):
        raise PathError("the path cannot be looked up: it is too long for a file system")
    kind, path = normal(written, cwd=cwd, home=home, platform=platform)
    if kind is not PathKind.POSIX or platform == "win32":
        return LocatedPath(
            written=written, kind=kind, spellings=(folded(path, platform),), real=None
        )
    whole = _whole(written, cwd, home)
    try:
        real = follow(whole).end.path
    except PaddockError as error:
        raise PathError(error.message) from None
    except OSError as error:  # a name that is too long
        raise PathError(f"the path cannot be looked up: {error.strerror}") from None
    spellings = dict.fromkeys(
        folded(one, platform) for one in (os.path.normpath(whole).replace("//", "/"), path, real)
    )
    return LocatedPath(written=written, kind=kind, spellings=tuple(spellings), real=real)


def normal(
    written: str, *, cwd: str, home: str, platform: str = sys.platform
) -> tuple[PathKind, str]:
    """Normalised by text alone: absolute, forward slashes, no ``.`` and ``..``. A drive is
    ``/c:/…``, a share ``/\\\\server/share/…``, so that patterns see one root.
    """
    text = written.replace("\\", "/")
    for long in ("//?/UNC/", "//?/unc/"):
        if text.startswith(long) and "\\" in written:
            return PathKind.UNC, _share(text[len(long) :])
    if text.startswith(("//?/", "//./")) and "\\" in written:
        text = text[4:]
    drive = _DRIVE.match(text) or (re.match(r"([A-Za-z]):", text) if platform == "win32" else None)
    if drive:
        return PathKind.DRIVE, f"/{drive[1].lower()}:" + _collapsed(
            _windows_names(text[drive.end() :])
        )
    if re.match(r"//[^/]", text) and (written.startswith("\\\\") or platform == "win32"):
        return PathKind.UNC, _share(text[2:])
    return PathKind.POSIX, _collapsed(_whole(written, cwd, home).replace("\\", "/").split("/"))


def folded(path: str, platform: str = sys.platform) -> str:
    """As a case-insensitive file system compares names: ``.ENV`` equals ``.env``."""
    if platform not in _FOLDING:
        return path
    return unicodedata.normalize("NFC", path).casefold()


def _whole(written: str, cwd: str, home: str) -> str:
    if written == "~" or written.startswith("~/"):
        return home + written[1:]
    return written if written.startswith("/") else os.path.join(cwd, written)


def _share(rest: str) -> str:
    server, _, path = rest.partition("/")
    return f"/\\\\{server.lower()}" + _collapsed(_windows_names(path))


def _windows_names(path: str) -> list[str]:
    """Windows drops trailing dots and blanks of a name; text after a colon is a stream of the same
    file.
    """
    names = []
    for name in path.split("/"):
        plain = name if name in (".", "..") else name.partition(":")[0].rstrip(". ")
        if _SHORT.search(plain):
            raise PathError(f"{name!r} may be a short (8.3) name of another file")
        names.append(plain)
    return names


def _collapsed(names: list[str]) -> str:
    components: list[str] = []
    for name in names:
        if name == "..":
            del components[-1:]
        elif name not in ("", "."):
            components.append(name)
    return "/" + "/".join(components)
