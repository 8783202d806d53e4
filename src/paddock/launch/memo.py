"""The memo: a compiled plan kept for the next time the same is asked, so that `paddock run` starts
like a native tool.

The front door (`core/bin/paddock/main.rs`) looks a memo up by its key, sees that every input is
still what it was, and starts the core without Python. It knows no options and compiles nothing; on
any doubt it comes here. What a plan depends on is said in this file:

- key: version, uid, directory, kernel, the front door itself, the command's name, the options as
  written
- contents: policy files (with what was approved for good, if something can be asked), the
  directories where one could appear, the project file, the lists of trusted files, of what earlier
  runs could write and of journals, the passwd and group files, git's own files that were looked
  into, Paddock's own profiles, tables and code; each by all that a change would touch (device,
  inode, mode, owner, size, both times)
- places: directories of policy files, what becomes writable (and the links that lead there), where
  exec rules lead, those that a grant had made, where the person finds Paddock, git's directories;
  by what is there and who may write it; the root directory, which is another one in a container
- variables: those that patterns used

Whether namespaces can be used is not among them, and no file tells. A plan of the full tier that
can not be carried out any more stops by itself. A plan of the landlock tier that nobody asked for
is kept with the mark that it is for a machine without namespaces: the front door tries, which costs
little where there are none.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from paddock.core import process as core
from paddock.core.canonical import canonical
from paddock.errors import PolicyError
from paddock.host.installation import FRONT_DOOR, entries_of
from paddock.launch.prepare import Prepared
from paddock.policy import Origin, Policy, git_layout
from paddock.policy.glob import Glob
from paddock.policy.hosts import GROUPS
from paddock.policy.load import rule_paths, writable_trees
from paddock.policy.model import Tier
from paddock.policy.protected import TABLE
from paddock.policy.trust import journal_history, writable_history
from paddock.policy.trust.path_list import facts_of
from paddock.text.path_walk import PathWalk, follow
from paddock.version import __version__

MemoFacts = list[int] | None  # None: nothing is there

MAX_KEPT_PLANS = 64  # plans; more would be the leavings of directories and options of long ago


class Consulted(Mapping[str, str]):
    """An environment that remembers which of its variables were asked for."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self.names: set[str] = set()

    def __getitem__(self, name: str) -> str:
        self.names.add(name)
        return self._environ[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._environ)

    def __len__(self) -> int:
        return len(self._environ)


def watched(origin: Origin) -> tuple[Origin, Consulted]:
    """The same origin, whose environment tells afterwards what was used of it."""
    environ = Consulted(origin.environ)
    return replace(origin, environ=environ), environ


@dataclass(frozen=True, slots=True, kw_only=True)
class Memo:
    """Made before the policy is loaded: what is on the disk then is what the plan may be remembered
    for.
    """

    origin: Origin
    options: tuple[str, ...]  # as written between ``run`` and ``--``
    command: str
    before: Mapping[str, MemoFacts] | None  # None: something could not be looked at

    @classmethod
    def ahead_of(cls, origin: Origin, options: Iterable[str], command: str) -> Memo:
        try:
            before = _facts(_surroundings(origin))
        except OSError:
            before = None
        return cls(origin=origin, options=tuple(options), command=command, before=before)

    def keep(self, prepared: Prepared, consulted: Consulted, *, quiet: bool) -> None:
        """Losing a memo costs time, never safety: a full disk or a read-only home must not stop a
        run.
        """
        with contextlib.suppress(OSError, PolicyError):
            self._keep(prepared, consulted, quiet=quiet)

    def _keep(self, prepared: Prepared, consulted: Consulted, *, quiet: bool) -> None:
        policy, terrain, plan = prepared.policy, prepared.terrain, prepared.plan
        # A layer turned off by hand, or a link on the way: such plans are made anew each time.
        if policy.off or _follows_links(policy):
            return
        read: dict[str, MemoFacts] = {file.path: list(file.facts) for file in policy.files}
        read.update((path, list(facts) if facts else None) for path, facts in terrain.files.items())
        seen = {
            path: list(facts)[:5] if facts else None for path, facts in terrain.directories.items()
        }
        trees = [*writable_trees(policy), *map(follow, terrain.writable)]
        ruled = [follow(path) for path in rule_paths(policy.rules)]
        led = {path: follow(path) for path in terrain.leads}
        others = _facts(
            (
                *_own_code(),
                *(link.path for way in (*trees, *ruled, *led.values()) for link in way.links),
            )
        )
        places = {
            path: _place(path)
            for path in (*self._places(policy, (*trees, *ruled, *led.values())), *seen)
        }
        # Something changed while it was read: then nobody can say which of the two the plan is for.
        if self.before is None or _facts(self.before) != self.before or _facts(read) != read:
            return
        if (
            any(places[path] != seen[path] for path in seen)
            or {p: w.end.path for p, w in led.items()} != terrain.leads
        ):
            return
        # The same of what becomes writable: later runs know it as it was recorded.
        if prepared.reach.including(trees) != prepared.reach:
            return
        stores: dict[str, MemoFacts] = {
            os.path.join(self.origin.state_dir, writable_history.STORE): list(prepared.reach.facts)
            or None,
            os.path.join(self.origin.state_dir, journal_history.STORE): list(
                prepared.journals.facts
            )
            or None,
        }
        text = canonical(
            {
                "quiet": quiet,
                "unless_namespaces": plan.tier is Tier.LANDLOCK and policy.tier is None,
                "contents": {**self.before, **others, **read, **stores},
                "places": places,
                "variables": {
                    name: self.origin.environ.get(name) for name in sorted(consulted.names)
                },
                "plan": plan.canonical().decode("ascii"),
            }
        )
        _write(Path(self.origin.state_dir, "plans"), self.key(), text)

    def key(self) -> str:
        door = os.path.join(os.path.dirname(os.path.realpath(core.program())), FRONT_DOOR)
        parts = (
            "paddock-memo-2",
            __version__,
            str(self.origin.uid),
            self.origin.cwd,
            os.uname().release,
            door,
            self.command,
            *self.options,
        )
        # No part can hold a NUL, so no two lists of parts give the same bytes.
        return hashlib.sha256(b"\0".join(os.fsencode(part) for part in parts)).hexdigest()

    def _places(self, policy: Policy, trees: Iterable[PathWalk]) -> Iterator[str]:
        yield "/"
        yield self.origin.home
        # Removed meanwhile, they have to be made again, and that is not the front door's to do.
        yield from (
            Glob.parse(grant.pattern).prefix for grant in policy.filesystem.grants if grant.create
        )
        yield from (os.path.dirname(file.path) for file in policy.files)
        yield from (way.end.path for way in trees)
        yield from entries_of(self.origin.environ.get("PATH", ""))


def _surroundings(origin: Origin) -> Iterator[str]:
    """What every plan depends on: who one is, and where a policy could appear."""
    yield from ("/etc/passwd", "/etc/group", origin.builtin_dir)
    for directory in (origin.config_dir, origin.system_dir):
        yield from (directory, f"{directory}/.")  # a link, and the directory that it leads to
    yield from (
        f"{origin.state_dir}/trusted",
        f"{origin.cwd}/paddock.toml",
        TABLE,
        git_layout.TABLE,
        GROUPS,
    )
    yield from (entry.path for entry in os.scandir(origin.builtin_dir))


def _own_code() -> Iterator[str]:
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "paddock" and module.__file__:
            yield module.__file__


def _follows_links(policy: Policy) -> bool:
    """To a policy file; or in a deny with a wildcard, which was resolved when it was loaded. Nobody
    watches these.
    """
    globs = [Glob.parse(deny.pattern) for deny in policy.filesystem.denies]
    linked = any(file.found != file.path for file in policy.files)
    return linked or any(not glob.exact and not glob.floating for glob in globs)


def _facts(paths: Iterable[str]) -> dict[str, MemoFacts]:
    return {path: _content(path) for path in paths}


def _content(path: str) -> MemoFacts:
    """What can not be looked at is an error: it is not nothing."""
    try:
        return list(facts_of(os.lstat(path)))
    except (FileNotFoundError, NotADirectoryError):
        return None


def _place(path: str) -> list[int] | None:
    facts = _content(path)
    return facts[:5] if facts else None


def _write(directory: Path, name: str, text: str) -> None:
    directory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    directory.mkdir(mode=0o700, exist_ok=True)
    with tempfile.NamedTemporaryFile(
        "w", dir=directory, delete=False
    ) as file:  # made with mode 0600
        file.write(text)
    os.replace(file.name, directory / name)
    known = sorted(directory.iterdir(), key=lambda path: path.stat().st_mtime_ns)
    for path in known[:-MAX_KEPT_PLANS]:
        path.unlink()
