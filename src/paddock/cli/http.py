"""paddock http: the HTTP helper. The core starts it if there are routes or inspected hosts. Not for
people.

The command may wait until the helper is ready, so modules that are not needed for that are imported
later.
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
        sock_fd, relay_fd, plan_fd = fds
    except ValueError:
        raise UsageError(
            f"paddock http {' FD '.join(_DESCRIPTORS)} FD, by paddock-core alone"
        ) from None
    _keep_secrets()
    with socket.socket(fileno=sock_fd) as sock, socket.socket(fileno=relay_fd) as relay:
        # A command that prints a secret does not need these modules.
        for end in (sock, relay):
            end.set_inheritable(False)
        try:
            serve = _ready(sock, plan_fd)
        except Exception as error:
            known = error if isinstance(error, PaddockError) else Bug(f"the HTTP helper: {error!r}")
            sock.send(canonical({"error": known.message, "hint": known.hint}).encode("ascii"))
            return EXIT_PADDOCK
        serve(sock, relay)
    return 0


def _keep_secrets() -> None:
    """Protects secrets from other processes of the same user: no readable memory, no core dump."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
        raise Bug(f"prctl: {os.strerror(ctypes.get_errno())}")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _ready(sock: socket.socket, plan_fd: int) -> Callable[[socket.socket, socket.socket], None]:
    """Reads the secrets and reports that it is ready."""
    from paddock.http.credentials import injections, require_trusted
    from paddock.http.route_table import Settings

    http, writable_trees = http_of(os.pread(plan_fd, os.fstat(plan_fd).st_size, 0))
    settings = Settings.of(http)
    writable_history = WritableHistory(trees=writable_trees)
    require_trusted(os.environ, writable_history)
    secrets = injections(settings.routes, os.environ, writable_history, plan_fd)
    ready = canonical({"error": None, "hint": None}).encode("ascii")
    authority = None
    if hosts := settings.inspected_hosts():
        from paddock.http.inspection import Authority

        authority = Authority(hosts)
        bundle = os.memfd_create("bundle", os.MFD_CLOEXEC)
        with os.fdopen(bundle, "wb") as file:
            file.write(authority.bundle())
            file.flush()
            socket.send_fds(sock, [ready], [bundle])
    else:
        sock.send(ready)
    from paddock.http.server import serve

    return partial(serve, settings=settings, injections=secrets, authority=authority)
