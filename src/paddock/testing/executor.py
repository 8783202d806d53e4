"""The contract of executors: checks that every executor must pass, also those of other programs.

    python -m paddock.testing.executor mymodule:make

``make()`` is an async context manager that gives a :class:`ExecutorUnderTest`. Each check prints
one line. The exit status is 0 if all pass. The end of a process is observed from outside: commands
write marks into a file that the host reads.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import sys
import traceback
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from paddock.testing import checks
from paddock.testing.executor_under_test import CHECK_TIMEOUT_S, CHECKS, ExecutorUnderTest

__all__ = ["CHECKS", "ExecutorUnderTest", "perform"]


async def perform(
    make: Callable[[], AbstractAsyncContextManager[ExecutorUnderTest]], names: list[str]
) -> bool:
    """Several checks run at a time, each in its own directory. The check that disposes of the
    executor is last.
    """

    async def hold(number: int, name: str) -> bool:
        async with turn:
            try:
                await asyncio.wait_for(
                    CHECKS[name](subject.below(str(number))), 3 * CHECK_TIMEOUT_S
                )
            except Exception as error:
                where = traceback.extract_tb(error.__traceback__)[-1]
                print(
                    f"not ok {name}: {type(error).__name__}: {error} ({where.name}:{where.lineno})",
                    flush=True,
                )
                return False
            print(f"ok {name}", flush=True)
            return True

    last = (
        names[-1:]
        if CHECKS[names[-1]] is checks.endings.disposing_ends_everything_and_can_be_repeated
        else []
    )
    async with make() as subject:
        turn = asyncio.Semaphore(subject.at_a_time)
        others = names[: len(names) - len(last)]
        held = await asyncio.gather(*(hold(number, name) for number, name in enumerate(others)))
        return all([*held, *[await hold(len(names), name) for name in last]])


def main(arguments: list[str]) -> int:
    module, _, attribute = arguments[0].partition(":")
    sys.path.insert(0, os.getcwd())
    make = getattr(importlib.import_module(module), attribute)
    return 0 if asyncio.run(perform(make, arguments[1:] or list(CHECKS))) else 1


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("python -m paddock.testing.executor MODULE:MAKE [CHECK…]")
    sys.exit(main(sys.argv[1:]))
