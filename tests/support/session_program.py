"""Runs a program of an ordinary user that owns a session. The host checks what it did."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent, indent
from typing import Any

from tests.support.sandbox import SandboxRunner
from tests.support.waiting import wait_for

_PROGRAM = """
import asyncio, json, os, signal, sys
from pathlib import Path
from paddock import *
from paddock.policy.model import Tier

options = json.loads(sys.argv[1])
tell = lambda *what: print(json.dumps(what), flush=True)

async def until(path):
    while not Path(path).exists():
        await asyncio.sleep(0.02)

async def scene():
{body}

asyncio.run(scene())
"""


def mark() -> str:
    """An argument of sleep(1) by which the host recognises a process."""
    return f"86400.{secrets.randbelow(10**12):012d}"


def alive(word: str) -> bool:
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if word.encode() in entry.read_bytes().split(b"\0"):
                return True
        except OSError:
            continue
    return False


def gone(word: str) -> None:
    wait_for(lambda: not alive(word), f"sleep {word} has ended")


def words(sandbox: SandboxRunner, body: str, **options: Any) -> list[str | Path]:
    """The program can use ``Sandbox(**options)``."""
    given = {"tier": sandbox.tier, "workspace": str(sandbox.tree.project), **options}
    program = _PROGRAM.format(body=indent(dedent(body), "    "))
    program = program.replace(
        "options = json.loads(sys.argv[1])",
        "options = json.loads(sys.argv[1])\noptions['tier'] = options['tier'] and "
        "Tier(options['tier'])",
    )
    return [sandbox.installation.root / "bin" / "python", "-c", program, json.dumps(given)]


def play(
    sandbox: SandboxRunner,
    body: str,
    *,
    as_root: bool = False,
    env: dict[str, str] | None = None,
    **options: Any,
) -> Any:
    """The values that the program passed to ``tell``, one list per call."""
    argv = words(sandbox, body, **options)
    outcome = sandbox.tester.run(argv, cwd=sandbox.tree.project, env=env, as_root=as_root)
    assert (outcome.exit_code, outcome.stderr) == (0, ""), str(outcome)
    return [json.loads(line) for line in outcome.stdout.splitlines()]


@contextmanager
def playing(sandbox: SandboxRunner, body: str, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """Starts the program and waits for its first ``tell``."""
    with sandbox.tester.starting(
        words(sandbox, body, **options), cwd=sandbox.tree.project
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line == '["ready"]\n', (line, process.poll(), os.waitstatus_to_exitcode(0))
        yield process
