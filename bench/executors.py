"""Times the commands of a session: 1,000 one after the other, and 100 at once.

The same commands run in the sandbox, with bare asyncio, with the sandlock library in process, and
with `podman exec`.

    .venv/bin/python bench/executors.py [--quick]

All but podman run as an unprivileged user. Podman runs as root, in a busybox container that exists
already, as the session does. The start alone is timed too, until `spawn` returns, against
posix_spawn. Exits 1 when that budget is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
BUDGET_MS = 1.5
TRUE = ["/bin/true"]
MANY, AT_ONCE, PODMAN = 1000, 100, 50
Once = Callable[[], Awaitable[None]]
Taken = dict[str, dict[str, list[float]]]


async def _bare() -> None:
    pipe, null = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(*TRUE, stdin=null, stdout=pipe, stderr=pipe)
    await process.communicate()
    assert process.returncode == 0


async def _measure(once: Once, many: int) -> tuple[list[float], float]:
    """Milliseconds of each command, and of a hundred together."""
    taken = []
    for _ in range(many):
        began = time.perf_counter()
        await once()
        taken.append((time.perf_counter() - began) * 1000)
    began = time.perf_counter()
    await asyncio.gather(*(once() for _ in range(AT_ONCE)))
    return taken, (time.perf_counter() - began) * 1000


async def _fenced(tier: str, workspace: str, many: int) -> Taken:
    from paddock import SandboxExecutor
    from paddock.executors.run import run
    from paddock.policy.command_line import Request
    from paddock.policy.model import Tier

    executor = SandboxExecutor(
        Request(profiles=("ai-agent",), tier=Tier(tier)), workspace=workspace
    )

    async def once() -> None:
        assert (await run(executor, TRUE)).exit_code == 0

    try:
        await once()  # makes the plan and starts the sandbox
        started = []
        for _ in range(many):
            began = time.perf_counter()
            process = await executor.spawn(TRUE)
            started.append((time.perf_counter() - began) * 1000)
            await process.wait()
            process.close()
        each, together = await _measure(once, many)
    finally:
        await executor.dispose()
    return {
        f"SandboxExecutor, {tier} tier": {"start": started, "each": each, "together": [together]}
    }


def _posix_spawn(many: int) -> list[float]:
    taken = []
    for _ in range(many):
        began = time.perf_counter()
        pid = os.posix_spawn(TRUE[0], TRUE, {})
        taken.append((time.perf_counter() - began) * 1000)
        os.waitpid(pid, 0)
    return taken


async def _sandlock(many: int) -> Taken:
    if importlib.util.find_spec("sandlock") is None:
        print("sandlock is not installed, so it is not measured", file=sys.stderr)
        return {}
    make = importlib.import_module("sandlock").Sandbox
    readable = ["/usr", "/lib", "/lib64", "/bin", "/etc", "/proc", "/dev"]
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(AT_ONCE) as threads:  # calls of the library block

        async def once() -> None:
            box = make(
                fs_readable=readable, fs_writable=["/tmp"]
            )  # a sandbox runs one command at a time
            result = await loop.run_in_executor(threads, box.run, TRUE)
            assert result.success, result

        await once()
        each, together = await _measure(once, many)
    return {"sandlock, in process": {"each": each, "together": [together]}}


async def _inside(workspace: str, many: int) -> Taken:
    await _bare()
    taken: Taken = {"posix_spawn": {"start": _posix_spawn(many)}}
    each, together = await _measure(_bare, many)
    taken["asyncio.create_subprocess_exec"] = {"each": each, "together": [together]}
    for tier in ("landlock", "full"):
        taken |= await _fenced(tier, workspace, many)
    return taken | await _sandlock(many)


def _podman(many: int) -> Taken:
    from tests.contract.engine import IMAGE, OPTIONS, installed

    with tempfile.TemporaryDirectory() as directory, installed(Path(directory)) as engine:
        words = [
            "run",
            "--detach",
            "--name",
            "bench",
            "--network",
            "none",
            *OPTIONS,
            IMAGE,
            "sleep",
            "86400",
        ]
        engine.ask(*words)
        try:

            async def once() -> None:
                null = asyncio.subprocess.DEVNULL
                argv = [*engine.words, "exec", "bench", "true"]
                process = await asyncio.create_subprocess_exec(*argv, stdin=null, stdout=null)
                assert await process.wait() == 0

            each, together = asyncio.run(_measure(once, many))
        finally:
            engine.ask("rm", "--force", "--time", "0", "bench")
    return {f"podman exec ({many})": {"each": each, "together": [together]}}


def _show(taken: Taken) -> int:
    bare, spawned = (
        taken["asyncio.create_subprocess_exec"],
        statistics.median(taken["posix_spawn"]["start"]),
    )
    base, base_together = statistics.median(bare["each"]), bare["together"][0]
    missed = 0
    print(f"start alone, until it runs; at most {BUDGET_MS} ms more than posix_spawn")
    for name, columns in taken.items():
        if "start" in columns:
            median = statistics.median(columns["start"])
            kept = median - spawned <= BUDGET_MS
            missed += not kept
            print(f"  {name:<36} {median:>9.3f} ms {'pass' if kept else 'FAIL'}")
    print(
        f"/bin/true to its end: one after the other, median; {AT_ONCE} at once, all of them; "
        "ratios to bare asyncio"
    )
    for name, columns in taken.items():
        if "each" in columns:
            each, together = statistics.median(columns["each"]), columns["together"][0]
            ratios = (
                f"{each / base:>6.2f} x {together:>11.1f} ms {together / base_together:>6.2f} x"
            )
            print(f"  {name:<36} {each:>9.3f} ms {ratios}")
    return 1 if missed else 0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="few rounds: shows that it works, not how fast"
    )
    parser.add_argument(
        "--inside", help=argparse.SUPPRESS
    )  # internal: the part that runs as the user, in this workspace
    options = parser.parse_args()
    many = MANY // 20 if options.quick else MANY
    if options.inside:
        print(json.dumps(asyncio.run(_inside(options.inside, many))))
        return 0
    sys.path.insert(0, str(HERE.parent))
    from tests.support import installation, tester

    user = tester.find_or_make()
    with (
        installation.for_tester(user) as installed,
        tempfile.TemporaryDirectory(dir=user.home) as workspace,
    ):
        user.give(Path(workspace))
        script = Path(workspace) / "executors.py"
        script.write_text(Path(__file__).read_text())
        words: list[str | Path] = [installed.root / "bin" / "python", script, "--inside", workspace]
        spec = importlib.util.find_spec("sandlock")
        path = {"PYTHONPATH": str(Path(spec.origin).parent.parent)} if spec and spec.origin else {}
        done = user.run(
            [*words, *(["--quick"] if options.quick else [])],
            cwd=workspace,
            env=path,
            timeout_s=600,
        )
    if done.exit_code != 0:
        sys.exit(f"bench: {done}")
    print(done.stderr, end="")
    taken: Taken = json.loads(done.stdout)
    if (
        os.getuid() == 0
        and subprocess.run(["which", "podman"], capture_output=True).returncode == 0
    ):
        taken |= _podman(PODMAN // 10 if options.quick else PODMAN)
    return _show(taken)


if __name__ == "__main__":
    sys.exit(main())
