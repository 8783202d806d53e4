"""Where runs and the person's approvals server find each other.

``core/src/approve/approvals_server.rs`` is the core's side.

The socket lies with the journal, the one place that no command can read. In the landlock tier a
command that may make unix sockets could connect to it by its name; so whoever asks has to know the
key that lies beside it.
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

MAX_RUNS = 256  # runs at a time
HELLO_S = 5.0


def place(uid: int) -> str:
    return f"/var/tmp/paddock-audit-{uid}/approvals"


class Meeting:
    """Held by the one server of this person. ``met`` is called for each run that comes, in a thread
    of its own.
    """

    def __init__(self, met: Callable[[Inbox, str], None]) -> None:
        self._met = met
        self._place = place(os.getuid())
        for directory in (os.path.dirname(self._place), self._place):
            _private(directory)
        self._lock = _locked(f"{self._place}/lock")
        self._key = secrets.token_hex(32)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._threads: dict[threading.Thread, socket.socket] = {}
        self._guard = threading.Lock()
        path = f"{self._place}/socket"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)  # of a server that is gone: the lock is ours
        _write(f"{self._place}/key", self._key)
        self._listener.bind(path)
        os.chmod(path, 0o600)
        self._listener.listen(64)
        self._accepting = threading.Thread(target=self._accept, name="paddock-meeting", daemon=True)
        self._accepting.start()

    def close(self) -> None:
        """Who waits for an answer sees the end, and is denied."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._accepting.join()
        self._listener.close()
        with self._guard:
            threads = dict(self._threads)
            for line in threads.values():
                with contextlib.suppress(OSError):
                    line.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join()
        for name in ("socket", "key"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f"{self._place}/{name}")
        os.close(self._lock)

    def _accept(self) -> None:
        while True:
            try:
                line, _ = self._listener.accept()
            except OSError:  # shut down
                return
            with self._guard:
                if len(self._threads) >= MAX_RUNS:
                    line.close()
                    continue
                thread = threading.Thread(target=self._talk, args=(line,), daemon=True)
                self._threads[thread] = line
                thread.start()

    def _talk(self, line: socket.socket) -> None:
        try:
            with contextlib.suppress(OSError, CoreError):
                pid, uid = _peer(line)
                line.settimeout(HELLO_S)
                if uid == os.getuid() and self._knows(line.recv(messages.MAX_MESSAGE_BYTES)):
                    line.settimeout(None)
                    self._met(SocketInbox(line), f"process {pid}")
        finally:
            with self._guard:
                self._threads.pop(threading.current_thread(), None)
                line.close()

    def _knows(self, hello: bytes) -> bool:
        return hmac.compare_digest(hello, _hello(self._key))


def knock() -> socket.socket:
    """The line to the server of this person."""
    at = place(os.getuid())
    line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        line.connect(f"{at}/socket")
        if _peer(line)[1] != os.getuid():
            raise HostError(f"{at}/socket belongs to another user")
        with open(f"{at}/key", encoding="ascii") as file:
            line.send(_hello(file.read()))
    except BaseException:
        line.close()
        raise
    return line


def _hello(key: str) -> bytes:
    return canonical({"key": key}).encode("ascii")


def _peer(line: socket.socket) -> tuple[int, int]:
    pid, uid, _ = struct.unpack(
        "3i", line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    )
    return pid, uid


def _private(directory: str) -> None:
    """/var/tmp is everybody's: what somebody else made there is not ours."""
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
