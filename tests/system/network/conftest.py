from __future__ import annotations

import os
import ssl
from pathlib import Path
from typing import Any

import pytest

from tests.support import clients as support
from tests.support.clients import HOSTS, Clients
from tests.support.features import need
from tests.support.network import NetworkRunner, network_runner
from tests.support.sandbox import SandboxRunner


@pytest.fixture
def full_network(full: SandboxRunner, host: dict[str, Any]) -> NetworkRunner:
    return network_runner(full, host["landlock_abi"])


@pytest.fixture
def landlock_network(sandbox: SandboxRunner, host: dict[str, Any]) -> NetworkRunner:
    """The landlock tier, where the supervisor connects for the command."""
    return network_runner(sandbox, host["landlock_abi"])


@pytest.fixture
def clients(full: SandboxRunner) -> Clients:
    need("root", os.getuid() == 0, "only root can mount a list of names for one process")
    return Clients(sandbox=full, hosts=full.tree.put(full.tree.root / "hosts", HOSTS))


@pytest.fixture
def certified(tmp_path: Path) -> tuple[Path, ssl.SSLContext]:
    """A self-signed certificate for both names, and a server context with it."""
    return support.certified(tmp_path)
