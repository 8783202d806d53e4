from __future__ import annotations

import pytest

from tests.support.fence import Fence
from tests.support.gate import Gate


@pytest.fixture(params=["landlock", "full"])
def gate(request: pytest.FixtureRequest) -> Gate:
    """In both tiers: who supervises whom differs between them."""
    fence: Fence = request.getfixturevalue("fence" if request.param == "landlock" else "full")
    return Gate(fence=fence)
