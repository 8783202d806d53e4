"""Deep and wide trees: guard and last scan need little memory, and time in proportion to the
entries.
"""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.sandbox import SandboxRunner, Word
from tests.support.waiting import wait_for

# Plants two names in each of 20 directories, and leaves behind a chain of directories with long
# names and many leaves.
DEEP = """
import os, sys
levels, leaves = int(sys.argv[1]), int(sys.argv[2])
top, name = os.getcwd(), "d" * int(sys.argv[3])
for number in range(20): os.mkdir(f"{top}/w{number}")
os.mkdir("deep"); os.chdir("deep")
for _ in range(levels): os.mkdir(name); os.chdir(name)
for number in range(leaves): os.mkdir(str(number))
for number in range(20):
    open(f"{top}/w{number}/.envrc", "w").write("evil")
    os.mkdir(f"{top}/w{number}/.vscode")
    open(f"{top}/w{number}/plain", "w").write("fine")
print("planted", flush=True)
"""


@pytest.fixture(autouse=True)
def _removed(full: SandboxRunner) -> Iterator[None]:
    """Python's rmtree is recursive, so it cannot remove a tree this deep."""
    yield
    subprocess.run(["rm", "-rf", full.tree.project / "deep"], check=True)


def left(full: SandboxRunner) -> list[Path]:
    project = full.tree.project
    assert len(list(project.glob("w*/plain"))) == 20, "the control: an ordinary name stays"
    return [*project.glob("w*/.envrc"), *project.glob("w*/.vscode")]


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
    reported = full.inside(["python3", "-c", DEEP, "400", "1500", "255"], prefix=measured)
    assert reported.exit_code == 0, str(reported)
    planted, used = reported.stdout.splitlines()
    assert planted == "planted"
    assert left(full) == []
    assert int(used.removeprefix("used ")) < 64 * 1024, used


def test_a_run_short_of_memory_takes_planted_names_or_reports_them(
    full: SandboxRunner,
) -> None:
    limited: list[Word] = ["sh", "-c", 'ulimit -v 200000; exec "$@"', "sh"]
    reported = full.inside(["python3", "-c", DEEP, "400", "2000", "255"], prefix=limited)
    assert reported.stdout == "planted\n", str(reported)
    assert reported.exit_code in (0, 125), str(reported)
    if reported.exit_code == 125:
        assert "the last scan did not finish" in reported.stderr
    else:
        assert left(full) == []


LONG = """
import os
top, name = os.getcwd(), "d" * 250
os.mkdir("deep"); os.chdir("deep")
for _ in range(3900): os.mkdir(name); os.chdir(name)
for number in range(75): os.mkdir(str(number)); open(f"{number}/Makefile", "w").close()
os.chdir(top)
for number in range(20):
    os.mkdir(f"w{number}")
    open(f"w{number}/.envrc", "w").write("evil")
    open(f"w{number}/plain", "w").write("fine")
"""


def test_names_that_are_too_long_to_list_do_not_stop_the_last_scan(full: SandboxRunner) -> None:
    done = full.inside(["python3", "-c", LONG])
    assert done.exit_code == 0, done.stderr[-2000:]
    assert left(full) == []
    assert "may have changed; their paths are too long" in done.stderr
    assert full.inside(["true"]).exit_code == 0, "nor the next start"


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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_stops_the_last_scan_and_the_run_says_so(
    full: SandboxRunner, number: signal.Signals
) -> None:
    wide = "import os\nfor i in range(10000): os.mkdir(f'{i:05}')\nprint('made', flush=True)"
    with full.starting(["python3", "-c", wide], "--quiet") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "made\n"
        # The first signals may come before the last scan. Then they are for the command.
        while process.poll() is None:
            process.send_signal(number)
            time.sleep(0.002)
        assert process.stderr is not None
        assert "the last scan did not finish" in process.stderr.read()
    assert process.returncode == 125
    assert full.inside(["true"]).exit_code == 0, "the control: without a signal it succeeds"


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
