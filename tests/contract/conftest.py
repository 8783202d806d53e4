from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.contract.engine import Engine, installed


@pytest.fixture(scope="package", name="engine")
def _engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    with installed(tmp_path_factory.mktemp("image")) as engine:
        yield engine
