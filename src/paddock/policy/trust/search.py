"""Finds the file of a profile name.

Order: the user's config directory, that of the system, the built-in ones. A name that contains
``/``, or ends in ``.toml`` or ``.conf``, is a path and is not searched; a bare name never leaves
the three directories. The first file found counts: if it is invalid, that is an error, and the
search does not continue.
"""

from __future__ import annotations

import os

from paddock.errors import PolicyError
from paddock.frozen import dataclass
from paddock.policy.formats.expand import Expander
from paddock.policy.formats.suggest import did_you_mean
from paddock.policy.model import COMMAND_LINE, Source
from paddock.policy.trust.file_trust import PolicyText, read_builtin, read_policy
from paddock.policy.trust.origin import Origin

SUFFIXES = (".toml", ".conf")
BUILTIN_RUNG = 2
APPROVED = "approved"  # the stored approvals are in the same directory, and are not a profile
MANAGED = "managed"  # the managed policy of the machine is no profile either
_NO_PROFILES = (APPROVED, MANAGED)
_NAME = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-")


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundProfile:
    """``rung``: the index of its search directory, None for a path. ``shown``: its name in
    messages.
    """

    name: str
    path: str
    shown: str
    rung: int | None
    builtin: bool

    @property
    def directory(self) -> str:
        return os.path.dirname(self.path)


@dataclass(frozen=True, slots=True)
class ProfileSearch:
    origin: Origin

    @property
    def directories(self) -> tuple[str, ...]:
        return self.origin.config_dir, self.origin.system_dir, self.origin.builtin_dir

    def find(
        self,
        written: str,
        source: Source,
        *,
        relative_to: str,
        inherited_by: FoundProfile | None = None,
    ) -> FoundProfile:
        """``inherited_by``: the file with this ``inherit``. A file that inherits its own name means
        the next one down.
        """
        if is_path(written):
            return self.at_path(written, source, relative_to=relative_to)
        if not written or not _NAME.issuperset(written) or written.startswith("."):
            raise PolicyError(f"not the name of a profile: {written!r}", where=str(source))
        above = -1
        if inherited_by is not None and inherited_by.name == written:
            above = self._rung_of(inherited_by)
        for rung in range(above + 1, len(self.directories)):
            found = self._in_directory(written, rung)
            if found is not None:
                return found
        raise self._nowhere(written, source, above)

    def at_path(self, written: str, source: Source, *, relative_to: str) -> FoundProfile:
        path = os.path.join(relative_to, Expander(self.origin).path(written, source))
        name, suffix = os.path.splitext(os.path.basename(path))
        if suffix not in SUFFIXES:
            raise PolicyError(
                f"a policy file ends in {' or '.join(SUFFIXES)}: {written!r}", where=str(source)
            )
        if not exists(path):
            if source.file != COMMAND_LINE:
                raise PolicyError(f"the file {written!r} does not exist", where=str(source))
            raise PolicyError(
                "the policy file does not exist",
                where=written,
                hint="check the path, or type `paddock init` to write a first paddock.toml",
            )
        shown = written if source.file == COMMAND_LINE else os.path.normpath(path)
        return FoundProfile(name=name, path=path, shown=shown, rung=None, builtin=False)

    def names(self) -> dict[str, str]:
        """Every available name, with the first file for it. Nothing is read or checked."""
        found: dict[str, str] = {}
        for directory in self.directories:
            for entry in sorted(_entries(directory)):
                found.setdefault(os.path.splitext(entry)[0], os.path.join(directory, entry))
        return found

    def replaces_builtin(self, found: FoundProfile) -> bool:
        return (
            found.rung is not None
            and not found.builtin
            and self._in_directory(found.name, BUILTIN_RUNG) is not None
        )

    def _in_directory(self, name: str, rung: int) -> FoundProfile | None:
        directory = self.directories[rung]
        if name in _NO_PROFILES:
            return None
        paths = [
            path for suffix in SUFFIXES if exists(path := os.path.join(directory, name + suffix))
        ]
        if not paths:
            return None
        if len(paths) > 1:
            raise PolicyError(
                f"the profile {name!r} exists as .toml and as .conf",
                where=directory,
                hint="remove one of them",
            )
        builtin = rung == BUILTIN_RUNG
        return FoundProfile(
            name=name,
            path=paths[0],
            shown=f"built-in {name}" if builtin else paths[0],
            rung=rung,
            builtin=builtin,
        )

    def _rung_of(self, found: FoundProfile) -> int:
        """A file named by its path may be the one in a search directory."""
        if found.rung is not None:
            return found.rung
        for rung, directory in enumerate(self.directories):
            if os.path.realpath(found.directory) == os.path.realpath(directory):
                return rung
        return -1

    def _nowhere(self, name: str, source: Source, above: int) -> PolicyError:
        searched = ", ".join((*self.directories[above + 1 : BUILTIN_RUNG], "built in"))
        below = self.directories[above + 1 :]
        names = {os.path.splitext(entry)[0] for directory in below for entry in _entries(directory)}
        return PolicyError(
            f"the profile {name!r} does not exist; Paddock looked in {searched}",
            where=str(source),
            hint=did_you_mean(name, names),
        )


def read_text(found: FoundProfile, origin: Origin) -> PolicyText:
    """Reads the file with the checks for its location; the built-in ones are part of the
    installation.
    """
    within = None if found.rung is None else found.directory
    return (
        read_builtin(found.path)
        if found.builtin
        else read_policy(found.path, origin, shown=found.shown, within=within)
    )


def exists(path: str) -> bool:
    """Only a missing file is absent. An inaccessible directory may contain the policy."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise PolicyError(f"cannot be examined: {error.strerror}", where=path) from None
    return True


def is_path(written: str) -> bool:
    return "/" in written or written.endswith(SUFFIXES)


def _entries(directory: str) -> list[str]:
    try:
        entries = os.listdir(directory)
    except OSError:  # missing, or not listable: then it offers no name
        return []
    return [
        entry
        for entry in entries
        if entry.endswith(SUFFIXES)
        and not entry.startswith(".")
        and os.path.splitext(entry)[0] not in _NO_PROFILES
    ]
