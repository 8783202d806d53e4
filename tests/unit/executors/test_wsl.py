"""Commands through wsl.exe: its arguments, and commands that are refused. The contract is in
tests/contract.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from paddock.errors import UsageError
from paddock.executors.interface import Failure, NotStarted
from paddock.executors.run import Outcome, Result, run
from paddock.executors.wsl import WslExecutor, WslWorkspace, decoded
from tests.support.wsl import FakeWsl


@pytest.fixture
def fake(tmp_path: Path) -> FakeWsl:
    return FakeWsl(tmp_path / "windows", "paddock-sandbox", "paddock-ubuntu")


def perform(
    fake: FakeWsl, command: str | list[str], *, distro: str = "paddock-sandbox", **options: Any
) -> Result:
    shell = options.pop("shell", "sh")

    async def once() -> Result:
        workspace = fake.directory / "mnt" / "c" / "ws"
        workspace.mkdir(parents=True, exist_ok=True)
        executor = WslExecutor(
            distro,
            workspace=r"C:\ws",
            shell=shell,
            automount=str(fake.directory / "mnt"),
            program=str(fake.program),
        )
        try:
            return await run(executor, command, timeout_s=60, **options)
        finally:
            await executor.dispose()

    return asyncio.run(once())


def test_command_line_starts_wsl_with_distribution_and_shell(fake: FakeWsl) -> None:
    """A-131, A-132"""
    for shell in ("sh", "bash"):
        assert perform(fake, "echo $0", shell=shell).stdout == f"{shell}\n"
        assert ["-d", "paddock-sandbox", "--", shell, "-c"] in [argv[:5] for argv in fake.argv]


def test_command_text_is_not_on_the_command_line_and_is_parsed_once(fake: FakeWsl) -> None:
    """The shell of the distribution parses the text after ``--`` before ours
    (microsoft/WSL#41598).
    """
    secret = "s3cret"
    result = perform(
        fake, 'x=1; echo "[$x]" `echo 2` "\\"$SECRET\\"" \\$y \'!\'', env={"SECRET": secret}
    )
    assert result.stdout == f'[1] 2 "{secret}" $y !\n', result
    lines = [argv[-1] for argv in fake.argv if "--" in argv]
    assert lines
    assert not any(secret in line or set(line) & set('$`\\"!') for line in lines)


def test_the_variables_of_windows_stay_there(
    fake: FakeWsl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WSLENV", "TOKEN/u")
    monkeypatch.setenv("TOKEN", "s3cret")
    assert perform(fake, 'echo "[$TOKEN]"').stdout == "[]\n"
    assert all(
        "TOKEN" not in call["environment"] and "WSLENV" not in call["environment"]
        for call in fake.calls
    )


def test_a_distribution_that_is_not_there_is_no_failed_command(fake: FakeWsl) -> None:
    result = perform(fake, "echo", distro="other")
    assert (result.outcome, result.exit_code) == (Outcome.UNAVAILABLE, 125)
    assert "this distribution does not exist" in str(result.error)
    assert fake.argv == [["--list", "--quiet"]]
    fake.program.unlink()
    assert perform(fake, "echo").outcome is Outcome.UNAVAILABLE


@pytest.mark.parametrize(
    ("windows", "linux"),
    [
        (r"C:\A b\c", "/mnt/c/A b/c"),
        ("c:/A b/./c/", "/mnt/c/A b/c"),
        (r"D:\x\..\ü", "/mnt/d/ü"),
        ("Z:\\", "/mnt/z"),
        (r"\\?\C:\ws", "/mnt/c/ws"),
    ],
)
def test_a_directory_of_windows_is_below_mnt(windows: str, linux: str) -> None:
    """A-136"""
    assert WslWorkspace(windows).linux == linux


@pytest.mark.parametrize(
    "windows", [r"\\server\share", r"\\wsl$\x\home", "/home/ada", "work", "", "C:\\PROGRA~1"]
)
def test_a_workspace_lies_on_a_drive(windows: str) -> None:
    with pytest.raises(UsageError):
        WslWorkspace(windows)


@pytest.mark.parametrize(
    ("cwd", "linux"),
    [
        (None, "/mnt/c/ws"),
        ("", "/mnt/c/ws"),
        (r"c:\WS\Sub", "/mnt/c/WS/Sub"),
        ("C:/ws/a/../b", "/mnt/c/ws/b"),
        (r"sub\dir", "/mnt/c/ws/sub/dir"),
        ("/mnt/c/ws/x y", "/mnt/c/ws/x y"),
    ],
)
def test_a_directory_inside_is_where_it_runs(cwd: str | None, linux: str) -> None:
    assert WslWorkspace(r"C:\ws").inside(cwd) == linux


@pytest.mark.parametrize(
    "cwd",
    [
        r"C:\other",
        "d:\\ws",
        r"c:\WS\..\other",
        r"C:\ws\sub\..\..\other",
        r"C:\ws-evil",
        r"C:\wS-evil\x",
        "C:/ws-evil",
        r"\\?\C:\ws-evil",
        r"\\server\share",
        r"\ws",
        "C:",
        "c:other",
        "..",
        r"sub\..\..",
        "../ws-evil",
        "/mnt/c/ws-evil",
        "/mnt/c/ws/../ws-evil",
        "/mnt/c",
        "/etc",
        "/",
        r"C:\ws\LONGNA~1",
    ],
)
def test_a_directory_outside_is_an_error_and_nothing_runs(fake: FakeWsl, cwd: str) -> None:
    """A-135"""
    with pytest.raises(NotStarted) as refused:
        WslWorkspace(r"C:\ws").inside(cwd)
    assert refused.value.failure is Failure.NO_DIRECTORY
    result = perform(fake, "echo ran", cwd=cwd)
    assert (result.outcome, result.exit_code, result.stdout) == (Outcome.FAILED, 125, "")
    assert fake.argv == []


def test_a_process_that_cannot_be_ended_is_reported(fake: FakeWsl) -> None:
    async def look() -> None:
        executor = WslExecutor(
            workspace=r"C:\ws", automount=str(fake.directory / "mnt"), program=str(fake.program)
        )
        (fake.directory / "mnt" / "c" / "ws").mkdir(parents=True)
        assert (await run(executor, "true", timeout_s=60)).ok
        fake.program.unlink()
        assert await executor.dispose() == (
            "wsl: paddock-sandbox: cannot end the processes that still run there",
        )
        assert await executor.dispose() == ()

    asyncio.run(look())


@pytest.mark.parametrize("name", ["", "-x", "a b", "a;b", "a\nb", 'a"'])
def test_invalid_names_are_refused(name: str) -> None:
    with pytest.raises(UsageError):
        WslExecutor(name, workspace=r"C:\ws")
    with pytest.raises(UsageError):
        WslExecutor(shell=name, workspace=r"C:\ws")


def test_output_of_wsl_is_decoded_in_both_encodings() -> None:
    assert decoded("Ubuntu\r\n".encode("utf-16-le")) == decoded(b"Ubuntu\r\n") == "Ubuntu\r\n"
    assert decoded("\ufeffÜ".encode("utf-16-le")) == "Ü"


def test_wsl_does_not_count_as_confined(fake: FakeWsl) -> None:
    """A-051"""
    assert not WslExecutor(workspace=r"C:\ws", program=str(fake.program)).confines_writes
