"""Paths of a workspace that are obeyed outside though their names say nothing: what a protected
name leads to, if it is a symlink, and what the configuration of a repository names. A live run
finds them by its survey; for a copy they are looked for when it is reviewed, in what the host has.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from paddock.core import process as core
from paddock.core.canonical import canonical
from paddock.errors import PolicyError
from paddock.host.git.file_snapshot import Looked
from paddock.host.git.repository import Repository, repository_of
from paddock.host.git.trusted_paths import trusted_by
from paddock.policy.git_layout import GIT, make_one
from paddock.policy.protected import protected
from paddock.text.path_walk import follow
from paddock.workspace.protection import Protection


def obeyed_in(workspace: str, is_protected: Protection, home: str) -> Iterator[str]:
    """Relative to the workspace. May name one more than once."""
    workspace = os.path.realpath(workspace)
    shut: list[OSError] = []
    yield from _of_home(workspace, home)
    for trust in trusted_by(None, workspace, home, Looked(), environ=os.environ):
        yield from _below(workspace, trust.path)
    for at, directories, files in os.walk(workspace, onerror=shut.append):
        repository = _repository(at, {*directories, *files})
        if repository is not None:
            for trust in trusted_by(repository, at, home, Looked()):
                yield from _below(workspace, trust.path)
        for name in (*directories, *files):
            link = os.path.join(at, name)
            if os.path.islink(link) and is_protected(
                os.path.relpath(link, workspace), directory=False, link=True
            ):
                yield from _below(workspace, link)
    for error in shut:  # what lies in such a directory can not be known: it is closed as a whole
        if not isinstance(error, FileNotFoundError) and error.filename:
            yield from _below(workspace, os.fspath(error.filename))


def _repository(at: str, names: set[str]) -> Repository | None:
    if GIT in names:
        return repository_of(at, Looked())
    if make_one(names.__contains__):
        return Repository(top=at, git_dir=at, common_dir=at, elsewhere=False)
    return None


def _of_home(workspace: str, home: str) -> Iterator[str]:
    """Where the names of the home directory lead that programs outside obey, and the links in those
    that are directories (``core/src/files/linked_dirs.rs`` lists them).
    """
    names = [f"{home}/{name}" for group in protected().groups for name in group.home]
    names += [path for _, path in protected().named_by(os.environ, home, workspace)]
    names = [name for name in names if "*" not in name]
    for name in (*names, *core.ask("links", question=canonical(sorted(set(names))))):
        yield from _below(workspace, name)


def _below(workspace: str, path: str) -> Iterator[str]:
    try:
        led = [place.path for place in follow(path).places]
    except PolicyError:  # a directory that is shut, a link that leads to itself
        led = [os.path.realpath(path)]
    for one in (path, *led):
        if one.startswith(f"{workspace}/"):
            yield one[len(workspace) + 1 :]
