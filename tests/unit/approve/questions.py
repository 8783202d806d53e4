"""Questions for tests, and both ends of the socket that carries them."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from paddock.approve import messages
from paddock.approve.inbox import SocketInbox
from paddock.approve.questions import AnyQuestion, Caller, HostQuestion, Question, ToolQuestion


def question(**changed: Any) -> Question:
    usual: dict[str, Any] = {
        "id": 7,
        "exe": "/usr/bin/git",
        "chain": ("/usr/bin/git",),
        "argv": ("git", "push"),
        "cwd": "/w",
        "pid": 123,
        "parent": None,
        "rule": "push-asks",
        "source": "paddock.toml:14",
        "reason": None,
        "timeout_s": 300,
    }
    return Question(**{**usual, **changed})


def tool(**changed: Any) -> ToolQuestion:
    usual: dict[str, Any] = {
        "tool": "bash",
        "subject": ("git", "status"),
        "lines": ("git status",),
        "cwd": "/w",
        "rule": "approve-execute",
        "reason": "bash executes",
    }
    return ToolQuestion(**{**usual, **changed})


def host_question(**changed: Any) -> HostQuestion:
    usual: dict[str, Any] = {
        "id": 9,
        "host": "new.example",
        "port": 443,
        "process": Caller(pid=123, exe="/usr/bin/curl"),
        "source": "paddock.toml:3",
        "timeout_s": 300,
    }
    return HostQuestion(**{**usual, **changed})


def asked(one: Question) -> dict[str, Any]:
    """The message that the core sends."""
    fields = {name: getattr(one, name) for name in one.__slots__ if name not in ("id", "parent")}
    parent = one.parent and {"exe": one.parent.exe, "argv": one.parent.argv}
    return {"ask": one.id, "parent": parent, **fields}


class Core:
    """The end of the core."""

    def __init__(self, line: socket.socket) -> None:
        self.line = line
        line.settimeout(60)

    def say(self, message: dict[str, Any]) -> None:
        self.line.send(json.dumps(message).encode())

    def ask(self, *questions: AnyQuestion) -> None:
        for one in questions:
            output = (
                json.dumps(asked(one)).encode() if isinstance(one, Question) else messages.ask(one)
            )
            assert output is not None
            self.line.send(output)

    def withdraw(self, number: int) -> None:
        self.say({"withdrawn": number})

    def received(self) -> Any:
        return json.loads(self.line.recv(1 << 16))

    def received_nothing(self) -> bool:
        self.line.setblocking(False)
        try:
            self.line.recv(1 << 16)
        except BlockingIOError:
            return True
        finally:
            self.line.settimeout(60)
        return False


@contextmanager
def connected() -> Iterator[tuple[Core, SocketInbox]]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        yield Core(ours), SocketInbox(theirs)
