"""Targets outside the sandbox that show whether a command reached them: a process, a socket."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.tester import Tester

VICTIM_SECRET = "PADDOCK_VICTIM=secret-of-the-victim"


@contextmanager
def bystander(tester: Tester) -> Iterator[int]:
    """The pid of a process of the same user outside the sandbox; its environment has a secret."""
    name, value = VICTIM_SECRET.split("=")
    with tester.starting(["sleep", "60"], env={name: value}) as process:
        yield process.pid


def state(pid: int) -> str:
    """The state of a process as one letter. X if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"


def alive(pid: int) -> bool:
    """Whether a process runs. A zombie does not."""
    return state(pid) not in "ZX"


@dataclass(slots=True)
class Listener:
    """A unix socket outside. ``received`` holds the messages that arrived."""

    address: str
    received: list[bytes] = field(default_factory=list)


@contextmanager
def listening(address: str, kind: int = socket.SOCK_STREAM) -> Iterator[Listener]:
    """``address`` begins with NUL for an abstract socket, else it is a path."""
    listener = Listener(address)
    with socket.socket(socket.AF_UNIX, kind) as server:
        server.bind(address)
        if not address.startswith("\0"):
            os.chmod(address, 0o777)
        if kind != socket.SOCK_DGRAM:
            server.listen()
        closing = threading.Event()
        server.settimeout(0.05)
        thread = threading.Thread(target=_hear, args=(server, kind, listener, closing))
        thread.start()
        try:
            yield listener
        finally:
            closing.set()
            thread.join()


def _hear(server: socket.socket, kind: int, listener: Listener, closing: threading.Event) -> None:
    while not closing.is_set():
        try:
            if kind == socket.SOCK_DGRAM:
                listener.received.append(server.recv(64))
            else:
                connection, _ = server.accept()
                with connection:
                    connection.settimeout(60)
                    listener.received.append(connection.recv(64))
        except TimeoutError:
            continue
