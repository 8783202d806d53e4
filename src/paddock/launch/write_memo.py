"""The memo: a compiled plan that is stored for the next start with the same input, so that `paddock
run` starts like a native tool.

The launcher (`core/bin/paddock/main.rs`) finds a memo by its key, checks that every input is
unchanged, and starts the core without Python. It parses no options and compiles nothing; in every
other case it starts Python. The inputs of a plan are:

- key: version, uid, directory, kernel, the launcher itself, the command's name, the options as
written

- contents: policy files (with the stored approvals, if a question is possible), the directories
where one could appear, the project file, the lists of trusted files, of previously writable paths
and of journals, the passwd and group files, the git files that were read, Paddock's own profiles,
tables and code; each by every fact that a change would modify (device, inode, mode, owner, size,
both times)

- paths: directories of policy files, writable paths (and the links that lead there), the paths in
exec rules and in protected patterns, directories that a grant created, the paths where the user
finds Paddock, git directories; by their object and who may write it; the root directory, which
differs in a container

- variables: those that patterns used, and PWD

The availability of namespaces is not among them, and no file shows it. A plan of the full tier that
can not be applied any more stops by itself. A plan of the landlock tier that was not requested is
stored with a mark that it is for a machine without namespaces: the launcher tries them, which is
cheap where there are none.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from paddock.core import process as core
from paddock.core.canonical import canonical
from paddock.errors import PolicyError
from paddock.frozen import dataclass
from paddock.host.installation import LAUNCHER, entries_of
from paddock.launch.prepare import Prepared
from paddock.policy import Origin, Policy, git_layout, landlock
from paddock.policy.glob import Glob
from paddock.policy.hosts import GROUPS
from paddock.policy.load import protected_paths, rule_paths, writable_trees
from paddock.policy.model import Tier
from paddock.policy.protected import TABLE
from paddock.policy.trust import journal_history, writable_history
from paddock.policy.trust.path_list import facts_of
from paddock.text.path_walk import PathWalk, follow
from paddock.version import __version__

MemoFacts = list[int] | None  # None: the object does not exist

PWD = "PWD"  # the path that led here; policy/trust/workspace_path.py asks for links on it
MAX_KEPT_PLANS = 64  # more would be leftovers of unused directories and options


class RecordingEnviron(Mapping[str, str]):
    """An environment that records which of its variables were read."""

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


def watched(origin: Origin) -> tuple[Origin, RecordingEnviron]:
    """The same origin with an environment that records its use."""
    environ = RecordingEnviron(origin.environ)
    return replace(origin, environ=environ), environ


@dataclass(frozen=True, slots=True, kw_only=True)
class Memo:
    """Made before the policy is loaded: the plan belongs to the state of the disk then."""

    origin: Origin
    options: tuple[str, ...]  # as written between ``run`` and ``--``
    command: str
    before: Mapping[str, MemoFacts] | None  # None: something could not be examined

    @classmethod
    def ahead_of(cls, origin: Origin, options: Iterable[str], command: str) -> Memo:
        try:
            before = _facts(_common_inputs(origin))
        except OSError:
            before = None
        return cls(origin=origin, options=tuple(options), command=command, before=before)

    def keep(self, prepared: Prepared, consulted: RecordingEnviron, *, quiet: bool) -> None:
        """Losing a memo costs time, never safety: a full disk or a read-only home must not stop a
        run.
        """
        with contextlib.suppress(OSError, PolicyError):
            self._keep(prepared, consulted, quiet=quiet)

    def _keep(self, prepared: Prepared, consulted: RecordingEnviron, *, quiet: bool) -> None:
        policy, terrain, plan = prepared.policy, prepared.terrain, prepared.plan
        # Plans with a layer turned off, or with a link on the path of a policy file, are compiled
        # each time.
        if policy.off or _follows_links(policy):
            return
        read: dict[str, MemoFacts] = {file.path: list(file.facts) for file in policy.files}
        read.update((path, list(facts) if facts else None) for path, facts in terrain.files.items())
        seen = {
            path: list(facts)[:5] if facts else None for path, facts in terrain.directories.items()
        }
        trees = [*writable_trees(policy), *map(follow, terrain.writable)]
        named = (*rule_paths(policy.rules), *protected_paths(policy.filesystem))
        ruled = [follow(path) for path in named]
        resolved = {path: follow(path) for path in terrain.resolved_paths}
        others = _facts(
            (
                *_own_code(),
                *(
                    link.path
                    for walk in (*trees, *ruled, *resolved.values())
                    for link in walk.links
                ),
            )
        )
        directories = {
            path: _directory_facts(path)
            for path in (*self._watched_paths(policy, (*trees, *ruled, *resolved.values())), *seen)
        }
        # An input changed while it was read: then it is unknown which state the plan belongs to.
        if self.before is None or _facts(self.before) != self.before or _facts(read) != read:
            return
        if (
            any(directories[path] != seen[path] for path in seen)
            or {p: w.end.path for p, w in resolved.items()} != terrain.resolved_paths
        ):
            return
        # The same for paths that become writable: later runs know them as recorded.
        if prepared.writable_history.including(trees) != prepared.writable_history:
            return
        stores: dict[str, MemoFacts] = {
            os.path.join(self.origin.state_dir, writable_history.STORE): list(
                prepared.writable_history.facts
            )
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
                "places": directories,
                "variables": {
                    name: self.origin.environ.get(name) for name in sorted({*consulted.names, PWD})
                },
                "plan": plan.canonical().decode("ascii"),
            }
        )
        _write(os.path.join(self.origin.state_dir, "plans"), self.key(), text)

    def key(self) -> str:
        launcher = os.path.join(os.path.dirname(os.path.realpath(core.program())), LAUNCHER)
        parts = (
            "paddock-memo-2",
            __version__,
            str(self.origin.uid),
            self.origin.cwd,
            os.uname().release,
            launcher,
            self.command,
            *self.options,
        )
        # No part can contain a NUL, so no two lists of parts give the same bytes.
        return hashlib.sha256(b"\0".join(os.fsencode(part) for part in parts)).hexdigest()

    def _watched_paths(self, policy: Policy, trees: Iterable[PathWalk]) -> Iterator[str]:
        yield "/"
        yield self.origin.home
        # If they are removed, they must be created again, and the launcher does not do that.
        yield from (
            Glob.parse(grant.pattern).prefix for grant in policy.filesystem.grants if grant.create
        )
        yield from (os.path.dirname(file.path) for file in policy.files)
        yield from (walk.end.path for walk in trees)
        for entry in entries_of(self.origin.environ.get("PATH", ""), self.origin.cwd):
            yield from (entry, os.path.dirname(entry))  # it may become a link to another directory


def _common_inputs(origin: Origin) -> Iterator[str]:
    """Inputs of every plan: the user, and the directories where a policy could appear."""
    yield from ("/etc/passwd", "/etc/group", origin.builtin_dir)
    for directory in (origin.config_dir, origin.system_dir):
        yield from (directory, f"{directory}/.")  # a link, and the directory behind it
    yield from (
        f"{origin.state_dir}/trusted",
        f"{origin.cwd}/paddock.toml",
        TABLE,
        git_layout.TABLE,
        landlock.TABLE,
        GROUPS,
    )
    yield from (entry.path for entry in os.scandir(origin.builtin_dir))


def _own_code() -> Iterator[str]:
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "paddock" and module.__file__:
            yield module.__file__


def _follows_links(policy: Policy) -> bool:
    """Whether a policy file is behind a link, or a deny with a wildcard was resolved when it was
    loaded. The memo does not check these links.
    """
    globs = [Glob.parse(deny.pattern) for deny in policy.filesystem.denies]
    linked = any(file.found != file.path for file in policy.files)
    return linked or any(not glob.exact and not glob.floating for glob in globs)


def _facts(paths: Iterable[str]) -> dict[str, MemoFacts]:
    return {path: _content(path) for path in paths}


def _content(path: str) -> MemoFacts:
    """An object that can not be examined is an error; it is not missing."""
    try:
        return list(facts_of(os.lstat(path)))
    except (FileNotFoundError, NotADirectoryError):
        return None


def _directory_facts(path: str) -> list[int] | None:
    facts = _content(path)
    return facts[:5] if facts else None


def _write(directory: str, name: str, text: str) -> None:
    """By os alone: tempfile and pathlib take longer to import than all the rest of this file."""
    os.makedirs(os.path.dirname(directory), mode=0o700, exist_ok=True)
    os.makedirs(directory, mode=0o700, exist_ok=True)
    unfinished = os.path.join(directory, f"tmp{os.urandom(8).hex()}")
    with open(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    os.replace(unfinished, os.path.join(directory, name))
    known = sorted((entry.stat().st_mtime_ns, entry.path) for entry in os.scandir(directory))
    for _, path in known[:-MAX_KEPT_PLANS]:
        os.unlink(path)
