from __future__ import annotations

import pytest

from tests.support.features import need_program
from tests.support.sandbox import SandboxRunner
from tests.system.files.faults.fault_scene import Scene


@pytest.fixture
def scene(full: SandboxRunner) -> Scene:
    need_program("strace")
    made = Scene(full)
    made.lay_out()
    return made
