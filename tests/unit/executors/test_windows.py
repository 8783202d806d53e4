"""Commands on Windows: the order of the calls and the bytes of each structure, with fake libraries
that record calls. If available, the headers of Windows check the structures, and Wine runs the
calls.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from paddock.errors import HostError
from paddock.executors.run import Outcome, Result, run
from paddock.executors.win32 import (
    Accounting,
    MandatoryLabel,
    ProcessInformation,
    StartupInfo,
    job_limits,
)
from paddock.executors.windows import WindowsExecutor
from paddock.testing.executor import CHECKS, ExecutorUnderTest, perform
from tests.support.features import need, need_program
from tests.support.win32 import FakeWindows

SOURCE = Path(__file__).parents[2] / "support" / "windows" / "job.c"
LIMITS = "00" * 16 + "08260000" + "00" * 20 + "0a" + "00" * 79 + "00000020" + "00" * 20
LABEL = (0x20, bytes.fromhex("010100000000001000100000"))
PREPARED = [
    "GetCurrentProcess", "OpenProcessToken", "DuplicateTokenEx", "CloseHandle",
    "ConvertStringSidToSidW", "GetLengthSid", "SetTokenInformation", "LocalFree",
    "GetTokenInformation", "GetSidSubAuthority",
]  # fmt: skip
STARTED = [
    "CreateJobObjectW", "SetInformationJobObject", *["SetHandleInformation"] * 3,
    *["InitializeProcThreadAttributeList"] * 2, "UpdateProcThreadAttribute", "CreateProcessAsUserW",
    "DeleteProcThreadAttributeList", "AssignProcessToJobObject", "ResumeThread",
]  # fmt: skip


class Machine:
    """A fake Windows, and the arguments of icacls."""

    def __init__(self, workspace: Path, **how: Any) -> None:
        self.workspace = workspace
        self.fake = FakeWindows(**how)
        self.stamped: list[list[str]] = []
        self.stamp_code = 0

    def call(self, argv: Sequence[str]) -> int:
        self.stamped.append(list(argv))
        return self.stamp_code

    def executor(self, **options: Any) -> WindowsExecutor:
        given = {"shell": ("/bin/sh", "-c"), "workspace": self.workspace, **options}
        return WindowsExecutor(
            libraries=self.fake.libraries, pipes=self.fake, call=self.call, **given
        )

    def run(self, command: str | list[str], **options: Any) -> Result:
        async def once() -> Result:
            executor = self.executor(**options)
            try:
                return await run(executor, command, timeout_s=60)
            finally:
                assert await executor.dispose() == ()

        return asyncio.run(once())


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_windows_calls_happen_in_this_order(machine: Machine) -> None:
    """A-121 to A-124: the process is in its job and at low integrity before it runs."""
    assert machine.run("exit 3").exit_code == 3
    calls = [name for name in machine.fake.calls if name != "CloseHandle"]
    wanted = [name for name in PREPARED if name != "CloseHandle"] + STARTED
    assert calls[: len(wanted)] == wanted
    assert machine.fake.calls[: len(PREPARED)] == PREPARED
    assert machine.fake.open_handles == 0
    (created,) = machine.fake.created
    assert (created.flags, created.token is not None, created.job is not None) == (
        0x8080404,
        True,
        True,
    )
    assert created.inherited == created.standard


def test_job_gets_these_limits(machine: Machine) -> None:
    """A-121, A-122, A-123, A-165: job memory, active processes, kill on close; no breaking away."""
    machine.run("true")
    assert [limits.hex() for limits in machine.fake.limits] == [LIMITS]
    other = Machine(machine.workspace)
    other.run("true", max_memory_mb=3, max_processes=7)
    assert other.fake.limits == [bytes(job_limits(memory_mb=3, processes=7))]
    assert other.fake.limits[0][40] == 7
    assert int.from_bytes(other.fake.limits[0][120:128], "little") == 3 * 1024 * 1024


def test_token_gets_this_label(machine: Machine) -> None:
    """A-124"""
    machine.run("true")
    assert machine.fake.labels == [LABEL]


def test_the_workspace_is_labelled_and_afterwards_is_not(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A-125"""
    monkeypatch.setenv("SYSTEMROOT", r"D:\Win")
    machine.run("true")
    icacls, here = r"D:\Win\System32\icacls.exe", str(machine.workspace)
    assert machine.stamped == [
        [icacls, here, "/setintegritylevel", "(OI)(CI)Low"],
        [icacls, here, "/setintegritylevel", "(OI)(CI)Medium"],
    ]


def test_without_low_integrity_the_job_stays(machine: Machine) -> None:
    """A-127, A-054"""

    async def look() -> None:
        executor = machine.executor(use_low_integrity=False)
        assert not executor.confines_writes
        assert (await run(executor, "exit 4")).exit_code == 4
        await executor.dispose()

    asyncio.run(look())
    assert machine.stamped == []
    assert machine.fake.labels == []
    assert "CreateProcessW" in machine.fake.calls
    assert [limits.hex() for limits in machine.fake.limits] == [LIMITS]


@pytest.mark.parametrize(
    "how",
    [
        {"failing": {"SetTokenInformation": 5}},
        {"failing": {"DuplicateTokenEx": 5}},
        {"failing": {"OpenProcessToken": 5}},
        {"lies": True},
        {"stamp": 1},
    ],
)
def test_a_missing_windows_mechanism_is_refused_or_warned_about(
    tmp_path: Path, how: dict[str, Any]
) -> None:
    """A-126, A-054: also if the call only reports success."""
    code = how.pop("stamp", 0)

    def machine() -> Machine:
        made = Machine(tmp_path, **how)
        made.stamp_code = code
        return made

    with pytest.raises(HostError, match="limit where commands write"):
        machine().executor()
    less = machine()
    with pytest.warns(RuntimeWarning, match="can write everywhere"):
        executor = less.executor(require_enforced=False)
    assert not executor.confines_writes
    assert less.fake.open_handles == 0


@pytest.mark.parametrize(
    "call", ["CreateJobObjectW", "SetInformationJobObject", "AssignProcessToJobObject"]
)
def test_a_command_that_is_in_no_job_does_not_run(machine: Machine, call: str) -> None:
    machine.fake.failing[call] = 5
    result = machine.run(f"touch {machine.workspace}/ran")
    assert result.exit_code in (125, 126), result
    assert result.error
    assert not (machine.workspace / "ran").exists()
    assert machine.fake.open_handles == 0
    del machine.fake.failing[call]
    machine.run(f"touch {machine.workspace}/ran")
    assert (machine.workspace / "ran").exists()


def test_a_line_is_for_cmd_and_a_batch_file_for_cmd_alone(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SYSTEMROOT", r"C:\Windows")
    assert (
        machine.run('echo "a b" & exit 1', shell=None).outcome is Outcome.FAILED
    )  # Linux has none
    assert machine.fake.lines == [r'"C:\Windows\System32\cmd.exe" /d /s /c "echo "a b" & exit 1"']
    for name in ("x.bat", r"C:\ws\X.CMD", "x.bat. ."):
        refused = machine.run([name, "&calc"])
        assert (refused.outcome, refused.exit_code) == (Outcome.FAILED, 126)
    assert len(machine.fake.lines) == 1


def test_the_environment_is_made_and_not_taken_over(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("API_TOKEN", "s3cret")
    monkeypatch.setenv("LOCALAPPDATA", str(machine.workspace / "Local"))
    machine.run("true", env={"GIVEN": "ü"})
    environment = machine.fake.created[0].environment
    assert environment["GIVEN"] == "ü"
    assert environment["TEMP"] == environment["TMP"] == f"{machine.workspace}/LocalLow\\Temp"
    assert "API_TOKEN" not in environment


@asynccontextmanager
async def _place(machine: Machine) -> AsyncIterator[ExecutorUnderTest]:
    executor = machine.executor(max_processes=1000)
    try:
        yield ExecutorUnderTest(
            executor=executor,
            workspace=machine.workspace,
            inside=str(machine.workspace),
            has_terminals=False,
        )
    finally:
        assert await executor.dispose() == ()


def test_windows_executor_keeps_the_contract(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    """The whole contract without signals, which Windows does not have."""
    names = [name for name in CHECKS if name != "death by a signal is not success"]
    assert len(names) == len(CHECKS) - 1
    held = asyncio.run(perform(lambda: _place(machine), names))
    reported = capsys.readouterr().out
    assert held, reported
    assert machine.fake.open_handles == 0


_AS_ON_WINDOWS = """
import signal, sys
for name in ("fcntl", "termios", "pwd", "grp", "resource"):
    sys.modules[name] = None
for name in ("SIGKILL", "SIGSTOP", "SIGHUP"):
    delattr(signal, name)
import paddock.executors.wsl, paddock.executors.distro, paddock.executors.background_shells, \
paddock.executors.windows
print("imported")
"""


def test_windows_executor_imports_no_unix_module() -> None:
    """The same holds for the WSL executor, which runs on Windows too."""
    shown = subprocess.run([sys.executable, "-c", _AS_ON_WINDOWS], capture_output=True, text=True)
    assert (shown.stdout, shown.stderr) == ("imported\n", "")


def test_windows_executor_is_refused_on_other_systems(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="not Windows"):
        WindowsExecutor(workspace=tmp_path)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = need_program("x86_64-w64-mingw32-gcc")
    program = tmp_path_factory.mktemp("windows") / "job.exe"
    command = [
        compiler,
        "-Wall",
        "-Werror",
        "-D_WIN32_WINNT=0x0A00",
        "-o",
        str(program),
        str(SOURCE),
        "-ladvapi32",
    ]
    subprocess.run(command, check=True)
    return program


@pytest.fixture(scope="module")
def answers(built: Path) -> Iterator[list[list[str]]]:
    wine = Path("/usr/lib/wine/wine64")
    need("wine", wine.exists(), "no wine on this machine")
    with _prefix(built.parent) as environment:
        output = subprocess.run(
            [wine, built],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
        )
        yield [line.split() for line in output.stdout.splitlines()]


@contextmanager
def _prefix(directory: Path) -> Iterator[dict[str, str]]:
    quiet = {"WINEDEBUG": "-all", "WINEARCH": "win64", "WINEDLLOVERRIDES": "mscoree=;mshtml="}
    environment = {
        "HOME": str(directory),
        "PATH": os.environ["PATH"],
        "WINEPREFIX": f"{directory}/prefix",
        **quiet,
    }
    try:
        yield environment
    finally:
        subprocess.run(
            ["/usr/lib/wine/wineserver64", "--kill", "--wait"], env=environment, timeout=60
        )


def test_the_structures_are_those_of_windows_headers(answers: list[list[str]]) -> None:
    """A-121, A-124: compares the bytes."""
    theirs = {words[1]: words[2] for words in answers if words[0] == "bytes"}
    startup = StartupInfo(
        cb=112, dwFlags=0x100, hStdInput=1, hStdOutput=2, hStdError=3, lpAttributeList=4
    )
    ours = {
        "limits": bytes(job_limits(memory_mb=512, processes=10)).hex(),
        "startup": bytes(startup).hex(),
        "label": bytes(MandatoryLabel(5, 0x20)).hex(),
        "sid": LABEL[1].hex(),
    }
    assert theirs == ours
    assert theirs["limits"] == LIMITS
    sizes = [ctypes.sizeof(ProcessInformation), ctypes.sizeof(Accounting), Accounting.active.offset]
    assert ["size", *map(str, sizes)] in answers
    assert ["flags", "8080404", "20002", "8b", "19"] in answers


def test_the_calls_succeed_under_wine(answers: list[list[str]]) -> None:
    """A-121 to A-124. Wine enforces the end of a job but no limit. It accepts the integrity level
    and ignores it.
    """
    assert [words for words in answers if words[0] == "no"] == []
    held = [" ".join(words[1:-1]) for words in answers if words[0] == "ok"]
    assert held[-2:] == ["still running", "ended with its job"]
    assert {"SetInformationJobObject", "SetTokenInformation", "CreateProcessAsUserW"} <= set(held)
    assert ["integrity", "1000"] not in answers
