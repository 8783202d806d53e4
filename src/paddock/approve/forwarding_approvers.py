"""Approvers in other processes: the user's approvals server, or a person at the terminal of this
process.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys

from paddock.approve import messages
from paddock.approve.approvals_socket import connect_to_server
from paddock.approve.inbox import Inbox
from paddock.approve.questions import AnyQuestion, Verdict

_PASSED = ("TERM", "LANG", "LC_ALL", "LC_CTYPE", "LC_MESSAGES")  # terminal type and language


class Server:
    """Sends questions to ``paddock approvals serve``. They are denied if no server runs, or when it
    ends.
    """

    def serve(self, inbox: Inbox) -> None:
        with connect_to_server() as sock:
            forward(inbox, sock)


class AtTerminal:
    """Asks a person at the terminal of this process. A separate process asks, because it must be in
    the foreground of the terminal and must ignore the terminal's signals (terminal_approver.py).
    Without a terminal every question is denied.
    """

    def serve(self, inbox: Inbox) -> None:
        environment = {name: os.environ[name] for name in _PASSED if name in os.environ}
        ours, their_sock = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        words = [
            sys.executable,
            "-E",
            "-P",
            "-s",
            "-m",
            "paddock",
            "companion",
            "--socket",
            str(their_sock.fileno()),
        ]
        with ours, their_sock, open("/dev/tty", "r+b", buffering=0) as tty:
            process = subprocess.Popen(
                words, stdin=tty, stdout=tty, stderr=tty, pass_fds=[their_sock.fileno()],
                process_group=0, cwd="/",
                env=environment,
            )  # fmt: skip
            their_sock.close()
            try:
                forward(inbox, ours)
            finally:
                ours.close()  # the approver process gives the terminal back and ends
                process.wait()


def forward(inbox: Inbox, sock: socket.socket) -> None:
    """Sends every question to the other end and every answer back, until one end closes."""
    sent: dict[int, AnyQuestion] = {}

    def came(question: AnyQuestion) -> None:
        message = messages.ask(question)
        if message is None:
            inbox.answer(question, Verdict.DENY, "too long to be shown")
            return
        sent[question.id] = question
        sock.send(message)

    while not inbox.closed:
        answered = inbox.wait(sock.fileno())
        inbox.read(came)
        for number in [number for number, question in sent.items() if not inbox.is_open(question)]:
            del sent[number]
            sock.send(messages.withdraw(number))
        if answered:
            datagram = sock.recv(messages.MAX_MESSAGE_BYTES)
            if not datagram:
                return
            answer = messages.read_answer(datagram)
            question = sent.pop(answer.id, None)
            if question is not None:
                inbox.answer(question, answer.verdict, answer.by)
