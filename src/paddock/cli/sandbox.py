"""paddock sandbox modes | status | selftest | setup | reset"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shlex
import shutil
import sys
import tempfile
from dataclasses import asdict, replace

from paddock.cli.options import Parser
from paddock.cli.terminal_output import complain, say
from paddock.errors import EXIT_PADDOCK, ExecutorError, PaddockError, UsageError
from paddock.executors.interface import CommandExecutor
from paddock.executors.modes import GUARANTEES, executor_for, resolve_mode
from paddock.executors.run import run
from paddock.policy import Origin
from paddock.policy.formats.executor_modes import Mode, SandboxConfig, WslSandboxConfig, wsl_profile
from paddock.policy.formats.safety_config import read_safety_config

EXIT_NOT_HERE = 2
_ABOUT = "uname -r; python3 --version 2>/dev/null || true"


def execute(arguments: list[str]) -> int:
    parser = Parser("sandbox", "Show where an agent's commands run, and what restricts them there.")
    add = parser.add_argument
    add("act", choices=("modes", "status", "selftest", "setup", "reset"))
    add("--json", action="store_true", help="modes, status: print JSON")
    add(
        "--mode",
        choices=[mode.value for mode in Mode],
        help="use this mode instead of the configured one",
    )
    add("--config", metavar="FILE", help="read this JSON file, which has a safety.sandbox object")
    add(
        "--profile",
        metavar="NAME",
        help="setup, reset: use this distribution, by name (alpine-base, ubuntu-base) or file",
    )
    add("--distro", metavar="NAME", help="setup, reset: give the distribution this name")
    add("--packages", metavar="A,B", help="setup, reset: install these packages in it")
    add(
        "--force",
        action="store_true",
        help="setup: remove an existing distribution, and create it again",
    )
    add("--yes", action="store_true", help="reset: do not ask for confirmation")
    options = parser.parse_args(arguments)
    if options.act in ("setup", "reset") and sys.platform != "win32":
        complain(
            f"sandbox {options.act} creates a WSL distribution, which needs Windows; this is "
            f"{sys.platform}"
        )
        return EXIT_NOT_HERE
    match options.act:
        case "modes":
            return _modes(as_json=options.json)
        case "status":
            return asyncio.run(_status(_config(options), as_json=options.json))
        case "selftest":
            return asyncio.run(_selftest(_config(options)))
        case "setup":
            return _set_up(_config(options).wsl, force=options.force)
        case _:
            return _reset(_config(options).wsl, sure=options.yes)


def _config(options: argparse.Namespace) -> SandboxConfig:
    """Flags override the file, and the file overrides its profile."""
    origin, config = _origin(), SandboxConfig()
    if options.config is not None:
        config = _named(options.config, origin)
    wsl = config.wsl if options.profile is None else wsl_profile(options.profile, origin)
    if options.distro is not None:
        wsl = replace(wsl, distro=options.distro)
    if options.packages is not None:
        wsl = replace(wsl, packages=tuple(filter(None, options.packages.split(","))))
    return replace(
        config, wsl=wsl, mode=config.mode if options.mode is None else Mode(options.mode)
    )


def _modes(*, as_json: bool) -> int:
    table = {
        mode.value: {**asdict(held), "forced_ask": held.forced_ask}
        for mode, held in GUARANTEES.items()
    }
    if as_json:
        say(json.dumps(table))
        return 0
    for mode, held in GUARANTEES.items():
        say(f"{mode.value}")
        say(f"  writes   {held.where}{'' if held.writes else ' (not enforced)'}")
        say(f"  reads    {held.reads}")
        say(f"  limits   {held.limits}")
        say(f"  network  {held.network}")
        say(
            "  asked    "
            + (
                "about every command, if allowed_paths is set"
                if held.forced_ask
                else "as the policy says"
            )
        )
    say(
        "auto       linux on Linux, windows on Windows; refused on other systems, which have no "
        "sandbox"
    )
    return 0


async def _status(config: SandboxConfig, *, as_json: bool) -> int:
    """The properties measured on this machine, not those that the mode promises."""
    mode = resolve_mode(config.mode, require_enforced=config.require_enforced)
    found: dict[str, object] = {"mode": mode.value}
    try:
        found |= (
            _distro_facts(config.wsl) if mode is Mode.WSL else await _executor_facts(config, mode)
        )
    except PaddockError as error:
        found |= {"works": False, "refusal": error.message}
    if as_json:
        say(json.dumps(found))
    else:
        _print_status(mode, found)
    return 0 if found["works"] else EXIT_PADDOCK


def _distro_facts(config: WslSandboxConfig) -> dict[str, object]:
    from paddock.executors.distro import list_distros, run_in_distro

    if config.distro not in list_distros():
        raise ExecutorError(
            f"the distribution {config.distro} does not exist; type `paddock sandbox setup` to "
            "create it"
        )
    ran = run_in_distro(config.distro, _ABOUT, shell=config.shell)
    kernel, _, python = ran.stdout.partition("\n")
    found: dict[str, object] = {
        "works": ran.ok,
        "place": f"wsl: {config.distro}",
        "writes_confined": False,
    }
    return {**found, "kernel": kernel, "python": python.strip().removeprefix("Python ") or None}


async def _executor_facts(config: SandboxConfig, mode: Mode) -> dict[str, object]:
    executor = executor_for(config)
    try:
        of_windows = mode is Mode.WINDOWS or (mode is Mode.LOCAL and sys.platform == "win32")
        result = await run(executor, "ver" if of_windows else _ABOUT, timeout_s=120)
        if result.error is not None:
            raise ExecutorError(result.error)
        found: dict[str, object] = {"works": result.ok, "place": executor.name}
        kernel = result.stdout.strip().partition("\n")[0]
        return {**found, "writes_confined": executor.confines_writes, "kernel": kernel}
    finally:
        await executor.dispose()


def _print_status(mode: Mode, found: dict[str, object]) -> None:
    say(f"mode: {mode.value}")
    if not found["works"]:
        complain(f"commands cannot run: {found.get('refusal') or 'the test command failed'}")
        return
    held = GUARANTEES[mode]
    say(f"place: {found['place']}, kernel {found['kernel']}")
    if "python" in found:
        say(f"python: {found['python'] or 'none'}")
    if found["writes_confined"]:
        say(f"writes: limited to {held.where}")
    else:
        say(
            f"writes: NOT limited ({held.where}); if allowed_paths is set, Paddock asks about "
            "each bash command"
        )
    say(f"reads: {held.reads}")
    say(f"limits: {held.limits}")
    say(f"network: {held.network}")


async def _selftest(config: SandboxConfig) -> int:
    """Writes in the workspace and in a directory beside it that belongs to the same user. Without a
    sandbox the second write succeeds; in the sandbox it must fail.
    """
    home = os.path.expanduser("~")
    scratch_dir = tempfile.mkdtemp(prefix="paddock-selftest-", dir=home)
    workspace, outside = (
        os.path.join(scratch_dir, "workspace"),
        os.path.join(scratch_dir, "outside"),
    )
    for directory in (workspace, outside):
        os.mkdir(directory)
    try:
        executor = executor_for(_working_in(config, workspace))
        bare = executor_for(SandboxConfig(mode=Mode.LOCAL))
        try:
            held = [
                await _writes(
                    bare,
                    os.path.join(outside, "control"),
                    True,
                    "without a sandbox: written outside",
                ),
                await _writes(
                    executor, os.path.join(workspace, "inside"), True, "written in the workspace"
                ),
                await _writes(
                    executor, os.path.join(outside, "by-the-shell"), False, "not written outside"
                ),
                await _by_a_child(executor, os.path.join(outside, "by-a-child")),
            ]
        finally:
            await executor.dispose()
            await bare.dispose()
    finally:
        shutil.rmtree(scratch_dir, ignore_errors=True)
    return 0 if all(held) else EXIT_PADDOCK


def _working_in(config: SandboxConfig, workspace: str) -> SandboxConfig:
    return replace(
        config,
        linux=replace(config.linux, workspace=workspace),
        windows=replace(config.windows, workspace=workspace),
        wsl=replace(config.wsl, workspace=workspace),
        container=replace(config.container, workspace=workspace),
    )


async def _writes(executor: CommandExecutor, path: str, wanted: bool, claim: str) -> bool:
    """The shell writes; the check reads from outside."""
    line = f'echo x> "{path}"' if sys.platform == "win32" else f"echo x > {shlex.quote(path)}"
    result = await run(executor, line, timeout_s=120)
    return _print_claim(
        claim, (os.path.exists(path) is wanted) and result.error is None, result.error
    )


async def _by_a_child(executor: CommandExecutor, path: str) -> bool:
    line = (
        f'cmd /c copy NUL "{path}"'
        if sys.platform == "win32"
        else f"sh -c 'touch \"$0\"' {shlex.quote(path)}"
    )
    result = await run(executor, line, timeout_s=120)
    return _print_claim(
        "not written outside by a child",
        not os.path.exists(path) and result.error is None,
        result.error,
    )


def _print_claim(claim: str, held: bool, error: str | None) -> bool:
    say(f"{'ok' if held else 'FAILED'}  {claim}{f': {error}' if error else ''}")
    return held


def _set_up(config: WslSandboxConfig, *, force: bool) -> int:
    from paddock.executors.distro import set_up

    if not set_up(config, force=force, say=say):
        say(
            f"{config.distro} already exists; type `paddock sandbox setup --force` to create it "
            "again"
        )
        return 0
    say(f"{config.distro} is ready")
    return 0


def _reset(config: WslSandboxConfig, *, sure: bool) -> int:
    if not sure:
        if not sys.stdin.isatty():
            raise UsageError(
                "reset removes the distribution and all its files",
                hint="without a terminal, type `paddock sandbox reset --yes`",
            )
        sys.stderr.write(
            f"paddock: {config.distro} and all files in it will be removed. The workspace stays. "
            "[y/N] "
        )
        sys.stderr.flush()
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            complain("nothing was changed")
            return EXIT_PADDOCK
    return _set_up(config, force=True)


def _named(path: str, origin: Origin) -> SandboxConfig:
    """The file names programs that run outside of the sandbox. If a command could have written it,
    the user must trust it first.
    """
    if sys.platform != "win32":
        from paddock.policy.formats.agent_config import load_config

        return load_config(path, origin=origin).sandbox or SandboxConfig()
    try:
        with open(path, encoding="utf-8") as file:
            return read_safety_config(file.read(), path, origin).sandbox
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from None


def _origin() -> Origin:
    if sys.platform != "win32":
        return Origin.of_process()
    home, user = os.path.expanduser("~"), os.environ.get("USERNAME", "")
    return Origin(
        cwd=os.getcwd(), uid=-1, user=user, home=home, environ=dict(os.environ), machine="x86_64"
    )
