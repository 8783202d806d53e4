from __future__ import annotations

import pytest

from tests.support.gate import Gate
from tests.support.sandbox import SandboxRunner


@pytest.fixture(params=["landlock", "full"])
def gate(request: pytest.FixtureRequest) -> Gate:
    """The gate in both tiers, because the process tree differs."""
    sandbox: SandboxRunner = request.getfixturevalue(
        "sandbox" if request.param == "landlock" else "full"
    )
    return Gate(sandbox=sandbox)
