"""Terrain: the objects that the grants of a policy lead to. Read once before compiling, because the
compiler reads no files.

Only the full tier needs it: there single names are protected, and a worktree can get its part of
the main repository.
"""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field, replace
from typing import TYPE_CHECKING

from paddock.errors import PolicyError
from paddock.frozen import dataclass
from paddock.host.called_files import called_files
from paddock.host.git.file_snapshot import FileFacts, FileSnapshot
from paddock.host.git.linked_worktree import Opening, opening_of
from paddock.host.git.repository import repository_around, repository_of
from paddock.host.git.trusted_paths import trusted_by
from paddock.host.git.worktree_links import Links
from paddock.policy.glob import Glob
from paddock.policy.hosts import DISCOVERED
from paddock.policy.load import writable_history_of
from paddock.policy.model import Access, Grant, Policy, Workspace
from paddock.policy.protected import protected
from paddock.policy.trust.origin import Origin
from paddock.text.path_walk import follow

if TYPE_CHECKING:
    from paddock.host.registries import Registry

_WRITES = (Access.WRITE, Access.ALLOW)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustedPath:
    """The whole path of a file that is trusted or executed outside."""

    path: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Terrain:
    resolved_paths: Mapping[str, str] = field(
        default_factory=dict
    )  # path of a grant → resolved path, if different
    openings: tuple[Opening, ...] = ()  # worktrees whose repository is elsewhere
    trusted: tuple[TrustedPath, ...] = ()  # obeyed outside, and writable for the command
    trusted_anywhere: frozenset[str] = frozenset()  # the same in each directory, as relative paths
    called: frozenset[str] = frozenset()  # files of the workspace that start-up scripts call
    git_remotes: frozenset[str] = frozenset()  # with a URL in the user's own git configuration
    remarks: tuple[str, ...] = ()  # notes for the user
    # the files that all this was read from
    files: Mapping[str, FileFacts] = field(default_factory=dict)
    directories: Mapping[str, FileFacts] = field(default_factory=dict)
    registries: Mapping[str, Registry] = field(
        default_factory=dict
    )  # host groups that are not in a table

    @property
    def writable(self) -> tuple[str, ...]:
        """The paths that the command may write besides the policy's own grants."""
        return tuple(path for opening in self.openings for path in opening.write)

    def real(self, path: str) -> str:
        return self.resolved_paths.get(path, path)


def scan_grant_targets(policy: Policy, origin: Origin, *, opens: bool = True) -> Terrain:
    """``opens``: worktrees open their repository, and registries of host groups are looked up."""
    snapshot = FileSnapshot()
    granted = [
        (Glob.parse(grant.pattern).prefix, grant)
        for grant in policy.filesystem.grants
        if _matters(grant)
    ]
    resolved_paths = {path: real for path, _ in granted if (real := os.path.realpath(path)) != path}
    writable = [path for path, grant in granted if grant.access in _WRITES]
    own = list(
        dict.fromkeys(path for path, grant in granted if grant.access in _WRITES and grant.persons)
    )
    openings: list[Opening] = []
    trusted: list[TrustedPath] = []
    anywhere: set[str] = set()
    called: set[str] = set()
    git_remotes: set[str] = set()
    remarks: list[str] = []
    links = Links.read(origin.state_dir, origin.uid)
    trees = {*writable, *(resolved_paths[path] for path in writable if path in resolved_paths)}
    for top in own:
        repository = repository_of(top, snapshot)
        if repository is not None and repository.elsewhere:
            trusted.append(
                TrustedPath(path=os.path.join(top, ".git"), why="git takes its repository from it")
            )
        if (
            opens
            and repository is not None
            and repository.linked
            and not _inside(repository.common_dir, trees)
        ):
            found = opening_of(repository, snapshot, uid=origin.uid)
            if isinstance(found, Opening) and not _believable(found, origin, links):
                found = (
                    "an earlier run could have written both this file and the list of worktrees "
                    f"there; to work here, start the run in {os.path.dirname(found.read)}"
                    + (
                        ""
                        if top.startswith(f"{os.path.dirname(found.read)}/")
                        else f" with --allow {shlex.quote(top)}"
                    )
                )
            if isinstance(found, Opening) and _is_copied(policy):
                # The repository is not part of the copy: a write there would change the host.
                remarks.append(
                    f"{found.read} is read-only in a copy of a worktree, so the command cannot "
                    "commit"
                )
                found = replace(found, write=())
            if isinstance(found, Opening):
                openings.append(found)
            else:
                remarks.append(
                    f"{top}/.git leads to {repository.git_dir}, which stays denied: {found}"
                )
        around = repository or repository_around(os.path.dirname(top), snapshot)
        for trust in trusted_by(
            around,
            around.top if around else top,
            origin.home,
            snapshot,
            environ=origin.environ,
            remotes=git_remotes,
        ):
            if trust.path == top or _inside(top, (trust.path,)):
                remarks.append(
                    f"{trust.source} names {trust.path}, which contains the workspace, so it "
                    "cannot "
                    "be read-only"
                )
            else:
                trusted.append(TrustedPath(path=trust.path, why=f"git obeys it ({trust.source})"))
                if trust.anywhere:
                    anywhere.add(trust.anywhere)
        hooks = [f"{around.common_dir}/hooks"] if around else []
        hooks += [trust.path for trust in trusted if _inside(trust.path, (top,))]
        called.update(called_files(top, hooks, snapshot, remarks))
    for variable, path in protected().named_by(origin.environ, origin.home, origin.cwd):
        _record_walk(path, snapshot)
        ends = {path, *_links_and_end(path)}
        if any(_inside(top, ends) for top in own):
            remarks.append(
                f"{variable} leads to {path}, which contains the workspace, so it cannot be "
                "read-only"
            )
        elif not any(_inside(tree, ends) for tree in trees):
            trusted.append(TrustedPath(path=path, why=f"{variable} names it, and programs obey it"))
    trusted += _search_path(origin, trees)
    registries, clients = _registries(policy, origin) if opens else ({}, FileSnapshot())
    return Terrain(
        resolved_paths=resolved_paths,
        openings=tuple(openings),
        trusted=tuple(_with_real_names(trusted, trees, own)),
        trusted_anywhere=frozenset(anywhere),
        called=frozenset(path for one in called for path in (one, *_links_and_end(one))),
        git_remotes=frozenset(git_remotes),
        remarks=tuple(dict.fromkeys(remarks)),
        files={**snapshot.files, **clients.files},
        directories={**snapshot.directories, **clients.directories},
        registries=registries,
    )


def _registries(policy: Policy, origin: Origin) -> tuple[Mapping[str, Registry], FileSnapshot]:
    network = policy.network
    hosts = (*(network.allowed_hosts or ()), *network.denied_hosts) if network else ()
    wanted = {host.value.host.removeprefix("@") for host in hosts} & set(DISCOVERED)
    if not wanted:
        return {}, FileSnapshot()
    from paddock.host.registries import discover, registry_snapshot  # most policies do not need it

    snapshot = registry_snapshot()
    return discover(wanted, origin, writable_history_of(policy, origin), snapshot), snapshot


def _is_copied(policy: Policy) -> bool:
    asked = policy.filesystem.workspace
    return asked is not None and asked.value is Workspace.COW


def _matters(grant: Grant) -> bool:
    """Whether names there can be changed or hidden; <tmp> belongs to the run."""
    return grant.pattern.startswith("/") and (grant.persons or grant.access in _WRITES)


def _believable(opening: Opening, origin: Origin, links: Links) -> bool:
    if links.know(opening.top, opening.git_dir):
        return True
    return not origin.writable_history.holds(
        follow(opening.top)
    ) or not origin.writable_history.holds(follow(opening.git_dir))


def _search_path(origin: Origin, trees: Iterable[str]) -> Iterator[TrustedPath]:
    """Directories of PATH in a writable home. Not those of the project, because every install
    writes its environment.
    """
    if not _inside(origin.home, trees):
        return
    for entry in origin.environ.get("PATH", "").split(":"):
        if entry.startswith(f"{origin.home}/") and not _inside(entry, (origin.cwd,)):
            yield TrustedPath(
                path=os.path.normpath(entry), why="the shell searches it for commands"
            )


def _with_real_names(
    trusted_paths: Iterable[TrustedPath], trees: Iterable[str], own: Iterable[str]
) -> Iterator[TrustedPath]:
    seen: set[str] = set()
    tops = {one for path in own for one in (path, os.path.realpath(path))}
    for trusted in trusted_paths:
        # A path behind a link that has its own grant can be written.
        for path in (
            trusted.path,
            *(one for one in _links_and_end(trusted.path) if one not in tops),
        ):
            if path not in seen and _inside(path, trees):
                seen.add(path)
                yield TrustedPath(path=path, why=trusted.why)


def _record_walk(path: str, snapshot: FileSnapshot) -> None:
    """Records the path, because a plan is valid only while the path leads to the same object."""
    with contextlib.suppress(PolicyError):  # an inaccessible directory: see `_links_and_end`
        snapshot.at(path)
        for link in follow(path).links:
            snapshot.at(link.path)


def _links_and_end(path: str) -> tuple[str, ...]:
    """Each link on the path, and its end. No process outside can reach an object behind an
    inaccessible directory; the core denies such a directory in a workspace.
    """
    try:
        return tuple(resolved.path for resolved in follow(path).resolved_paths)
    except PolicyError:
        return (os.path.realpath(path),)


def _inside(path: str, trees: Iterable[str]) -> bool:
    return any(f"{path}/".startswith(f"{tree.rstrip('/')}/") for tree in trees)
