"""Programs that an executor starts outside of the sandbox: the client of a container engine, ssh.

An earlier session may have put a program into a directory of PATH. So only a program that no
sandboxed command could write is started, and it gets an environment without such paths.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from paddock.executors.interface import Failure, NotStarted
from paddock.policy import Origin
from paddock.policy.trust import host_commands


@dataclass(frozen=True, slots=True, kw_only=True)
class HostProgram:
    """``refusal``: why it must not be started, or that it does not exist."""

    path: str
    environ: Mapping[str, str]
    refusal: NotStarted | None = None

    def require_startable(self) -> None:
        if self.refusal is not None:
            raise self.refusal


def find_host_program(names: Sequence[str], passed: Sequence[str]) -> HostProgram:
    """The first of these programs, with the variables ``passed``."""
    history = Origin.of_process().writable_history
    refusal = NotStarted(f"{names[0]}: no such program", failure=Failure.NOT_FOUND)
    for name in names:
        try:
            found = host_commands.command([name], os.environ, history)
        except host_commands.Planted as planted:
            refusal = NotStarted(
                f"{name} is not started: a sandboxed command could have written {planted}",
                failure=Failure.DENIED,
            )
        except OSError:
            continue
        else:
            environ = {name: found.environ[name] for name in passed if name in found.environ}
            return HostProgram(path=found.argv[0], environ=environ)
    return HostProgram(path=names[0], environ={}, refusal=refusal)
