"""The aftermath machine in the tester's home."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.features import need, need_program, need_root
from tests.support.installation import Installation
from tests.support.tester import Tester
from tests.system.files.aftermath.machine import Machine


@pytest.fixture(scope="module", name="machine")
def _machine(
    tester: Tester, installation: Installation, host: dict[str, object]
) -> Iterator[Machine]:
    need_root()  # the scenes need a home that they may change
    names = host["namespaces"]
    assert isinstance(names, dict)
    need("namespaces", names["usable"], f"this machine makes no namespaces: {names}")
    for program in ("git", "direnv", "npm", "pip"):
        need_program(program)
    with Machine.ready(tester, installation) as machine:
        yield machine
