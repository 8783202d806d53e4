"""paddock observer: the core starts it for ``paddock run --observe``. Not for people."""

from __future__ import annotations

import os
import socket

from paddock.cli.options import Parser
from paddock.explain.file_answer import judge_for
from paddock.explain.observer import serve
from paddock.explain.read_plan import plan_of


def execute(arguments: list[str]) -> int:
    parser = Parser("observer", "Judge the calls that paddock-core observes.")
    parser.add_argument("--socket", type=int, required=True, metavar="FD")
    parser.add_argument("--plan-fd", type=int, required=True, metavar="FD")
    options = parser.parse_args(arguments)
    plan = plan_of(os.pread(options.plan_fd, os.fstat(options.plan_fd).st_size, 0))
    os.close(options.plan_fd)
    with socket.socket(fileno=options.socket) as line:
        serve(line, judge_for(plan), plan.user.home)
    return 0
