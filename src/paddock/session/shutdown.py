"""The end of sessions that nobody ended: SIGTERM, and the garbage collector.

A session ends with its program in any case, because nothing inside lives without its line to it.
Here it gets the time to end as it should: shells are told, containers removed, temporary files too.
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
    """Until it is released, ``dispose`` is called when SIGTERM comes, and the program ends by it
    afterwards. A program that handles the signal itself is left to it.
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
