"""Paths of a workspace that are obeyed outside though their names say nothing: what a protected name leads to, if it is
a symlink, and what the configuration of a repository names. A live run finds them by its survey; for a copy they are
looked for when it is reviewed, in what the host has."""

from __future__ import annotations

import os
from collections.abc import Iterator

from paddock.changes.protection import Protection
from paddock.git.looked import Looked
from paddock.git.repository import repository_of
from paddock.git.trusts import trusted_by


def obeyed_in(workspace: str, is_protected: Protection, home: str) -> Iterator[str]:
    """Relative to the workspace. May name one more than once."""
    workspace = os.path.realpath(workspace)
    for at, directories, files in os.walk(workspace):
        if ".git" in directories or ".git" in files:
            looked = Looked()
            for trust in trusted_by(repository_of(at, looked), at, home, looked):
                yield from _below(workspace, trust.path)
        with os.scandir(at) as entries:
            links = [entry.path for entry in entries if entry.is_symlink()]
        for link in links:
            if is_protected(os.path.relpath(link, workspace), directory=False, link=True):
                yield from _below(workspace, os.path.realpath(link))


def _below(workspace: str, path: str) -> Iterator[str]:
    for one in (path, os.path.realpath(path)):
        if one.startswith(f"{workspace}/"):
            yield one[len(workspace) + 1 :]
