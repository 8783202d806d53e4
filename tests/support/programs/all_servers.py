"""All servers of a network namespace, at every address that is routed to it.

Port 53 answers DNS over UDP and TCP, port 80 answers HTTP, and port 443 answers datagrams. The
program prints a line of JSON for each request. It starts when it reads a line, and ends with its
input.

    all_servers.py PLACE ZONE

ZONE has a list of addresses for each name, or lists that are used in turn. ``=name`` is an alias.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import socket
import struct
import sys
import threading
from collections.abc import Callable

A, CNAME, AAAA = 1, 5, 28
IP_TRANSPARENT, IPV6_TRANSPARENT = 19, 75
# The answer to a datagram has to come from the address that it was sent to. A socket that is bound
# to every address cannot do that.
ANSWERING = {
    socket.AF_INET: ["93.184.216.53", "93.184.216.66"],
    socket.AF_INET6: ["2a00:9::53", "2a00:9::66"],
}
PUBLIC = ["93.184.216.34", "2a00:9::34"]
PLACE, ZONE = sys.argv[1], json.loads(sys.argv[2])
turns: dict[str, int] = {}
lock = threading.Lock()


def tell(**what: object) -> None:
    with lock:
        # In one call, because the other machine writes to the same file.
        os.write(1, f"{json.dumps({'place': PLACE, **what})}\n".encode())


def answer(message: bytes, over: str) -> bytes:
    labels, at = [], 12
    while message[at]:
        labels.append(message[at + 1 : at + 1 + message[at]].decode("latin-1"))
        at += 1 + message[at]
    name, (kind, _) = ".".join(labels).lower(), struct.unpack_from(">HH", message, at + 1)
    tell(asked=name, kind=kind, over=over)
    question, found = message[12 : at + 5], ZONE.get(name, PUBLIC)
    if found and isinstance(found[0], list):
        turns[name] = turns.get(name, -1) + (kind == A)
        found = found[turns[name] % len(found)]
    owner, records = b"\xc0\x0c", []
    for one in found:
        if one.startswith("="):
            target = (
                b"".join(bytes([len(label)]) + label.encode() for label in one[1:].split("."))
                + b"\0"
            )
            records.append(struct.pack(">2sHHIH", owner, CNAME, 1, 0, len(target)) + target)
            owner, found = target, ZONE.get(one[1:], PUBLIC)
    for one in found:
        if not one.startswith("="):
            address = ipaddress.ip_address(one)
            if kind == (A if address.version == 4 else AAAA):
                records.append(
                    owner + struct.pack(">HHIH", kind, 1, 0, len(address.packed)) + address.packed
                )
    return (
        message[:2]
        + struct.pack(">HHHHH", 0x8180, 1, len(records), 0, 0)
        + question
        + b"".join(records)
    )


def names(server: socket.socket) -> None:
    while True:
        message, client = server.recvfrom(4096)
        server.sendto(answer(message, "udp"), client)


def datagrams(server: socket.socket) -> None:
    while True:
        _, client = server.recvfrom(4096)
        tell(datagram=client[0])
        server.sendto(b"heard", client)


def names_by_stream(client: socket.socket) -> None:
    with client, client.makefile("rwb") as stream:
        while len(length := stream.read(2)) == 2:
            reply = answer(stream.read(int.from_bytes(length, "big")), "tcp")
            stream.write(len(reply).to_bytes(2, "big") + reply)
            stream.flush()


def web(client: socket.socket) -> None:
    to, received = client.getsockname()[0], b""
    with client:
        while more := client.recv(65536):
            received += more
            while b"\r\n\r\n" in received:
                head, _, received = received.partition(b"\r\n\r\n")
                tell(request=head.decode("latin-1"), to=to)
                client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nheard")
                if head.splitlines()[0].endswith(b"HTTP/1.0"):
                    return


def accept(server: socket.socket, serve: Callable[[socket.socket], None]) -> None:
    def guarded(client: socket.socket) -> None:
        with contextlib.suppress(OSError):  # the client closed
            serve(client)

    while True:
        client, _ = server.accept()
        threading.Thread(target=guarded, args=(client,), daemon=True).start()


def bound(kind: int, family: int, port: int, address: str = "") -> socket.socket:
    server = socket.socket(family, kind)
    option = (
        (socket.SOL_IP, IP_TRANSPARENT)
        if family == socket.AF_INET
        else (socket.IPPROTO_IPV6, IPV6_TRANSPARENT)
    )
    server.setsockopt(*option, 1)  # to answer from an address that no interface has
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if family == socket.AF_INET6:
        server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    server.bind((address, port))
    if kind == socket.SOCK_STREAM:
        server.listen(64)
    return server


tell(waits="for the wire")
sys.stdin.readline()
for family in (socket.AF_INET, socket.AF_INET6):
    for serve, port in ((web, 80), (names_by_stream, 53)):
        words = (bound(socket.SOCK_STREAM, family, port), serve)
        threading.Thread(target=accept, args=words, daemon=True).start()
    for hear, port in ((names, 53), (datagrams, 443)):
        for address in ("", *ANSWERING[family]):
            socket_of_it = bound(socket.SOCK_DGRAM, family, port, address)
            threading.Thread(target=hear, args=(socket_of_it,), daemon=True).start()
tell(ready=True)
sys.stdin.read()
