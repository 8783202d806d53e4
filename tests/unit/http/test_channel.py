"""The socket to the relay, when the relay is slow."""

from __future__ import annotations

import asyncio
import gc
import json
import socket

import pytest

from paddock.http.channel import Channel, NotDialled

MANY = 3000  # more than the socket holds


def test_a_dial_waits_while_the_channel_is_full() -> None:
    async def scenario() -> None:
        ours, relays = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours, relays:
            relays.setblocking(False)
            channel = Channel(ours, lambda _handed, _end: None)
            waiting = [
                asyncio.create_task(channel.dial("127.0.0.1", 1 + number)) for number in range(MANY)
            ]
            await asyncio.sleep(0)
            with pytest.raises(BlockingIOError):
                ours.send(b"x")  # the control: the socket is full
            asked = [
                json.loads(await asyncio.get_running_loop().sock_recv(relays, 65536))
                for _ in range(MANY)
            ]
            for question in asked:
                answer = json.dumps(
                    {"id": question["id"], "reason": str(question["port"])}
                ).encode()
                await asyncio.get_running_loop().sock_sendall(relays, answer)
            for number, task in enumerate(waiting):
                with pytest.raises(NotDialled, match=f"^{1 + number}$"):
                    await task
            channel.close()

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_a_waiting_dial_fails_when_the_relay_ends() -> None:
    async def scenario() -> None:
        complaints: list[object] = []
        asyncio.get_running_loop().set_exception_handler(
            lambda _loop, context: complaints.append(context)
        )
        ours, relays = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours:
            channel = Channel(ours, lambda _handed, _end: None)
            waiting = [asyncio.create_task(channel.dial("127.0.0.1", 80)) for _ in range(MANY)]
            await asyncio.sleep(0)
            relays.close()
            while waiting:
                with pytest.raises(NotDialled, match="the relay has ended"):
                    await waiting.pop()
            channel.close()
        gc.collect()
        assert not complaints, "no complaint about unread answers"

    asyncio.run(asyncio.wait_for(scenario(), 60))
