"""Measuring: the core tries, Python gives the answers their names."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from paddock import core
from paddock.errors import CoreError
from paddock.host.model import Host, Probe, Usable


def measure(*, uid: int, user: str, home: str, cwd: str, reached: tuple[str, ...], journals: tuple[str, ...]) -> Host:
    facts = core.ask("host")
    try:
        return Host(
            kernel=str(facts["kernel"]),
            arch=str(facts["arch"]),
            landlock_abi=int(facts["landlock_abi"]),
            landlock_errno=facts["landlock_errno"],
            seccomp=bool(facts["seccomp"]),
            user_notification=bool(facts["user_notification"]),
            filtered=bool(facts["filtered"]),
            no_new_privs=bool(facts["no_new_privs"]),
            namespaces=_usable(facts["namespaces"]),
            overlay=_usable(facts["overlay"]),
            uid=uid,
            user=user,
            home=home,
            cwd=cwd,
            reached=reached,
            journals=journals,
            own_paths=own_paths(home),
        )
    except (KeyError, TypeError) as error:
        raise _other_half(error) from error


def _usable(tried: dict[str, Any]) -> Usable:
    return Usable(usable=bool(tried["usable"]), errno=tried["errno"], step=tried.get("step"))


def try_everything() -> tuple[Probe, ...]:
    """Every mechanism in a child of the core, each with its control. Takes a moment; for ``paddock doctor``."""
    try:
        return tuple(
            Probe(mechanism=tried["mechanism"], held=tried["held"], detail=tried["detail"], needs=tried["needs"])
            for tried in core.ask("probe")
        )
    except (KeyError, TypeError) as error:
        raise _other_half(error) from error


def own_paths(home: str) -> tuple[str, ...]:
    """Configuration, state, the package and the core; in a virtual environment the whole environment, because
    Paddock's interpreter is started from there, outside the fence, next time."""
    package = Path(__file__).resolve().parent.parent
    paths = {f"{home}/.config/paddock", f"{home}/.local/state/paddock", "/etc/paddock", str(package)}
    paths.add(str(Path(core.program()).resolve()))
    if sys.prefix != sys.base_prefix:
        paths.add(str(Path(sys.prefix).resolve()))
    return tuple(sorted(paths))


def _other_half(error: Exception) -> CoreError:
    return CoreError(f"the answer of paddock-core is not understood: {error!r}", hint="reinstall paddock")
