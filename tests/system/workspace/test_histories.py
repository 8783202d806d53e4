"""Diff and apply give the same result as a plain copy, for random histories on real overlay
mounts.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.support.cow import Workbench
from tests.support.features import need
from tests.support.tester import Tester

SCRIPT = Path(__file__).with_name("histories.py")
SEED = int(os.environ.get("PADDOCK_SEED", "1"))


def go(tester: Tester, bench: Workbench, way: str, base: Path, number: int) -> dict[str, int]:
    words = [
        *bench.script(SCRIPT),
        way,
        base / f"paddock-{way}-{os.getpid()}",
        str(SEED),
        str(number),
    ]
    done = tester.run(words, cwd=bench.directory, timeout_s=240)
    assert done.exit_code == 0, done
    answer = json.loads(done.stdout)
    assert not answer["wrong"], f"PADDOCK_SEED={SEED}\n" + "\n".join(answer["wrong"])
    return {key: answer[key] for key in ("histories", "acts", "changes")}


@pytest.mark.parametrize(
    ("way", "number"), [("whole", 200), ("parts", 60), ("steps", 50), ("killed", 60)]
)
def test_a_random_history_is_applied_without_a_difference(
    tester: Tester, bench: Workbench, way: str, number: int
) -> None:
    shared = Path("/dev/shm")
    need("shm", shared.is_dir() and os.access(shared, os.W_OK), "no /dev/shm")
    found = go(tester, bench, way, shared, number)
    assert found["acts"] > 10 * number
    assert found["changes"] > 4 * number


@pytest.mark.parametrize("way", ["whole", "killed"])
def test_a_random_history_is_applied_on_a_disk_without_a_difference(
    tester: Tester, bench: Workbench, way: str
) -> None:
    assert go(tester, bench, way, tester.home, 8)["changes"] > 20
