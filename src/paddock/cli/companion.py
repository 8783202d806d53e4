"""paddock companion: the approver process. The core starts it at the first question if there is a
terminal. Not for people.
"""

from __future__ import annotations

import os
import socket

from paddock.approve.inbox import SocketInbox
from paddock.approve.terminal_approver import Terminal
from paddock.cli.options import Parser
from paddock.policy import Origin


def execute(arguments: list[str]) -> int:
    parser = Parser("companion", "Answer the questions of paddock-core at the terminal.")
    parser.add_argument("--socket", type=int, required=True, metavar="FD")
    options = parser.parse_args(arguments)
    core = os.getppid()
    with socket.socket(fileno=options.socket) as line:
        Terminal(origin=Origin.of_process(), core=core).serve(SocketInbox(line))
    return 0
