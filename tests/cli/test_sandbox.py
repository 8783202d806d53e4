"""`paddock sandbox`, and linux mode on the real kernel as an ordinary user, with a control without
a sandbox.
"""

from __future__ import annotations

import io
import json
import os
import socket
import ssl
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from paddock.cli import sandbox as sandbox_command
from paddock.errors import PolicyError, UsageError
from tests.support.clients import serving_site
from tests.support.sandbox import SandboxRunner, Word
from tests.support.tester import Outcome
from tests.support.wsl import FakeWsl
from tests.system.network.certificates import TestAuthority
from tests.unit.executors.test_distro import DIGEST, ROOTFS

ENOSYS = "38"


def sandbox_output(
    sandbox: SandboxRunner, *words: Word, prefix: list[Word] | None = None
) -> Outcome:
    outcome = sandbox.tester.run(
        [*(prefix or []), sandbox.installation.paddock, "sandbox", *words], cwd=sandbox.tree.project
    )
    assert "Traceback" not in outcome.stderr, str(outcome)
    return outcome


def test_modes_are_listed_as_json_and_as_text(sandbox: SandboxRunner) -> None:
    """A-102, A-103, A-130"""
    table = json.loads(sandbox_output(sandbox, "modes", "--json").stdout)
    assert list(table) == ["local", "linux", "windows", "wsl", "container", "ssh"]
    assert {mode for mode, row in table.items() if row["forced_ask"]} == {"local", "wsl", "ssh"}
    assert table["windows"]["reads"] == "everything"
    assert all(
        row["network"] == "open"
        for mode, row in table.items()
        if mode in ("local", "windows", "wsl")
    )
    shown = sandbox_output(sandbox, "modes").stdout
    assert all(f"\n{mode}\n" in f"\n{shown}" for mode in table)


def test_status_shows_which_limits_are_enforced(sandbox: SandboxRunner) -> None:
    """A-106, A-147"""
    linux = sandbox_output(sandbox, "status")
    assert (linux.exit_code, linux.stdout.splitlines()[0]) == (0, "mode: linux")
    assert "writes: limited to the workspace" in linux.stdout
    local = sandbox_output(sandbox, "status", "--mode", "local")
    assert "writes: NOT limited" in local.stdout
    assert json.loads(sandbox_output(sandbox, "status", "--json").stdout)["writes_confined"] is True
    old = sandbox_output(
        sandbox, "status", prefix=[sandbox.programs.oldkernel, "--no-seccomp", ENOSYS, "--"]
    )
    assert old.exit_code == 125
    assert "commands cannot run" in old.stderr


def test_self_test_fails_without_enforcement(sandbox: SandboxRunner) -> None:
    """A-107, A-120: the self test tries a path that the same user can write without a sandbox."""
    held = sandbox_output(sandbox, "selftest")
    assert (held.exit_code, [line.split()[0] for line in held.stdout.splitlines()]) == (
        0,
        ["ok"] * 4,
    ), str(held)
    local = sandbox_output(sandbox, "selftest", "--mode", "local")
    assert local.exit_code == 125
    assert [line.split()[0] for line in local.stdout.splitlines()] == [
        "ok",
        "ok",
        "FAILED",
        "FAILED",
    ]
    old = sandbox_output(
        sandbox, "selftest", prefix=[sandbox.programs.oldkernel, "--no-seccomp", ENOSYS, "--"]
    )
    assert (old.exit_code, old.stdout.splitlines()[0][:2]) == (125, "ok"), str(old)
    assert "FAILED" in old.stdout
    assert list(sandbox.tester.home.glob("paddock-selftest-*")) == []


_SESSIONS = """
import asyncio
from paddock import Sandbox, run_sync
print(run_sync(["echo", "once"]).output["stdout"].head)
async def session():
    async with Sandbox() as sandbox:
        print((await sandbox.run(["echo", "session"])).output["stdout"].head)
asyncio.run(session())
"""


@pytest.mark.parametrize("errno", [ENOSYS, "95"])
def test_a_kernel_with_namespaces_and_no_landlock_runs_sessions(
    full: SandboxRunner, errno: str
) -> None:
    """`paddock run`, the Python API and the self test need the same."""
    old: list[Word] = [full.programs.oldkernel, "--no-landlock", errno, "--"]
    script = full.tree.put(full.tree.root / "sessions.py", _SESSIONS)
    python = full.installation.root / "bin" / "python"
    ran = full.tester.run([*old, python, script], cwd=full.tree.project)
    assert ran.stdout == "b'once\\n'\nb'session\\n'\n", str(ran)
    run = full.outside([*old, full.installation.paddock, "run", "--", "true"])
    assert run.exit_code == 0, str(run)
    tried = sandbox_output(full, "selftest", prefix=old)
    words = [line.split()[0] for line in tried.stdout.splitlines()]
    assert (tried.exit_code, words) == (0, ["ok"] * 4), str(tried)


@pytest.mark.parametrize("act", ["setup", "reset"])
def test_distributions_are_for_windows(sandbox: SandboxRunner, act: str) -> None:
    """A-152"""
    refused = sandbox_output(sandbox, act, "--yes")
    assert (refused.exit_code, refused.stdout, len(refused.stderr.splitlines())) == (2, "", 1), str(
        refused
    )
    assert "which needs Windows; this is linux" in refused.stderr


def test_a_mode_of_another_system_is_refused(sandbox: SandboxRunner) -> None:
    """A-100, A-101"""
    for mode in ("windows", "wsl"):
        refused = sandbox_output(sandbox, "status", "--mode", mode)
        assert (refused.exit_code, refused.stdout) == (125, "")
        assert f"mode {mode} needs Windows" in refused.stderr
    assert sandbox_output(sandbox, "status", "--mode", "x").exit_code == 125
    file = sandbox.tree.put(sandbox.tree.root / "c.json", '{"safety": {"sandbox": {"mode": "x"}}}')
    assert "'x' is not one of" in sandbox_output(sandbox, "status", "--config", file).stderr


_LINUX = """
import asyncio, json, os, sys, warnings
from paddock import LinuxSandbox, LinuxSandboxConfig, SafetyConfig, SandboxConfig, executor_for
from paddock.executors.run import run

async def main():
    outside, workspace = sys.argv[1], sys.argv[2]
    box = LinuxSandbox(LinuxSandboxConfig(workspace=workspace, max_memory_mb=512))
    told = {}
    told["inside"] = (await box.execute("echo x > made && cat made")).stdout
    told["outside"] = (await box.execute(f"echo x > {outside}/by-the-shell")).exit_code
    child = f"python3 -c 'open(\\"{outside}/by-a-child\\", \\"w\\")'"
    told["child"] = (await box.execute(child)).exit_code
    told["temp"] = (await box.execute('f=$(mktemp) && echo x > $f && echo x > /dev/null')).exit_code
    told["code"] = (await box.execute("exit 3")).exit_code
    told["env"] = sorted(line.split("=")[0] for line in (await \
box.execute(["env"])).stdout.splitlines())
    told["given"] = (await box.execute('echo "$GIVEN"', env={"GIVEN": "1"})).stdout
    told["confines"] = box.executor.confines_writes
    told["secret"] = (await box.execute(["cat", sys.argv[3]])).exit_code
    told["where"] = (await box.execute("pwd -P")).stdout.strip()
    hog = await box.execute(["python3", "-c", "x = bytearray(10**9); print('had it')"])
    told["hog"] = [hog.stdout, hog.ok]
    told["after"] = (await box.execute("echo again")).stdout
    await box.dispose()
    os.chdir(workspace)
    here = executor_for(SafetyConfig(sandbox=SandboxConfig()).sandbox)
    told["cwd"] = (await run(here, "pwd -P")).stdout.strip()
    await here.dispose()
    print(json.dumps(told))

asyncio.run(main())
"""


def test_linux_mode_holds_on_this_kernel(sandbox: SandboxRunner) -> None:
    """A-109, A-110, A-112 to A-114, A-117, A-119"""
    tree = sandbox.tree
    outside = tree.put(tree.root / "elsewhere" / "there", "").parent
    control = sandbox.tester.run(["sh", "-c", f"echo x > {outside}/control"])
    assert control.exit_code == 0
    script = tree.put(tree.root / "linux.py", _LINUX)
    python = sandbox.installation.root / "bin" / "python"
    ran = sandbox.tester.run(
        [python, script, outside, tree.project, tree.secret], env={"API_TOKEN": "s3cret"}
    )
    assert ran.exit_code == 0, str(ran)
    result = json.loads(ran.stdout)
    assert (result["inside"], result["temp"], result["code"], result["given"]) == (
        "x\n",
        0,
        3,
        "1\n",
    ), result
    assert result["outside"] != 0
    assert result["child"] != 0
    assert result["secret"] != 0
    assert sorted(path.name for path in outside.iterdir()) == ["control", "there"]
    # The shell sets PWD, SHLVL and _. The profile names the others.
    assert {"PATH", "HOME", "LANG", "TERM"} <= set(result["env"])
    assert "API_TOKEN" not in result["env"]
    assert not {"USER", "LOGNAME", "SHELL"} & set(result["env"])
    assert result["confines"] is True
    assert result["where"] == result["cwd"] == str(tree.project)
    assert result["hog"] == ["", False]
    assert result["after"] == "again\n"


_REACHING = """
import asyncio, sys
from paddock import LinuxSandbox, LinuxSandboxConfig

async def main():
    connect = "import socket; socket.create_connection(('127.0.0.1', %s), 5).close(); \
print('reached')" % sys.argv[1]
    box = LinuxSandbox(LinuxSandboxConfig(policy=sys.argv[2] if len(sys.argv) > 2 else None))
    print((await box.execute(["/usr/bin/python3", "-c", connect])).stdout.strip() or "not reached")
    await box.dispose()

asyncio.run(main())
"""


def test_linux_mode_has_the_network_of_its_policy(full: SandboxRunner) -> None:
    """A-105"""
    tree = full.tree
    script = tree.put(tree.root / "reaching.py", _REACHING)
    policy = tree.put(tree.root / "closed.toml", '[network]\nmode = "none"\n')
    python = full.installation.root / "bin" / "python"
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        for words, wanted in (([port], "reached\n"), ([port, policy], "not reached\n")):
            ran = full.tester.run([python, script, *words], cwd=tree.project)
            assert (ran.exit_code, ran.stdout) == (0, wanted), str(ran)


_LENIENT = """
import asyncio, json, sys, warnings
from paddock import LinuxSandbox, ToolCall, ToolPolicy
from paddock.errors import PaddockError

async def main():
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        box = LinuxSandbox(require_enforced=sys.argv[1] == "strict")
        assert not box.executor.confines_writes, "nothing was measured yet"
        ran = await box.execute("echo ran")
        policy = \
ToolPolicy(require_approval_for_execute=False).confined(box.executor.confines_writes)
    await box.dispose()
    step = policy.check(ToolCall(name="bash", arguments={"command": "ls"}))
    print(json.dumps([ran.outcome.value, ran.stdout, step.action, [str(one.message) for one in \
said]]))

asyncio.run(main())
"""


def test_linux_mode_without_landlock_is_refused_or_asks(sandbox: SandboxRunner) -> None:
    """A-052, A-054, A-115: the result depends on the enforced limits, not on the name of the
    mode.
    """
    tree = sandbox.tree
    script = tree.put(tree.root / "lenient.py", _LENIENT)
    python = sandbox.installation.root / "bin" / "python"

    def look(how: str, *prefix: Word) -> list[object]:
        ran = sandbox.tester.run([*prefix, python, script, how], cwd=tree.project)
        assert ran.exit_code == 0, str(ran)
        answer: list[object] = json.loads(ran.stdout)
        return answer

    old = (sandbox.programs.oldkernel, "--no-seccomp", ENOSYS, "--")
    assert look("strict") == ["exited", "ran\n", "allow", []]
    assert look("lenient") == ["exited", "ran\n", "allow", []]
    assert look("strict", *old)[:2] == ["unavailable", ""]
    outcome, stdout, action, output = look("lenient", *old)
    assert (outcome, stdout, action) == ("exited", "ran\n", "ask")
    assert output == [
        "commands of this session can write outside their workspace: the sandbox is incomplete "
        "on this machine"
    ]


# Windows, as far as Linux can simulate it.


@pytest.fixture
def windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeWsl:
    fake = FakeWsl(tmp_path / "System32")
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setenv("SYSTEMROOT", str(tmp_path))
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "local"))
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    monkeypatch.setattr(ssl, "enum_certificates", lambda store: [], raising=False)
    return fake


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The configuration of a distribution that a server on loopback offers."""
    authority = TestAuthority()
    (tmp_path / "authority.pem").write_bytes(authority.pem)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "authority.pem"))
    site = tmp_path / "site"
    site.mkdir()
    (site / "rootfs").write_bytes(ROOTFS)
    file = tmp_path / "config.json"
    with serving_site(site, context=authority.server("localhost")) as served:
        wsl = {
            "distro": "mine",
            "workspace": "C:\\ws",
            "rootfs_url": f"https://localhost:{served.port}/rootfs",
            "rootfs_sha256": DIGEST,
            "packages": ["git"],
            "package_install_command": f"echo {{packages}} >>{tmp_path}/log",
        }
        file.write_text(json.dumps({"safety": {"sandbox": {"mode": "wsl", "wsl": wsl}}}))
        yield file


def test_setup_flags_win_over_the_configuration(
    windows: FakeWsl, config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A-142, A-144 to A-146, A-150"""
    assert (
        sandbox_command.execute(
            ["setup", "--config", str(config), "--packages", "jq,curl", "--distro", "other"]
        )
        == 0
    )
    assert windows.distros == ["other"]
    assert (tmp_path / "log").read_text() == "jq curl\n"
    assert capsys.readouterr().out.splitlines()[-1] == "other is ready"
    assert sandbox_command.execute(["setup", "--config", str(config), "--distro", "other"]) == 0
    assert "already exists" in capsys.readouterr().out
    assert (tmp_path / "log").read_text() == "jq curl\n"
    assert (
        sandbox_command.execute(["setup", "--config", str(config), "--force", "--distro", "other"])
        == 0
    )
    assert [argv[0] for argv in windows.argv if argv[0] in ("--unregister", "--import")][-2:] == [
        "--unregister",
        "--import",
    ]
    assert (tmp_path / "log").read_text() == "jq curl\ngit\n"


def test_reset_asks_first(
    windows: FakeWsl,
    config: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A-148, A-149, A-151"""
    kept = tmp_path / "workspace"
    kept.write_text("mine")
    with pytest.raises(UsageError, match="removes the distribution"):
        sandbox_command.execute(["reset", "--config", str(config)])

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    for answer in ("n\n", "\n", ""):
        monkeypatch.setattr(sys, "stdin", Terminal(answer))
        assert sandbox_command.execute(["reset", "--config", str(config)]) == 125
    assert windows.calls == []
    monkeypatch.setattr(sys, "stdin", Terminal("y\n"))
    assert sandbox_command.execute(["reset", "--config", str(config)]) == 0
    assert sandbox_command.execute(["reset", "--config", str(config), "--yes"]) == 0
    assert [argv[0] for argv in windows.argv] == [
        "--list", "--import", "-d", "--terminate", "--list", "--unregister", "--import", "-d",
        "--terminate",
    ]  # fmt: skip
    assert kept.read_text() == "mine"


def test_status_looks_into_the_distribution(
    windows: FakeWsl, capsys: pytest.CaptureFixture[str]
) -> None:
    """A-106, A-147"""
    assert sandbox_command.execute(["status", "--mode", "wsl"]) == 125
    assert "the distribution paddock-sandbox does not exist" in capsys.readouterr().err
    (windows.directory / "distros" / "paddock-sandbox").touch()
    assert sandbox_command.execute(["status", "--mode", "wsl", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["works"], found["writes_confined"], found["kernel"]) == (
        True,
        False,
        os.uname().release,
    )
    assert found["python"].startswith("3.")
    assert sandbox_command.execute(["status", "--mode", "wsl"]) == 0
    assert (
        "writes: NOT limited (the distribution, and all drives of Windows"
        in capsys.readouterr().out
    )


def test_a_package_has_to_be_a_plain_name(windows: FakeWsl, config: Path) -> None:
    """A-153"""
    with pytest.raises(UsageError, match="not the name of a package"):
        sandbox_command.execute(["setup", "--config", str(config), "--packages", "a; rm -rf /"])
    with pytest.raises(PolicyError, match="neither a path nor one of"):
        sandbox_command.execute(["setup", "--profile", "arch"])
    assert windows.calls == []


def test_a_configuration_that_a_command_could_have_written_starts_nothing(
    sandbox: SandboxRunner,
) -> None:
    """A configuration names programs that run outside of the sandbox."""
    tree = sandbox.tree
    ran = tree.root / "ran"
    engine = tree.put(tree.project / "engine", f"#!/bin/sh\ntouch {ran}\n")
    engine.chmod(0o755)
    sandboxed = {"mode": "container", "container": {"engine": str(engine), "image": "x"}}
    file = tree.put(tree.project / "agent.json", json.dumps({"safety": {"sandbox": sandboxed}}))
    for act in ("status", "selftest"):
        outcome = sandbox_output(sandbox, act, "--config", file)
        assert outcome.exit_code == 125, str(outcome)
        assert "is not trusted yet" in outcome.stderr, str(outcome)
    assert not ran.exists()
    assert (
        sandbox.tester.run(
            [sandbox.installation.paddock, "trust", file], cwd=tree.project
        ).exit_code
        == 0
    )
    sandbox_output(sandbox, "selftest", "--config", file)
    assert ran.exists(), "the control: after trust it starts"
