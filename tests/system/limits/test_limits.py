"""Limits for the whole process tree, with the installed program. A command that exceeds a limit is
stopped. The journal names the limit and its mechanism, no process stays, and the same act without
the limit succeeds.

Each run is in control groups of root (tests/support/cgroup_limit.py). Their counters are the
evidence of the host. Paddock cannot use those groups. The tests at the end give it groups of
version 1 and of version 2.
"""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.support import cgroup_limit, outside_targets
from tests.support.cgroup_limit import CgroupLimit, Word, python
from tests.support.features import need, need_program
from tests.support.sandbox import SandboxRunner, only
from tests.support.tester import Outcome
from tests.support.waiting import wait_for

# Each hog writes its progress in megabytes to a file of the project, which stays after its end.
REACH = """
import mmap, os, sys, time
print('started', flush=True)
reach = os.open('reach', os.O_WRONLY | os.O_CREAT)
block = b'x' * (1 << 20)
def came(count):
    os.pwrite(reach, b'%08d' % count, 0)
    # So that the time between two looks counts, and not how fast this memory is. Seldom: being
    # woken takes its time.
    if count % 10 == 0: time.sleep(0.02)
"""
ANONYMOUS = """
held = []
for index in range(int(sys.argv[1])):
    held.append(mmap.mmap(-1, 1 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
    held[-1].write(block)
    came(index + 1)
print('full')
"""
SHARED = """
memory = mmap.mmap(-1, int(sys.argv[1]) << 20)
for index in range(int(sys.argv[1])):
    memory.write(block)
    came(index + 1)
print('full')
"""
MEMFD = """
file = os.memfd_create('hog')
os.truncate(file, int(sys.argv[1]) << 20)
memory = mmap.mmap(file, 0)
for index in range(int(sys.argv[1])):
    memory.write(block)
    came(index + 1)
print('full')
"""
MANY_SMALL = """
ready, tell = os.pipe()
held, hold = os.pipe()
for index in range(int(sys.argv[1]) // 20):
    if os.fork() == 0:
        os.close(hold)
        own = bytearray(20 << 20)
        own[::4096] = b'x' * len(own[::4096])
        os.write(tell, b'x')
        os.read(held, 1)
        os._exit(0)
    os.read(ready, 1)
    came((index + 1) * 20)
print('full')
"""
FILES = """
for index in range(int(sys.argv[1])):
    with open(f'{sys.argv[2]}/hog-{index}', 'wb') as file: file.write(block)
    came(index + 1)
print('full')
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limited:
    sandbox: SandboxRunner
    cgroups: CgroupLimit

    def run(self, words: list[Word], **limits: int) -> Outcome:
        return self.sandbox.inside(
            words, *self.policy(**limits), prefix=self.cgroups.prefix(), as_root=True
        )

    def policy(self, **limits: int) -> tuple[Word, ...]:
        if not limits:
            return ()
        lines = "".join(f"{name} = {value}\n" for name, value in limits.items())
        path, text = self.sandbox.tree.root / "limits.toml", f"[limits]\n{lines}"
        # An unchanged file stays as it is, so that the next run of a test can use the memo.
        if not path.exists() or path.read_text() != text:
            self.sandbox.tree.put(path, text)
        return ("--policy", path)

    def met(self) -> list[dict[str, Any]]:
        """The limit events since the last call. The journal is moved away."""
        events = self.sandbox.events()
        for file in self.sandbox.journal.iterdir():
            file.unlink()
        return [event for event in events if event["event"] == "limit.exceeded"]

    @property
    def reach(self) -> int:
        return int((self.sandbox.tree.project / "reach").read_text())

    def assert_ended(self, outcome: Outcome, limit: str, value: int, means: str) -> None:
        assert outcome.started, str(outcome)
        assert "full" not in outcome.stdout, str(outcome)
        assert outcome.exit_code == 137, str(outcome)
        assert f"paddock: ended: {limit} {value} exceeded" in outcome.stderr.splitlines(), str(
            outcome
        )
        (met,) = self.met()
        facts = {key: met[key] for key in ("limit", "value", "means", "ended", "unwatched")}
        assert facts == {
            "limit": limit,
            "value": value,
            "means": means,
            "ended": True,
            "unwatched": False,
        }
        self.assert_nothing_left()

    def assert_unharmed(self, outcome: Outcome) -> None:
        assert (outcome.exit_code, outcome.stdout) == (0, "started\nfull\n"), str(outcome)
        assert not self.met(), "no limit was exceeded"
        self.assert_nothing_left()

    def assert_nothing_left(self) -> None:
        wait_for(lambda: self.cgroups.tasks == 0, "the control groups are empty")
        assert not self.cgroups.left_behind


@pytest.fixture(params=["landlock", "full"])
def limited(
    request: pytest.FixtureRequest, sandbox: SandboxRunner, host: dict[str, Any]
) -> Iterator[Limited]:
    tier = str(request.param)
    if tier == "full":
        need(
            "namespaces",
            host["namespaces"]["usable"],
            f"this machine makes no namespaces: {host['namespaces']}",
        )
    with cgroup_limit.around(sandbox.tester) as around:
        yield Limited(sandbox=replace(sandbox, tier=tier), cgroups=around)


@pytest.fixture
def full_tier(full: SandboxRunner) -> Iterator[Limited]:
    with cgroup_limit.around(full.tester) as around:
        yield Limited(sandbox=full, cgroups=around)


@pytest.mark.parametrize("hog", [SHARED, MEMFD, MANY_SMALL], ids=["shared", "memfd", "many-small"])
def test_a_memory_hog_ends_the_run(limited: Limited, hog: str) -> None:
    limited.assert_ended(
        limited.run(python(REACH + hog, 1500), memory_mb=100), "memory_mb", 100, "watchdog"
    )
    assert limited.reach < 1200, "memory that it gets between two checks"
    assert limited.cgroups.peak_mb < 1500, "the counter of the host"
    limited.assert_unharmed(limited.run(python(REACH + hog, 200)))
    limited.assert_unharmed(limited.run(python(REACH + hog, 60), memory_mb=100))


def test_one_process_meets_the_limit_as_an_error(limited: Limited) -> None:
    """The kernel refuses private memory of one process, before the watchdog looks."""
    outcome = limited.run(python(REACH + ANONYMOUS, 1500), memory_mb=200)
    assert outcome.started, str(outcome)
    assert outcome.exit_code == 1, str(outcome)
    assert "Cannot allocate memory" in outcome.stderr, str(outcome)
    assert limited.reach <= 200
    assert limited.cgroups.peak_mb < 400
    limited.met()
    limited.assert_unharmed(limited.run(python(REACH + ANONYMOUS, 400)))


def test_node_starts_under_a_memory_limit(limited: Limited) -> None:
    """A-113: the limit is not on address space, because Node reserves more than that."""
    node = need_program("node")
    limited.assert_unharmed(
        limited.run([node, "-e", "console.log('started\\nfull')"], memory_mb=512)
    )


@pytest.mark.parametrize("place", ["/tmp", "/dev/shm"])
def test_files_in_memory_count_as_memory(full_tier: Limited, place: str) -> None:
    outcome = full_tier.run(python(REACH + FILES, 1500, place), memory_mb=100)
    full_tier.assert_ended(outcome, "memory_mb", 100, "watchdog")
    assert full_tier.reach < 1200
    assert full_tier.cgroups.peak_mb < 1500
    full_tier.assert_unharmed(full_tier.run(python(REACH + FILES, 200, place)))
    full_tier.assert_unharmed(full_tier.run(python(REACH + FILES, 60, place), memory_mb=100))


def test_shared_memory_with_a_name_counts_once(full_tier: Limited) -> None:
    """A mapped file in /dev/shm counts for its processes and for its file system.

    The watchdog checks at least every 0.5 s without output, so the command stays for three checks.
    """
    script = """
file = os.open('/dev/shm/one', os.O_RDWR | os.O_CREAT)
os.truncate(file, 120 << 20)
memory = mmap.mmap(file, 0)
for index in range(120): memory.write(block)
time.sleep(1.5)
print('full')
"""
    full_tier.assert_unharmed(full_tier.run(python(REACH + script), memory_mb=200))


@pytest.mark.parametrize("place", ["/tmp", "/dev/shm"])
def test_tmpfs_has_the_configured_size(full_tier: Limited, place: str) -> None:
    outcome = full_tier.run(python(REACH + FILES, 100, place), tmp_mb=20)
    assert outcome.exit_code == 1, str(outcome)
    assert "No space left on device" in outcome.stderr, str(outcome)
    assert full_tier.reach <= 20
    full_tier.assert_unharmed(full_tier.run(python(REACH + FILES, 100, place)))


def test_tmp_cannot_be_sized_on_the_disk(limited: Limited) -> None:
    outcome = limited.run(["sh", "-c", "echo started; echo full"], tmp_mb=20)
    if limited.sandbox.tier == "full":
        limited.assert_unharmed(outcome)
        return
    assert (outcome.exit_code, outcome.stdout) == (125, ""), str(outcome)
    assert "tmp_mb" in outcome.stderr


STUBBORN_BOMB = """
import os
print('started', flush=True)
while True:
    try: os.fork()
    except OSError: pass
"""
CROWD = "echo started; i=0; while [ $i -lt 60 ]; do sleep 1 & i=$((i+1)); done; wait; echo full"


def test_a_fork_bomb_is_limited_and_the_host_continues(limited: Limited) -> None:
    """In the full tier the kernel refuses the next process. In the landlock tier the watchdog ends
    the run.
    """
    held = limited.sandbox.tier == "full"
    argv = limited.sandbox.command(python(STUBBORN_BOMB), *limited.policy(processes=40, wall_s=3))
    with limited.sandbox.tester.starting(
        [*limited.cgroups.prefix(), *argv], cwd=limited.sandbox.tree.project, as_root=True
    ) as bomb:
        assert bomb.stdout
        assert bomb.stdout.readline() == "started\n"
        assert limited.sandbox.outside(["sh", "-c", "sleep 0 & wait"]).exit_code == 0, (
            "the same user can fork outside"
        )
        assert bomb.wait(timeout=120) == 137
        assert bomb.stderr
        output = bomb.stderr.read()
    limits = [event["limit"] for event in limited.met()]
    assert limits == (["wall_s", "processes"] if held else ["processes"])
    assert ("ended: wall_s 3 exceeded" if held else "ended: processes 40 exceeded") in output
    # The two processes of Paddock. In the landlock tier also processes that a bomb starts between
    # two checks, up to the safe limit.
    assert limited.cgroups.peak_tasks <= (43 if held else cgroup_limit.SAFE_TASKS)
    limited.assert_nothing_left()
    limited.assert_unharmed(limited.run(["sh", "-c", CROWD]))
    limited.assert_unharmed(limited.run(["sh", "-c", CROWD], processes=80))


BURNERS = """
echo started
one() { i=0; while [ $i -lt 8 ]; do (j=0; while [ $j -lt $1 ]; do j=$((j+1)); done); i=$((i+1)); \
done; }
one $0 & one $0 & one $0 & wait
echo full"""


def test_processor_time_of_children_counts(limited: Limited) -> None:
    outcome = limited.run(["sh", "-c", BURNERS, "10000000"], cpu_s=1)
    limited.assert_ended(outcome, "cpu_s", 1, "watchdog")
    limited.assert_unharmed(limited.run(["sh", "-c", BURNERS, "30000"]))
    limited.assert_unharmed(limited.run(["sh", "-c", BURNERS, "30000"], cpu_s=20))


def test_wall_clock_limit_ends_a_command_that_ignores_signals(limited: Limited) -> None:
    ignored = "trap '' TERM INT HUP QUIT TSTP; setsid -f sh -c 'sleep 60; echo late >> late'"
    script = f"echo started; {ignored}; sleep 60; echo full"
    outcome = limited.run(["sh", "-c", script], wall_s=1)
    limited.assert_ended(outcome, "wall_s", 1, "watchdog")
    assert not (limited.sandbox.tree.project / "late").exists()
    limited.assert_unharmed(limited.run(["sh", "-c", "echo started; sleep 1.2; echo full"]))


def test_open_files_are_limited(limited: Limited) -> None:
    script = (
        "import os; print('started', flush=True); [os.dup(1) for _ in range(100)]; print('full')"
    )
    outcome = limited.run(python(script), open_files=64)
    assert outcome.started, str(outcome)
    assert outcome.exit_code == 1, str(outcome)
    assert "Too many open files" in outcome.stderr, str(outcome)
    limited.assert_unharmed(limited.run(python(script)))


def test_the_size_of_a_file_is_limited(limited: Limited) -> None:
    big = limited.sandbox.tree.project / "big"
    write = [
        "sh",
        "-c",
        "echo started; head -c 3000000 /dev/zero > big; code=$?; echo full; exit $code",
    ]
    outcome = limited.run(list(write), file_size_mb=1)
    assert outcome.exit_code == 128 + 25, str(outcome)
    assert big.stat().st_size == 1 << 20, str(outcome)
    assert outcome.stdout == "started\nfull\n", "only the writing process is ended"
    limited.assert_unharmed(limited.run(list(write)))
    assert big.stat().st_size == 3000000
    alone = limited.run(["head", "-c", "3000000", "/dev/zero"], file_size_mb=1)
    assert alone.exit_code == 0, "the limit does not apply to a pipe"


def test_a_limit_that_ends_the_command_by_signal_is_named(limited: Limited) -> None:
    """The signal of the limit ends the command itself."""
    outcome = limited.run(
        ["dd", "if=/dev/zero", "of=big", "bs=1M", "count=3", "status=none"], file_size_mb=1
    )
    assert outcome.exit_code == 128 + 25, str(outcome)
    assert "paddock: ended: file_size_mb 1 exceeded" in outcome.stderr
    assert [(met["limit"], met["means"]) for met in limited.met()] == [("file_size_mb", "rlimit")]


def test_start_line_and_journal_name_each_limit(limited: Limited) -> None:
    everything = {
        "memory_mb": 512,
        "processes": 64,
        "cpu_s": 10,
        "open_files": 100,
        "file_size_mb": 5,
        "wall_s": 60,
    }
    flags = limited.policy(**everything)
    shown = limited.sandbox.inside(["true"], *flags, "--dry-run", journal=False)
    assert shown.exit_code == 0, str(shown)
    for name, value in everything.items():
        assert name in shown.stdout, str(shown)
        assert str(value) in shown.stdout, str(shown)
    # `prlimit` shows the limits of each process from the host.
    table = limited.run(
        ["prlimit", "--output", "RESOURCE,SOFT,HARD", "--noheadings"], **everything
    ).stdout
    rows = {row.split()[0]: row.split()[1:] for row in table.splitlines()}
    assert rows["NOFILE"] == ["100", "100"]
    assert rows["FSIZE"] == [str(5 << 20)] * 2
    assert rows["AS"] == ["unlimited"] * 2, "Node and Go reserve far more than they use"


# The child has its own session, so a stop of its parent does not stop it.
STOPS_ITSELF = """
import signal
if os.fork() == 0:
    os.setsid()
    parent = f'/proc/{os.getppid()}/stat'
    while open(parent).read().rpartition(')')[2].split()[0] != 'T': time.sleep(0.01)
    CHILD
    open('done', 'w').close()
    while True: time.sleep(1)
os.kill(os.getpid(), signal.SIGSTOP)
print('full')
"""


def _stopping(
    limited: Limited, child: str, *flags: Word
) -> AbstractContextManager[subprocess.Popen[str]]:
    words = python(
        REACH + STOPS_ITSELF.replace("CHILD", child.strip().replace("\n", "\n    ")), 1500
    )
    argv = [*limited.cgroups.prefix(), *limited.sandbox.command(words, *flags)]
    return limited.sandbox.tester.starting(argv, cwd=limited.sandbox.tree.project, as_root=True)


@pytest.mark.parametrize(
    ("limit", "value"), [("memory_mb", 200), ("cpu_s", 1), ("wall_s", 2), ("processes", 20)]
)
def test_a_run_that_is_stopped_is_still_watched(limited: Limited, limit: str, value: int) -> None:
    """Ctrl-Z, or the command itself, stops Paddock too. Background processes still have their
    limits.
    """
    crowd = "for _ in range(30):\n    if os.fork() == 0: time.sleep(60)"
    acts = {
        "memory_mb": SHARED.replace("print('full')", ""),
        "cpu_s": "while True: pass",
        "processes": crowd,
    }
    act = acts.get(limit, "time.sleep(60)")
    if limit == "processes" and limited.sandbox.tier == "full":
        pytest.skip("the kernel enforces it without the watchdog")
    with _stopping(limited, act, *limited.policy(**{limit: value})) as paddock:
        assert paddock.wait(timeout=120) == 137, "no process continued it"
        assert paddock.stderr
        assert f"ended: {limit} {value} exceeded" in paddock.stderr.read()
    assert [met["limit"] for met in limited.met()] == [limit]
    limited.assert_nothing_left()


def test_without_a_limit_a_stopped_run_stays_and_goes_on(limited: Limited) -> None:
    """The control: the same hog continues beside a stopped run. The run ends normally when it is
    continued.
    """
    done = limited.sandbox.tree.project / "done"
    with _stopping(
        limited, SHARED.replace("print('full')", "").replace("sys.argv[1]", "400")
    ) as paddock:
        wait_for(done.exists, "the child has done it")
        wait_for(
            lambda: outside_targets.state(paddock.pid) == "T",
            "the run is stopped, as the shell would see it",
        )
        paddock.send_signal(signal.SIGCONT)
        assert paddock.wait(timeout=120) == 0
        assert paddock.stdout
        assert paddock.stdout.read() == "started\nfull\n"
    assert limited.reach == 400
    limited.assert_nothing_left()


def test_names_are_guarded_while_a_run_is_stopped(full_tier: Limited) -> None:
    project = full_tier.sandbox.tree.project
    with _stopping(full_tier, "os.system('echo x > .envrc')") as paddock:
        wait_for((project / "done").exists, "the child has tried it")
        assert not (project / ".envrc").exists()
        wait_for(
            lambda: outside_targets.state(paddock.pid) == "T", "and the run is stopped as before"
        )
        paddock.send_signal(signal.SIGCONT)
        assert paddock.wait(timeout=120) == 0
    only(full_tier.sandbox.events(), "file.refused")


# With groups of an administrator.


@pytest.fixture(params=["landlock", "full"])
def given(
    request: pytest.FixtureRequest, sandbox: SandboxRunner, host: dict[str, Any]
) -> Iterator[Callable[..., Limited]]:
    tier = str(request.param)
    if tier == "full":
        need(
            "namespaces",
            host["namespaces"]["usable"],
            f"this machine makes no namespaces: {host['namespaces']}",
        )
    with ExitStack() as stack:

        def give(*trees: str) -> Limited:
            around = stack.enter_context(cgroup_limit.around(sandbox.tester, *trees))
            return Limited(sandbox=replace(sandbox, tier=tier), cgroups=around)

        yield give


UNMAPPED = """
file = os.memfd_create('hog')
for index in range(int(sys.argv[1])):
    os.write(file, block)
    came(index + 1)
print('full')
"""


@pytest.mark.parametrize(
    ("hog", "arguments"),
    [(ANONYMOUS, ()), (SHARED, ()), (UNMAPPED, ()), (MANY_SMALL, ()), (FILES, ("/dev/shm",))],
    ids=["anonymous", "shared", "unmapped", "many-small", "files"],
)
def test_a_group_of_version_1_limits_memory(
    given: Callable[..., Limited], hog: str, arguments: tuple[str, ...]
) -> None:
    limited = given("memory")
    outcome = limited.run(python(REACH + hog, 600, *arguments), memory_mb=100)
    limited.assert_ended(outcome, "memory_mb", 100, "cgroup v1")
    assert limited.cgroups.peak_mb < 200, "with the memory of paddock and the page cache"
    limited.assert_unharmed(limited.run(python(REACH + hog, 200, *arguments)))
    _empty_shared_memory(limited.sandbox)


def _empty_shared_memory(sandbox: SandboxRunner) -> None:
    """In the landlock tier /dev/shm is that of the host."""
    for file in Path("/dev/shm").glob("hog-*"):
        with suppress(FileNotFoundError):  # of another user
            if file.stat().st_uid == sandbox.tester.uid:
                file.unlink()


def test_a_group_of_version_1_limits_processes(given: Callable[..., Limited]) -> None:
    limited = given("pids")
    outcome = limited.run(python(STUBBORN_BOMB), processes=40, wall_s=3)
    assert outcome.started, str(outcome)
    assert outcome.exit_code == 137, str(outcome)
    assert [(met["limit"], met["means"]) for met in limited.met()] == [
        ("wall_s", "watchdog"),
        ("processes", "cgroup v1"),
    ]
    assert limited.cgroups.peak_tasks <= 43
    limited.assert_nothing_left()
    limited.assert_unharmed(limited.run(["sh", "-c", CROWD], processes=80))


@pytest.mark.parametrize(
    ("hierarchy", "means"), [("cpuacct", "cgroup v1"), ("unified", "cgroup v2")]
)
def test_cpu_time_of_a_group_includes_all_processes(
    given: Callable[..., Limited], hierarchy: str, means: str
) -> None:
    """Children without a waiting parent count too. On a hybrid machine the version 2 hierarchy has
    neither memory nor pids. Then only creating, joining, counting, killing and removing a group can
    be tested.
    """
    limited = given(hierarchy)
    forgotten = """
import os, signal, time
print('started', flush=True)
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for round in range(40):
    if os.fork() == 0:
        while time.process_time() < 0.2: pass
        os._exit(0)
    try: os.wait()
    except ChildProcessError: pass
print('full')
"""
    limited.assert_ended(limited.run(python(forgotten), cpu_s=2), "cpu_s", 2, means)
    limited.assert_unharmed(limited.run(["sh", "-c", BURNERS, "30000"], cpu_s=20))


LIFT = """
import os, sys
print('started', flush=True)
group = sys.argv[1]
acts = [(f'{group}/memory.{kind}limit_in_bytes', '-1') for kind in ('memsw.', '')]
for path, text in [*acts, (f'{os.path.dirname(group)}/cgroup.procs', str(os.getpid()))]:
    try:
        with open(path, 'w') as file: file.write(text)
        print('lifted', path)
    except OSError as error:
        print(error.strerror)
"""


@pytest.mark.parametrize("grant", ["/sys/fs/cgroup/**", "/sys/**"])
def test_no_grant_lets_a_command_lift_its_own_limit(
    given: Callable[..., Limited], grant: str
) -> None:
    limited = given("memory")
    sandbox, above = limited.sandbox, limited.cgroups.given["memory"]
    # The name of the group is that of the session. The command does not get it, but could list the
    # directory.
    script = f"import glob, sys\nsys.argv = ['', glob.glob('{above}/paddock-*')[0]]\n{LIFT}"
    flags = (*limited.policy(memory_mb=300), "-a", grant)
    outcome = sandbox.inside(python(script), *flags, prefix=limited.cgroups.prefix(), as_root=True)
    assert outcome.started, str(outcome)
    assert "lifted" not in outcome.stdout, str(outcome)
    assert set(outcome.stdout.splitlines()[1:]) <= {"Permission denied", "Read-only file system"}
    # The control: the same user outside can lift the limit.
    words = ["sh", "-c", "echo started; read line"]
    argv = [*limited.cgroups.prefix(), *sandbox.command(words, *limited.policy(memory_mb=300))]
    starting = sandbox.tester.starting(
        argv, cwd=sandbox.tree.project, stdin=subprocess.PIPE, as_root=True
    )
    with starting as paddock:
        assert paddock.stdout
        assert paddock.stdout.readline() == "started\n"
        (group,) = above.glob("paddock-*")
        lifted = sandbox.outside(python(f"import sys; sys.argv = ['', '{group}']\n{LIFT}"))
        assert f"lifted {group}/memory.limit_in_bytes" in lifted.stdout, str(lifted)
