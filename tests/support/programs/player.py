"""Makes the connections that a file describes. Each line of the file is one connection, as JSON.

player.py FILE

``{"host": …, "port": …, "pieces": […]}``: the pieces are sent one after the other, in Latin-1. The
program prints a line for each connection: the number of answers and the status of each.
"""

from __future__ import annotations

import concurrent.futures
import json
import re
import socket
import sys

_WAIT_S = 4.0  # for an answer to an incomplete request
_STATUS = re.compile(rb"HTTP/1\.[01] ([0-9]{3})")


def play(line: str) -> str:
    one = json.loads(line)
    received = b""
    try:
        with socket.create_connection((one["host"], one["port"]), _WAIT_S) as end:
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for piece in one["pieces"]:
                end.sendall(piece.encode("latin-1"))
            end.shutdown(socket.SHUT_WR)
            while data := end.recv(65536):
                received += data
    except OSError as error:
        received += f"\n{error}".encode()
    return json.dumps(
        {
            "statuses": [int(status) for status in _STATUS.findall(received)],
            "said": received.decode("latin-1"),
        }
    )


print("started", flush=True)
with (
    concurrent.futures.ThreadPoolExecutor(16) as threads,
    open(sys.argv[1], encoding="ascii") as file,
):
    for reported in threads.map(play, file):
        print(reported, flush=True)
