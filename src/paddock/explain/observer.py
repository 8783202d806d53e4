"""What the core observed → what the fence refused of it, and what would have allowed it.

The core sees calls on their way and never learns what became of them; the reasoning behind
``paddock why`` says what the fence answers. An act that fails without the fence as well (no such
file) is not refused by it. Paths come from the command: they are looked at, never opened.
"""

from __future__ import annotations

import json
import os
import shlex
import socket
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from paddock.core.canonical import canonical
from paddock.errors import CoreError
from paddock.explain.file_rules import Judge, Judgement, Operation
from paddock.plan.paths import within
from paddock.policy.glob import written

MAX_MESSAGE_BYTES = 64 * 1024

# Names of descriptors and processes: for us they are others than for the caller.
_ITS_OWN = ("/proc/", "/dev/fd/", "/dev/std")
_FLAG = {Operation.READ: "--read", Operation.EXEC: "--exec"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """``create``: an open that may make the file."""

    op: str
    create: bool
    path: str
    program: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """``allow``: the option that would have allowed it; None: there is none."""

    op: str
    path: str
    program: str
    reason: str
    allow: str | None


def serve(line: socket.socket, judge: Judge, home: str) -> None:
    """Until the core has no more to tell."""
    judged = 0
    while datagram := line.recv(MAX_MESSAGE_BYTES):
        judged += 1
        refused = refusal(judge, read(datagram), home)
        if refused is not None:
            line.send(canonical({"refused": asdict(refused)}).encode("ascii"))
    line.send(canonical({"judged": judged}).encode("ascii"))


def read(datagram: bytes) -> Observed:
    try:
        (told,) = json.loads(datagram).values()
        # mkdir(2) takes "new/"; what is meant is the name before.
        return Observed(**{**told, "path": told["path"].rstrip("/") or "/"})
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise CoreError(
            f"paddock-core sent an invalid message: {error!r}", hint="reinstall paddock"
        ) from error


def refusal(judge: Judge, observed: Observed, home: str) -> Refused | None:
    if observed.path.startswith(_ITS_OWN):
        return None
    for operation in _operations(observed):
        judgement = judge(observed.path, operation)
        if not judgement.allowed and not judgement.later:
            return Refused(
                op=operation.value,
                path=observed.path,
                program=observed.program,
                reason=judgement.reason,
                allow=_allowing(judgement, operation, home),
            )
    return None


def _operations(observed: Observed) -> Iterator[Operation]:
    """What the act takes; nothing, if it fails without the fence too."""
    there = os.path.lexists(observed.path)
    match observed.op:
        case "read" | "write" | "update" if observed.create and not os.path.exists(observed.path):
            if os.path.isdir(os.path.dirname(os.path.realpath(observed.path))):
                yield Operation.WRITE
        case "update":
            yield from (Operation.READ, Operation.WRITE) if os.path.exists(observed.path) else ()
        case "replace":
            yield Operation.REMOVE if there else Operation.MAKE
        case "make":
            if os.path.isdir(os.path.dirname(observed.path)):
                yield Operation.MAKE
        case "remove":
            yield from (Operation.REMOVE,) if there else ()
        case other:
            yield from (Operation(other),) if os.path.exists(observed.path) else ()


def _allowing(judgement: Judgement, operation: Operation, home: str) -> str | None:
    """Nothing that would open all of the home, or more: nobody should be led to that."""
    if judgement.closed:
        return None
    path = judgement.path
    if operation.names or (operation.writes and not os.path.lexists(path)):
        path = os.path.dirname(path)
    is_directory = os.path.isdir(path)
    pattern = None if is_directory and within(home, path) else written(path)
    if pattern is None:
        return None
    return f"{_FLAG.get(operation, '--allow')} {shlex.quote(f'{pattern}/**' if is_directory else pattern)}"
