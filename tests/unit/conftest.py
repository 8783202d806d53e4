from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.unit.policy.user_dirs import UserDirs

# The same examples in every run, also on a busy machine.
settings.register_profile(
    "paddock",
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("paddock")


@pytest.fixture
def dirs(tmp_path: Path) -> UserDirs:
    return UserDirs(tmp_path)
