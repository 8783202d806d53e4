"""paddock approvals serve"""

from __future__ import annotations

import asyncio
import signal
import sys

from paddock.cli.options import Parser
from paddock.cli.terminal_output import say
from paddock.errors import HostError
from paddock.policy import Origin


def execute(arguments: list[str]) -> int:
    parser = Parser("approvals", "Answer the questions of all your runs in the browser.")
    parser.add_argument("act", choices=("serve",))
    parser.add_argument(
        "--port",
        type=int,
        default=0,
        metavar="N",
        help="listen on this port of 127.0.0.1 (default: a free port)",
    )
    options = parser.parse_args(arguments)
    if not 0 <= options.port <= 65535:
        parser.error(f"--port {options.port}: not a number from 0 to 65535")
    return asyncio.run(_serve(options.port))


async def _serve(port: int) -> int:
    from paddock.approve.approvals_socket import ServerSocket
    from paddock.approve.server_queue import Queue
    from paddock.approve.web_approver import Web

    over = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, over.set)
    queue = Queue()
    web = Web(queue, Origin.of_process())
    try:
        address = await web.open(port)
    except OSError as error:
        raise HostError(f"cannot listen on port {port}: {error.strerror}") from None
    try:
        server_socket = ServerSocket(lambda inbox, asker: queue.serve(inbox, asker=asker))
        try:
            say(address)
            say(
                "Everyone who knows this address can answer. Runs without a terminal ask here; with"
            )
            say(
                "PADDOCK_APPROVER=web, all runs do. Ctrl-C ends the server and denies open "
                "questions."
            )
            sys.stdout.flush()
            await over.wait()
        finally:
            await asyncio.to_thread(server_socket.close)
    finally:
        await web.close()
    return 0
