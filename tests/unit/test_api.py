"""The public names of the package."""

from __future__ import annotations

import inspect
import subprocess
import sys

import paddock


def test_public_names_are_these() -> None:
    assert paddock.__all__ == [
        "Action", "Approvals", "Bug", "CommandExecutor", "CommandResult", "CommandRule", "Config",
        "ContainerExecutor", "ContainerSandboxConfig", "CoreError", "Decision", "Denial",
        "Effect", "ExecutorError", "FileText", "FileWritten", "HostError", "HostExecutor",
        "HostQuestion", "JournalError", "Limits", "LinuxSandbox", "LinuxSandboxConfig", "Listing",
        "LocalSandbox", "LocalSandboxConfig", "Mode", "Outcome", "PaddockError", "PathRule",
        "PolicyError", "Process", "Question", "Recorder", "Redactor", "Result", "SafetyConfig",
        "Sandbox", "SandboxConfig", "SandboxExecutor", "Scope", "SessionError", "Shell", "Shells",
        "Size", "SshExecutor", "SshSandboxConfig", "Step", "ToolCall", "ToolOutcome", "ToolPolicy",
        "ToolResult", "ToolSpec", "Tools", "UsageError", "Verdict", "WindowsExecutor",
        "WindowsSandboxConfig", "WindowsSubprocessSandbox", "WslDistroSandbox", "WslExecutor",
        "WslSandboxConfig", "__version__", "download_rootfs", "executor_for", "import_distro",
        "is_wsl_available", "list_distros", "load_config", "open_journal", "open_tools",
        "resolve_mode", "run_in_distro", "run_sync", "unregister_distro",
    ]  # fmt: skip
    for name in paddock.__all__:
        assert getattr(paddock, name) is not None
    assert not hasattr(paddock, "nothing")


def test_run_sync_has_this_signature() -> None:
    takes = inspect.signature(paddock.run_sync).parameters
    assert list(takes) == [
        "command", "profile", "policy", "workspace", "executor", "approver", "tier", "cwd", "env",
        "stdin", "tty", "timeout_s", "idle_timeout_s", "on_output", "cap", "spool",
    ]  # fmt: skip
    assert set(inspect.signature(paddock.Sandbox.run).parameters) - {"self"} <= set(takes)
    assert [verdict.value for verdict in paddock.Verdict] == ["once", "session", "deny"]


def test_importing_it_costs_no_start_of_the_command_line() -> None:
    shown = (
        "import sys, paddock; print([name for name in sys.modules if name.startswith('paddock')])"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", shown], capture_output=True, text=True, check=True
    )
    assert loaded.stdout.strip() == "['paddock.errors', 'paddock.version', 'paddock']"


def test_http_modules_are_not_loaded_by_a_run() -> None:
    shown = (
        "import sys, paddock.cli.run, paddock.launch.prepare, paddock.plan, "
        "paddock.policy.formats.toml;"
        "print(*sys.modules)"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", shown], capture_output=True, text=True, check=True
    ).stdout.split()
    assert "paddock.cli.run" in loaded
    heavy = {"h2", "cryptography", "asyncio", "ssl", "paddock.http"}
    assert not heavy & set(loaded)
