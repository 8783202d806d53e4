"""Deep and wide trees: the guard needs little memory, and time in proportion to the entries."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.support.sandbox import UNJUDGED, SandboxRunner, Word
from tests.support.waiting import wait_for

# Makes a chain of directories with long names and many leaves.
DEEP = """
import os, sys
levels, leaves = int(sys.argv[1]), int(sys.argv[2])
os.mkdir("deep"); os.chdir("deep")
for _ in range(levels): os.mkdir("d" * 255); os.chdir("d" * 255)
for number in range(leaves): os.mkdir(str(number))
print("made", flush=True)
"""


@pytest.fixture(autouse=True)
def _removed(full: SandboxRunner) -> Iterator[None]:
    """Python's rmtree is recursive, so it cannot remove a tree this deep."""
    yield
    subprocess.run(["rm", "-rf", full.tree.project / "deep"], check=True)


# A separate process measures, because the memory of a child counts from its fork, and the test
# process is large.
MEASURED = """
import os, sys
pid = os.posix_spawnp(sys.argv[1], sys.argv[1:], os.environ)
_, status, used = os.wait4(pid, 0)
print("used", used.ru_maxrss, flush=True)
sys.exit(os.waitstatus_to_exitcode(status))
"""


def test_a_deep_tree_costs_the_supervisor_little_memory(full: SandboxRunner) -> None:
    measured: list[Word] = ["python3", "-c", MEASURED]
    # Judged writes refuse such long paths.
    reported = full.inside(["python3", "-c", DEEP, "400", "1500"], *UNJUDGED, prefix=measured)
    assert reported.exit_code == 0, str(reported)
    made, used = reported.stdout.splitlines()
    assert made == "made"
    assert int(used.removeprefix("used ")) < 64 * 1024, used


@pytest.mark.parametrize(("levels", "code"), [(2040, 0), (4100, 125)])
def test_a_tree_is_searched_as_deep_as_paths_reach_and_a_deeper_one_is_an_error(
    full: SandboxRunner, levels: int, code: int
) -> None:
    """The host makes the tree. A run that makes one itself ends in the same way."""
    program = (
        f"import os\nos.mkdir('deep'); os.chdir('deep')\nfor _ in range({levels}): "
        f"os.mkdir('d'); os.chdir('d')"
    )
    assert full.outside(["python3", "-c", program]).exit_code == 0
    reported = full.inside(["echo", "started"])
    assert reported.exit_code == code, str(reported)
    assert (reported.stdout == "started\n") == (not code)
    assert ("directories deep" in reported.stderr) == bool(code)


# Makes leaves in a deep directory. Then reads a denied name that the host replaces, as long as that
# works.
READER = """
import os, sys, time
levels, leaves = int(sys.argv[1]), int(sys.argv[2])
top, name = os.getcwd(), "d" * 255
os.mkdir("deep"); os.chdir("deep")
for _ in range(levels): os.mkdir(name); os.chdir(name)
for number in range(leaves): os.mkdir(str(number))
open(top + "/now", "w")
first = last = None
while not os.path.exists(top + "/end"):
    try:
        if open(top + "/.env", "rb").read() == b"new-secret":
            last = time.monotonic(); first = first or last
    except OSError:
        pass
print("read for", (last - first) if first else 0.0)
"""


def test_a_denied_name_is_covered_before_the_events_of_a_deep_tree_are_judged(
    full: SandboxRunner,
) -> None:
    full = replace(full, own_flags=UNJUDGED)
    project = full.tree.project
    full.tree.put(project / ".env", "old-secret")
    new = full.tree.put(full.tree.root / "new", "new-secret")
    with full.starting(["python3", "-c", READER, "1000", "2500"]) as process:
        wait_for((project / "now").exists, "the leaves are made")
        new.rename(project / ".env")
        wait_for(
            lambda: any(event["event"] == "name.masked" for event in full.events()),
            "the guard has covered it",
        )
        (project / "end").touch()
        assert process.stdout is not None
        output = process.stdout.read()
    assert output.startswith("read for "), output
    assert float(output.split()[-1]) < 1.0
    assert full.outside(["cat", ".env"]).stdout == "new-secret", "the control: it is there"
