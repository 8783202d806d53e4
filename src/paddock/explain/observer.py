"""Turns the calls that the core observed into denials of the sandbox, with the option that would
allow each.

The core sees calls before they are done and does not learn their result. The reasoning of ``paddock
why`` gives the decision of the sandbox. An operation that also fails without the sandbox (no such
file) is not reported as denied. Paths come from the command: they are examined, never opened.
"""

from __future__ import annotations

import json
import os
import shlex
import socket
from collections.abc import Iterator
from dataclasses import asdict

from paddock.core.canonical import canonical
from paddock.errors import CoreError
from paddock.explain.file_rules import Judge, Judgement, Operation
from paddock.frozen import dataclass
from paddock.plan.path_containment import within
from paddock.policy.glob import written

MAX_MESSAGE_BYTES = 64 * 1024

# Names of descriptors and processes mean other objects for this process than for the caller.
_ITS_OWN = ("/proc/", "/dev/fd/", "/dev/std")
_FLAG = {Operation.READ: "--read", Operation.EXEC: "--exec"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedCall:
    """``create``: an open that may create the file."""

    op: str
    create: bool
    path: str
    program: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedDenial:
    """``allow``: the option that would have allowed it; None: there is none."""

    op: str
    path: str
    program: str
    reason: str
    allow: str | None


def serve(sock: socket.socket, judge: Judge, home: str) -> None:
    """Serves until the core closes the socket."""
    judged = 0
    while datagram := sock.recv(MAX_MESSAGE_BYTES):
        judged += 1
        refused = refusal(judge, read(datagram), home)
        if refused is not None:
            sock.send(canonical({"refused": asdict(refused)}).encode("ascii"))
    sock.send(canonical({"judged": judged}).encode("ascii"))


def read(datagram: bytes) -> ObservedCall:
    try:
        (fields,) = json.loads(datagram).values()
        # mkdir(2) accepts "new/"; the name without the slash is meant.
        return ObservedCall(**{**fields, "path": fields["path"].rstrip("/") or "/"})
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise CoreError(
            f"paddock-core sent an invalid message: {error!r}", hint="reinstall paddock"
        ) from error


def refusal(judge: Judge, observed: ObservedCall, home: str) -> ObservedDenial | None:
    if observed.path.startswith(_ITS_OWN):
        return None
    for operation in _operations(observed):
        judgement = judge(observed.path, operation)
        # Init reports the names that it refuses.
        if not judgement.allowed and not judgement.later and not judgement.by_init:
            return ObservedDenial(
                op=operation.value,
                path=observed.path,
                program=observed.program,
                reason=judgement.reason,
                allow=_allowing(judgement, operation, home),
            )
    return None


def _operations(observed: ObservedCall) -> Iterator[Operation]:
    """The operations that the call needs; none if it also fails without the sandbox."""
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
        case "change":
            yield from (Operation.CHANGE,) if _may_change(observed.path) else ()
        case other:
            yield from (Operation(other),) if os.path.exists(observed.path) else ()


def _may_change(path: str) -> bool:
    """Whether the user may change the metadata without the sandbox: as the owner, or the times and
    attributes of a file that the user may write.
    """
    try:
        owner = os.stat(path).st_uid
    except OSError:
        return False
    return owner == os.geteuid() or os.access(path, os.W_OK)


def _allowing(judgement: Judgement, operation: Operation, home: str) -> str | None:
    """Never suggests an option that opens the whole home or more."""
    if judgement.closed:
        return None
    path = judgement.path
    if operation.names or (operation.writes and not os.path.lexists(path)):
        path = os.path.dirname(path)
    is_directory = os.path.isdir(path)
    pattern = None if is_directory and within(home, path) else written(path)
    if pattern is None:
        return None
    return (
        f"{_FLAG.get(operation, '--allow')} "
        f"{shlex.quote(f'{pattern}/**' if is_directory else pattern)}"
    )
