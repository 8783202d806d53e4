from __future__ import annotations

import os
import ssl
from pathlib import Path
from typing import Any

import pytest

from tests.support import clients as support
from tests.support.clients import HOSTS, Clients
from tests.support.features import need
from tests.support.fence import Fence
from tests.support.network import Netted, netted


@pytest.fixture(name="netted")
def _netted(full: Fence, host: dict[str, Any]) -> Netted:
    return netted(full, host["landlock_abi"])


@pytest.fixture
def pinned(fence: Fence, host: dict[str, Any]) -> Netted:
    """Without namespaces: the supervisor connects for the command."""
    return netted(fence, host["landlock_abi"])


@pytest.fixture
def clients(full: Fence) -> Clients:
    need("root", os.getuid() == 0, "a list of names for one process can only be had by root")
    return Clients(fence=full, hosts=full.ground.put(full.ground.root / "hosts", HOSTS))


@pytest.fixture
def certified(tmp_path: Path) -> tuple[Path, ssl.SSLContext]:
    """A certificate for both names that signs itself, and a server's context with it."""
    return support.certified(tmp_path)
