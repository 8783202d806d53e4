"""Paths of a workspace that are trusted outside although their names do not show it: targets of
protected symlinks, and paths in the configuration of a repository. A live run finds them by its
scan. For a copy they are searched at its review, in the files of the host.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from paddock.core import process as core
from paddock.core.canonical import canonical
from paddock.errors import PolicyError
from paddock.host.git.file_snapshot import FileSnapshot
from paddock.host.git.repository import Repository, repository_of
from paddock.host.git.trusted_paths import trusted_by
from paddock.policy.git_layout import GIT, make_one
from paddock.policy.protected import protected
from paddock.text.path_walk import follow
from paddock.workspace.protected_names import Protection


def trusted_paths_in(workspace: str, is_protected: Protection, home: str) -> Iterator[str]:
    """Relative to the workspace. A path may occur more than once."""
    workspace = os.path.realpath(workspace)
    shut: list[OSError] = []
    yield from _of_home(workspace, home)
    for trust in trusted_by(None, workspace, home, FileSnapshot(), environ=os.environ):
        yield from _below(workspace, trust.path)
    for at, directories, files in os.walk(workspace, onerror=shut.append):
        repository = _repository(at, {*directories, *files})
        if repository is not None:
            for trust in trusted_by(repository, at, home, FileSnapshot()):
                yield from _below(workspace, trust.path)
        for name in (*directories, *files):
            link = os.path.join(at, name)
            if os.path.islink(link) and is_protected(
                os.path.relpath(link, workspace), directory=False, link=True
            ):
                yield from _below(workspace, link)
    for error in shut:  # the content of such a directory is unknown: it is protected as a whole
        if not isinstance(error, FileNotFoundError) and error.filename:
            yield from _below(workspace, os.fspath(error.filename))


def _repository(at: str, names: set[str]) -> Repository | None:
    if GIT in names:
        return repository_of(at, FileSnapshot())
    if make_one(names.__contains__):
        return Repository(top=at, git_dir=at, common_dir=at, elsewhere=False)
    return None


def _of_home(workspace: str, home: str) -> Iterator[str]:
    """Targets of names in the home that programs outside obey, and the links in such directories
    (``core/src/files/linked_dirs.rs`` lists them).
    """
    names = [f"{home}/{name}" for group in protected().groups for name in group.home]
    names += [path for _, path in protected().named_by(os.environ, home, workspace)]
    names = [name for name in names if "*" not in name]
    for name in (*names, *core.ask("links", question=canonical(sorted(set(names))))):
        yield from _below(workspace, name)


def _below(workspace: str, path: str) -> Iterator[str]:
    try:
        led = [resolved.path for resolved in follow(path).resolved_paths]
    except PolicyError:  # an inaccessible directory, or a link to itself
        led = [os.path.realpath(path)]
    for one in (path, *led):
        if one.startswith(f"{workspace}/"):
            yield one[len(workspace) + 1 :]
