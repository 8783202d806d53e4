"""Measures the host: the core tries the mechanisms, and Python names the results."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

from paddock.core import process as core
from paddock.errors import CoreError
from paddock.host.closed_namespaces import closed_by
from paddock.host.facts import Host, Probe, Usable
from paddock.host.installation import missing_entries, own_paths, search_dirs
from paddock.text.path_walk import Tree


def measure(
    *,
    uid: int,
    user: str,
    home: str,
    cwd: str,
    previously_writable: tuple[Tree, ...],
    journals: tuple[str, ...],
    search_path: str,
) -> Host:
    facts = core.ask("host")
    try:
        return Host(
            kernel=str(facts["kernel"]),
            arch=str(facts["arch"]),
            landlock_abi=int(facts["landlock_abi"]),
            landlock_errno=facts["landlock_errno"],
            seccomp=bool(facts["seccomp"]),
            user_notification=bool(facts["user_notification"]),
            listener=bool(facts["listener"]),
            filtered=bool(facts["filtered"]),
            no_new_privs=bool(facts["no_new_privs"]),
            namespaces=_namespaces(facts),
            overlay=_usable(facts["overlay"]),
            uid=uid,
            user=user,
            home=home,
            cwd=cwd,
            previously_writable=previously_writable,
            journals=journals,
            own_paths=own_paths(home, search_path, cwd),
            missing_entries=missing_entries(search_path, cwd),
            program_dirs=tuple(map(os.path.realpath, search_dirs(search_path, cwd))),
        )
    except (KeyError, TypeError) as error:
        raise _other_half(error) from error


def _usable(tried: dict[str, Any]) -> Usable:
    return Usable(usable=bool(tried["usable"]), errno=tried["errno"], step=tried.get("step"))


def _namespaces(facts: dict[str, Any]) -> Usable:
    tried = _usable(facts["namespaces"])
    if tried.usable:
        return tried
    return replace(tried, closed_by=closed_by(filtered=bool(facts["filtered"])))


def try_everything() -> tuple[Probe, ...]:
    """Tries every mechanism in a child of the core, each with its control. It is slow; for
    ``paddock doctor``.
    """
    try:
        return tuple(
            Probe(
                mechanism=tried["mechanism"],
                held=tried["held"],
                detail=tried["detail"],
                needs=tried["needs"],
            )
            for tried in core.ask("probe")
        )
    except (KeyError, TypeError) as error:
        raise _other_half(error) from error


def _other_half(error: Exception) -> CoreError:
    return CoreError(f"paddock-core sent an invalid answer: {error!r}", hint="reinstall paddock")
