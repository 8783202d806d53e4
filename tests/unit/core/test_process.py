"""The start of the core from Python."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from paddock.core import process as core
from paddock.errors import HostError


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A system other than Linux."""
    core.program.cache_clear()
    monkeypatch.setattr(sys, "platform", "darwin")
    yield
    core.program.cache_clear()


@pytest.mark.usefixtures("elsewhere")
def test_another_system_is_refused_before_anything_is_started() -> None:
    """F-010, F-175: the native program prints the same (core/tests/unsupported_system.rs)."""
    with pytest.raises(HostError, match="darwin is not supported") as refusal:
        core.ask("host")
    assert refusal.value.exit_code == 125
    assert refusal.value.hint is not None
    assert "Linux 6.12" in refusal.value.hint
