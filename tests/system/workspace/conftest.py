"""Sessions on real overlay mounts, as the unprivileged tester."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import cow as support
from tests.support.features import need
from tests.support.installation import Installation
from tests.support.saved_state import remove
from tests.support.tester import Tester
from tests.support.tree import ProjectTree

_TRY = (
    "from tests.support import overlay; overlay.enter_namespaces(); "
    "overlay.mount_tmpfs('/tmp', "
    "'1m'); print('mounted')"
)


@pytest.fixture(scope="session", name="bench")
def _bench(tester: Tester, installation: Installation) -> Iterator[support.Workbench]:
    # not the temporary directory of pytest, which other users cannot enter
    directory = Path(tempfile.mkdtemp(prefix="paddock-cow-", dir="/var/tmp"))
    directory.chmod(0o755)
    try:
        with support.workbench(directory, tester, installation) as bench:
            tried = tester.run([bench.python, "-c", _TRY], cwd=directory)
            need(
                "userns",
                tried.stdout == "mounted\n",
                f"no mounts in a user namespace: {tried.stderr}",
            )
            yield bench
    finally:
        shutil.rmtree(directory)


@pytest.fixture
def cow(
    tester: Tester, installation: Installation, bench: support.Workbench, tree: ProjectTree
) -> Iterator[support.Cow]:
    made = support.Cow(tester=tester, installation=installation, bench=bench, tree=tree)
    yield made
    for name in made.made:
        remove(made.store / name)
