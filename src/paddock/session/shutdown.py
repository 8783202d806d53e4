"""Ends sessions that were not closed: at SIGTERM, and by the garbage collector.

A session ends with its program in any case, because every process inside ends when its socket is
closed. This file gives it time for an orderly end: shells are signalled, containers and temporary
files are removed.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import weakref
from collections.abc import Awaitable, Callable

Dispose = Callable[[], Awaitable[object]]

_open: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[int, Dispose]] = (
    weakref.WeakKeyDictionary()
)
_ending: set[asyncio.Future[None]] = set()


def hold(number: int, dispose: Dispose) -> None:
    """Until it is released, ``dispose`` is called at SIGTERM, and the program ends afterwards. If
    the program handles the signal itself, nothing is installed.
    """
    loop = asyncio.get_running_loop()
    held = _open.setdefault(loop, {})
    if not held and _is_ours_to_handle():
        loop.add_signal_handler(signal.SIGTERM, _terminate, loop)
    held[number] = dispose


def release(number: int, loop: asyncio.AbstractEventLoop) -> None:
    held = _open.get(loop, {})
    if held.pop(number, None) is not None and not held:
        if threading.current_thread() is threading.main_thread():
            loop.remove_signal_handler(signal.SIGTERM)
        _open.pop(loop, None)


def _is_ours_to_handle() -> bool:
    main = threading.current_thread() is threading.main_thread()
    return main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def _terminate(loop: asyncio.AbstractEventLoop) -> None:
    ending = asyncio.ensure_future(_end_all(loop))
    _ending.add(ending)
    ending.add_done_callback(_ending.discard)


async def _end_all(loop: asyncio.AbstractEventLoop) -> None:
    await asyncio.gather(
        *(dispose() for dispose in [*_open.get(loop, {}).values()]), return_exceptions=True
    )
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTERM)
