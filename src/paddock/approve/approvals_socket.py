"""The socket by which runs reach the user's approvals server.
``core/src/approve/approvals_server.rs`` is the core's side.

The socket is next to the journal, because no command can read that directory. In the landlock tier
a command that may create unix sockets could connect to it by name. So each client must send the key
that is stored beside the socket.
"""

from __future__ import annotations

import contextlib
import fcntl
import hmac
import os
import secrets
import socket
import stat
import struct
import threading
from collections.abc import Callable

from paddock.approve import messages
from paddock.approve.inbox import Inbox, SocketInbox
from paddock.core.canonical import canonical
from paddock.errors import CoreError, HostError

MAX_RUNS = 256  # runs at the same time
HELLO_TIMEOUT_S = 5.0


def server_dir(uid: int) -> str:
    return f"/var/tmp/paddock-audit-{uid}/approvals"


class ServerSocket:
    """The listening socket; each user has at most one server. ``on_run`` is called for each run
    that connects, in its own thread.
    """

    def __init__(self, on_run: Callable[[Inbox, str], None]) -> None:
        self._on_run = on_run
        self._dir = server_dir(os.getuid())
        for directory in (os.path.dirname(self._dir), self._dir):
            _private(directory)
        self._lock = _locked(f"{self._dir}/lock")
        self._key = secrets.token_hex(32)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._threads: dict[threading.Thread, socket.socket] = {}
        self._guard = threading.Lock()
        path = f"{self._dir}/socket"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)  # left by a server that has ended: this process holds the lock
        _write(f"{self._dir}/key", self._key)
        self._listener.bind(path)
        os.chmod(path, 0o600)
        self._listener.listen(64)
        self._accepting = threading.Thread(target=self._accept, name="paddock-meeting", daemon=True)
        self._accepting.start()

    def close(self) -> None:
        """Clients that wait for an answer see the end of the connection and deny."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._accepting.join()
        self._listener.close()
        with self._guard:
            threads = dict(self._threads)
            for sock in threads.values():
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join()
        for name in ("socket", "key"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f"{self._dir}/{name}")
        os.close(self._lock)

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:  # the socket was shut down
                return
            with self._guard:
                if len(self._threads) >= MAX_RUNS:
                    sock.close()
                    continue
                thread = threading.Thread(target=self._talk, args=(sock,), daemon=True)
                self._threads[thread] = sock
                thread.start()

    def _talk(self, sock: socket.socket) -> None:
        try:
            with contextlib.suppress(OSError, CoreError):
                pid, uid = _peer(sock)
                sock.settimeout(HELLO_TIMEOUT_S)
                if uid == os.getuid() and self._knows(sock.recv(messages.MAX_MESSAGE_BYTES)):
                    sock.settimeout(None)
                    self._on_run(SocketInbox(sock), f"process {pid}")
        finally:
            with self._guard:
                self._threads.pop(threading.current_thread(), None)
                sock.close()

    def _knows(self, hello: bytes) -> bool:
        return hmac.compare_digest(hello, _hello(self._key))


def connect_to_server() -> socket.socket:
    """Connects to the approvals server of this user."""
    at = server_dir(os.getuid())
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        sock.connect(f"{at}/socket")
        if _peer(sock)[1] != os.getuid():
            raise HostError(f"{at}/socket belongs to another user")
        with open(f"{at}/key", encoding="ascii") as file:
            sock.send(_hello(file.read()))
    except BaseException:
        sock.close()
        raise
    return sock


def _hello(key: str) -> bytes:
    return canonical({"key": key}).encode("ascii")


def _peer(sock: socket.socket) -> tuple[int, int]:
    pid, uid, _ = struct.unpack(
        "3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    )
    return pid, uid


def _private(directory: str) -> None:
    """/var/tmp is writable by all users: a directory that another user made there is refused."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(directory, 0o700)
    facts = os.lstat(directory)
    if (
        not stat.S_ISDIR(facts.st_mode)
        or facts.st_uid != os.getuid()
        or stat.S_IMODE(facts.st_mode) != 0o700
    ):
        raise HostError(f"{directory} is not your own directory with mode 0700")


def _locked(path: str) -> int:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise HostError("your approvals server is already running") from None
    return fd


def _write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(fd, "w", encoding="ascii") as file:
        file.write(text)
