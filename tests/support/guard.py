"""Waits for the guard of a run by reading its journal."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path

from tests.support.journal import events
from tests.support.tester import Tester
from tests.support.waiting import wait_for


def masked(journal: Path) -> set[str]:
    """The paths that the guard has covered so far."""
    return {event["path"] for event in events(journal) if event["event"] == "name.masked"}


def wait_until_masked(journal: Path, path: Path) -> None:
    wait_for(lambda: str(path) in masked(journal), f"the guard covers {path}")


def wait_until_judged(
    tester: Tester, tree: Path, journal: Path, *, has_ended: Callable[[], bool] = lambda: False
) -> None:
    """Waits until the guard has judged all events in ``tree`` before this call, or the run has
    ended.

    The kernel queues the events of all directories in one order. The guard judges a denied name
    before its turn, but a new directory in its turn. So when it covers a denied name in a new
    directory, nothing older waits. The name is in a hidden directory: a ``*`` of a shell does not
    match it.
    """
    sign = tree / f".judged-{secrets.token_hex(4)}"
    done = tester.run(["sh", "-ec", 'mkdir "$0"; echo sign > "$0/.env"', sign])
    assert done.exit_code == 0, str(done)
    wait_for(
        lambda: str(sign / ".env") in masked(journal) or has_ended(),
        f"the guard covers {sign}/.env",
    )
