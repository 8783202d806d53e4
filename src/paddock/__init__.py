"""Paddock: run an AI agent inside a sandbox that the kernel enforces."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paddock.errors import (
    Bug,
    CoreError,
    ExecutorError,
    HostError,
    JournalError,
    PaddockError,
    PolicyError,
    SessionError,
    UsageError,
)
from paddock.version import __version__

if TYPE_CHECKING:
    from paddock.approve import HostQuestion, Question, Verdict
    from paddock.approve.tool_approvals import Approvals
    from paddock.core.redact import Redactor
    from paddock.executors.background_shells import Shell, Shells
    from paddock.executors.container import ContainerExecutor
    from paddock.executors.denials import Denial
    from paddock.executors.distro import (
        download_rootfs,
        import_distro,
        is_wsl_available,
        list_distros,
        run_in_distro,
        unregister_distro,
    )
    from paddock.executors.host import HostExecutor
    from paddock.executors.interface import CommandExecutor, Process, Size
    from paddock.executors.modes import (
        LinuxSandbox,
        LocalSandbox,
        WindowsSubprocessSandbox,
        WslDistroSandbox,
        executor_for,
        resolve_mode,
    )
    from paddock.executors.run import Outcome, Result
    from paddock.executors.sandbox import SandboxExecutor
    from paddock.executors.ssh import SshExecutor
    from paddock.executors.windows import WindowsExecutor
    from paddock.executors.wsl import WslExecutor
    from paddock.journal.recorder import Recorder
    from paddock.policy.formats.agent_config import Config, load_config
    from paddock.policy.formats.executor_modes import (
        ContainerSandboxConfig,
        LinuxSandboxConfig,
        LocalSandboxConfig,
        Mode,
        SandboxConfig,
        SshSandboxConfig,
        WindowsSandboxConfig,
        WslSandboxConfig,
    )
    from paddock.policy.formats.safety_config import SafetyConfig
    from paddock.policy.model import Action, CommandRule, Effect, PathRule
    from paddock.session.run_sync import run_sync
    from paddock.session.sandbox import Sandbox
    from paddock.session.tools import open_journal, open_tools
    from paddock.tools.commands import CommandResult
    from paddock.tools.dispatch import Tools
    from paddock.tools.file_tools import Limits
    from paddock.tools.policy.calls import ToolCall, ToolSpec
    from paddock.tools.policy.tool_policy import Decision, Scope, Step, ToolPolicy
    from paddock.tools.result import FileText, FileWritten, Listing, ToolOutcome, ToolResult

__all__ = [
    "Action",
    "Approvals",
    "Bug",
    "CommandExecutor",
    "CommandResult",
    "CommandRule",
    "Config",
    "ContainerExecutor",
    "ContainerSandboxConfig",
    "CoreError",
    "Decision",
    "Denial",
    "Effect",
    "ExecutorError",
    "FileText",
    "FileWritten",
    "HostError",
    "HostExecutor",
    "HostQuestion",
    "JournalError",
    "Limits",
    "LinuxSandbox",
    "LinuxSandboxConfig",
    "Listing",
    "LocalSandbox",
    "LocalSandboxConfig",
    "Mode",
    "Outcome",
    "PaddockError",
    "PathRule",
    "PolicyError",
    "Process",
    "Question",
    "Recorder",
    "Redactor",
    "Result",
    "SafetyConfig",
    "Sandbox",
    "SandboxConfig",
    "SandboxExecutor",
    "Scope",
    "SessionError",
    "Shell",
    "Shells",
    "Size",
    "SshExecutor",
    "SshSandboxConfig",
    "Step",
    "ToolCall",
    "ToolOutcome",
    "ToolPolicy",
    "ToolResult",
    "ToolSpec",
    "Tools",
    "UsageError",
    "Verdict",
    "WindowsExecutor",
    "WindowsSandboxConfig",
    "WindowsSubprocessSandbox",
    "WslDistroSandbox",
    "WslExecutor",
    "WslSandboxConfig",
    "__version__",
    "download_rootfs",
    "executor_for",
    "import_distro",
    "is_wsl_available",
    "list_distros",
    "load_config",
    "open_journal",
    "open_tools",
    "resolve_mode",
    "run_in_distro",
    "run_sync",
    "unregister_distro",
]

# Imported on first use. The command line starts a new process for every run and does not need them.
_LAZY = {
    "Action": "paddock.policy.model",
    "CommandExecutor": "paddock.executors.interface",
    "CommandResult": "paddock.tools.commands",
    "CommandRule": "paddock.policy.model",
    "Config": "paddock.policy.formats.agent_config",
    "ContainerExecutor": "paddock.executors.container",
    "ContainerSandboxConfig": "paddock.policy.formats.executor_modes",
    "Decision": "paddock.tools.policy.tool_policy",
    "Denial": "paddock.executors.denials",
    "Approvals": "paddock.approve.tool_approvals",
    "Effect": "paddock.policy.model",
    "FileText": "paddock.tools.result",
    "FileWritten": "paddock.tools.result",
    "HostExecutor": "paddock.executors.host",
    "HostQuestion": "paddock.approve",
    "Limits": "paddock.tools.file_tools",
    "LinuxSandbox": "paddock.executors.modes",
    "LinuxSandboxConfig": "paddock.policy.formats.executor_modes",
    "Listing": "paddock.tools.result",
    "LocalSandbox": "paddock.executors.modes",
    "LocalSandboxConfig": "paddock.policy.formats.executor_modes",
    "Mode": "paddock.policy.formats.executor_modes",
    "Outcome": "paddock.executors.run",
    "PathRule": "paddock.policy.model",
    "Process": "paddock.executors.interface",
    "Question": "paddock.approve",
    "Recorder": "paddock.journal.recorder",
    "Redactor": "paddock.core.redact",
    "Result": "paddock.executors.run",
    "SafetyConfig": "paddock.policy.formats.safety_config",
    "Sandbox": "paddock.session.sandbox",
    "SandboxConfig": "paddock.policy.formats.executor_modes",
    "SandboxExecutor": "paddock.executors.sandbox",
    "Scope": "paddock.tools.policy.tool_policy",
    "Shell": "paddock.executors.background_shells",
    "Shells": "paddock.executors.background_shells",
    "Size": "paddock.executors.interface",
    "SshExecutor": "paddock.executors.ssh",
    "SshSandboxConfig": "paddock.policy.formats.executor_modes",
    "Step": "paddock.tools.policy.tool_policy",
    "ToolCall": "paddock.tools.policy.calls",
    "ToolOutcome": "paddock.tools.result",
    "ToolPolicy": "paddock.tools.policy.tool_policy",
    "ToolResult": "paddock.tools.result",
    "ToolSpec": "paddock.tools.policy.calls",
    "Tools": "paddock.tools.dispatch",
    "Verdict": "paddock.approve",
    "WindowsExecutor": "paddock.executors.windows",
    "WindowsSandboxConfig": "paddock.policy.formats.executor_modes",
    "WindowsSubprocessSandbox": "paddock.executors.modes",
    "WslDistroSandbox": "paddock.executors.modes",
    "WslExecutor": "paddock.executors.wsl",
    "WslSandboxConfig": "paddock.policy.formats.executor_modes",
    "download_rootfs": "paddock.executors.distro",
    "executor_for": "paddock.executors.modes",
    "import_distro": "paddock.executors.distro",
    "is_wsl_available": "paddock.executors.distro",
    "list_distros": "paddock.executors.distro",
    "load_config": "paddock.policy.formats.agent_config",
    "open_journal": "paddock.session.tools",
    "open_tools": "paddock.session.tools",
    "resolve_mode": "paddock.executors.modes",
    "run_in_distro": "paddock.executors.distro",
    "run_sync": "paddock.session.run_sync",
    "unregister_distro": "paddock.executors.distro",
}


# Names that other agent frameworks use.
_ALIASES = {"SafetyPolicy": ("paddock.tools.policy.tool_policy", "ToolPolicy")}


def __getattr__(name: str) -> object:
    if name not in _LAZY and name not in _ALIASES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    module, attribute = _ALIASES.get(name) or (_LAZY[name], name)
    return getattr(importlib.import_module(module), attribute)
