"""paddock http: started by the core where there are routes or inspected hosts. Not for people.

The command may be waiting for its first word, so what that does not need is imported after it.
"""

from __future__ import annotations

import ctypes
import os
import resource
import socket
from collections.abc import Callable
from functools import partial

from paddock.core.canonical import canonical
from paddock.errors import EXIT_PADDOCK, Bug, PaddockError, UsageError
from paddock.explain.read_plan import http_of
from paddock.policy.trust.writable_history import WritableHistory

_PR_SET_DUMPABLE = 4
_DESCRIPTORS = ("--line", "--relay", "--plan-fd")


def execute(arguments: list[str]) -> int:
    try:
        fds = [
            int(fd)
            for name, fd in zip(arguments[::2], arguments[1::2], strict=True)
            if name in _DESCRIPTORS
        ]
        line_fd, relay_fd, plan_fd = fds
    except ValueError:
        raise UsageError(
            f"paddock http {' FD '.join(_DESCRIPTORS)} FD, by paddock-core alone"
        ) from None
    _keep_secrets()
    with socket.socket(fileno=line_fd) as line, socket.socket(fileno=relay_fd) as relay:
        # A command that prints a secret has no use for them.
        for end in (line, relay):
            end.set_inheritable(False)
        try:
            serve = _ready(line, plan_fd)
        except Exception as error:
            known = error if isinstance(error, PaddockError) else Bug(f"the HTTP helper: {error!r}")
            line.send(canonical({"error": known.message, "hint": known.hint}).encode("ascii"))
            return EXIT_PADDOCK
        serve(line, relay)
    return 0


def _keep_secrets() -> None:
    """From other processes of the same user: no memory to be read, no core dump."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
        raise Bug(f"prctl: {os.strerror(ctypes.get_errno())}")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _ready(line: socket.socket, plan_fd: int) -> Callable[[socket.socket, socket.socket], None]:
    """Reads the secrets, and says that it did."""
    from paddock.http.credentials import injections, require_trusted
    from paddock.http.route_table import Settings

    http, reached = http_of(os.pread(plan_fd, os.fstat(plan_fd).st_size, 0))
    settings = Settings.of(http)
    reach = WritableHistory(trees=reached)
    require_trusted(os.environ, reach)
    secrets = injections(settings.routes, os.environ, reach, plan_fd)
    ready = canonical({"error": None, "hint": None}).encode("ascii")
    authority = None
    if hosts := settings.inspected_hosts():
        from paddock.http.inspection import Authority

        authority = Authority(hosts)
        bundle = os.memfd_create("bundle", os.MFD_CLOEXEC)
        with os.fdopen(bundle, "wb") as file:
            file.write(authority.bundle())
            file.flush()
            socket.send_fds(line, [ready], [bundle])
    else:
        line.send(ready)
    from paddock.http.server import serve

    return partial(serve, settings=settings, injections=secrets, authority=authority)
