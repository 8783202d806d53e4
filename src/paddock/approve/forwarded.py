"""Approvers in other processes: the user's approvals server, or a person at the terminal of this
process.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys

from paddock.approve import messages
from paddock.approve.inbox import Inbox
from paddock.approve.model import Asked, Verdict
from paddock.approve.server_socket import knock

_PASSED = ("TERM", "LANG", "LC_ALL", "LC_CTYPE", "LC_MESSAGES")  # terminal type and language


class Server:
    """Sends questions to ``paddock approvals serve``. They are denied if no server runs, or when it
    ends.
    """

    def serve(self, inbox: Inbox) -> None:
        with knock() as line:
            forward(inbox, line)


class AtTerminal:
    """Asks a person at the terminal of this process. A separate process asks, because it must be in
    the foreground of the terminal and must ignore the terminal's signals (terminal.py). Without a
    terminal every question is denied.
    """

    def serve(self, inbox: Inbox) -> None:
        environment = {name: os.environ[name] for name in _PASSED if name in os.environ}
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        words = [
            sys.executable,
            "-E",
            "-P",
            "-s",
            "-m",
            "paddock",
            "companion",
            "--socket",
            str(theirs.fileno()),
        ]
        with ours, theirs, open("/dev/tty", "r+b", buffering=0) as tty:
            process = subprocess.Popen(
                words, stdin=tty, stdout=tty, stderr=tty, pass_fds=[theirs.fileno()],
                process_group=0, cwd="/",
                env=environment,
            )  # fmt: skip
            theirs.close()
            try:
                forward(inbox, ours)
            finally:
                ours.close()  # the approver process gives the terminal back and ends
                process.wait()


def forward(inbox: Inbox, line: socket.socket) -> None:
    """Sends every question to the other end and every answer back, until one end closes."""
    sent: dict[int, Asked] = {}

    def came(question: Asked) -> None:
        said = messages.ask(question)
        if said is None:
            inbox.answer(question, Verdict.DENY, "too long to be shown")
            return
        sent[question.id] = question
        line.send(said)

    while not inbox.closed:
        answered = inbox.wait(line.fileno())
        inbox.read(came)
        for number in [number for number, question in sent.items() if not inbox.is_open(question)]:
            del sent[number]
            line.send(messages.withdraw(number))
        if answered:
            datagram = line.recv(messages.MAX_MESSAGE_BYTES)
            if not datagram:
                return
            answer = messages.read_answer(datagram)
            question = sent.pop(answer.id, None)
            if question is not None:
                inbox.answer(question, answer.verdict, answer.by)
