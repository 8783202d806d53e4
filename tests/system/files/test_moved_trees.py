"""Directories that move while a command works in them.

Init judges a name by the path that it sees. A program outside, or another run, can move a directory
so that this path is no longer the one that programs outside see.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.features import need
from tests.support.sandbox import SandboxRunner

NAMES = (".envrc", ".git", "config")
# Makes names in a directory that it has open, after a line of input.
HOLDER = """
import os, sys
held = os.open(sys.argv[1], os.O_RDONLY)
print("started", flush=True)
sys.stdin.readline()
for name in sys.argv[2:]:
    try:
        os.close(os.open(name, os.O_WRONLY | os.O_CREAT, 0o644, dir_fd=held))
    except OSError as error:
        print(name, error.errno, flush=True)
"""


# A child with its own mounts opens a directory, hands it over and ends. Then its mounts are gone.
FOREIGN_MOUNT = """
import array, ctypes, os, socket
ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
print("started", flush=True)
child = os.fork()
if child == 0:
    CLONE_NEWNS, CLONE_NEWUSER = 0x20000, 0x10000000
    if ctypes.CDLL(None).unshare(CLONE_NEWNS | CLONE_NEWUSER) != 0:
        os._exit(1)
    held = array.array("i", [os.open("held", os.O_RDONLY)])
    theirs.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, held)])
    os._exit(0)
status = os.waitpid(child, 0)[1]
assert status == 0, "no namespace was made"
_, [(_, _, data)], _, _ = ours.recvmsg(1, socket.CMSG_SPACE(4))
(held,) = array.array("i", data)
for _ in range(200):
    path = os.readlink(f"/proc/self/fd/{held}")
    if path == "/held":
        break
    os.sched_yield()
print("detached", flush=True)
for name in (".envrc", "../.envrc"):
    try:
        os.close(os.open(name, os.O_WRONLY | os.O_CREAT, 0o644, dir_fd=held))
    except OSError as error:
        print(name, error.errno, flush=True)
"""


@pytest.fixture(params=["landlock", "full"])
def sandbox(
    request: pytest.FixtureRequest, sandbox: SandboxRunner, host: dict[str, Any]
) -> SandboxRunner:
    """Each test runs in both tiers."""
    if request.param == "full":
        need("namespaces", host["namespaces"]["usable"], str(host["namespaces"]))
    return replace(sandbox, tier=request.param)


@contextmanager
def holding(
    sandbox: SandboxRunner, directory: str, names: Sequence[str], cwd: Path, *, inside: bool
) -> Iterator[subprocess.Popen[str]]:
    argv = ["/usr/bin/python3", "-Ic", HOLDER, directory, *names]
    words = sandbox.command(argv, "--quiet") if inside else argv
    with sandbox.tester.starting(words, cwd=cwd, stdin=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        yield process


def end(process: subprocess.Popen[str]) -> str:
    output, _ = process.communicate("go on\n", timeout=60)
    return output


def is_at(path: Path, inode: int) -> bool:
    return path.exists() and path.stat().st_ino == inode


def test_a_directory_that_the_user_moves_out_gets_no_protected_name(
    sandbox: SandboxRunner,
) -> None:
    for inside in (True, False):
        place = sandbox.tree.root / f"moving-{inside}"
        moved, archive = place / "project/moved", place / "moved"
        sandbox.tree.make(moved)
        with holding(sandbox, "moved", NAMES, moved.parent, inside=inside) as process:
            moved.rename(archive)
            output = end(process)
        assert {name for name in NAMES if (archive / name).exists()} == (
            set() if inside else set(NAMES)
        ), output


@pytest.mark.parametrize("above", ["", "above/"])
@pytest.mark.parametrize("move", ["mv", "exchange"])
def test_a_run_does_not_move_a_directory_that_another_run_works_in(
    sandbox: SandboxRunner, above: str, move: str
) -> None:
    """Else `config` would be made in a git directory."""
    old = above.rstrip("/") or "work"
    exchange = "import ctypes; ctypes.CDLL(None).renameat2(-100, b'{}', -100, b'to', 2)"
    act = {
        "mv": ["/bin/mv", old, "to/moved"],
        "exchange": ["/usr/bin/python3", "-Ic", exchange.format(old)],
    }[move]
    for inside in (True, False):
        place = sandbox.tree.root / f"runs-{inside}"
        sandbox.tree.make(place / above / "work")
        sandbox.tree.make(place / "to")
        run = sandbox.inside if inside else sandbox.outside
        work = place / above / "work"
        inode = work.stat().st_ino
        with holding(sandbox, ".", ["config"], work, inside=inside) as process:
            moved = run(act, cwd=place)
            stays = is_at(work, inode)
            end(process)
        assert stays == inside, str(moved)
        if inside:
            assert "another run works in" in moved.stderr
            again = run(act, cwd=place)
            assert not is_at(work, inode), f"the other run has ended: {again}"


def test_a_directory_on_a_mount_of_another_namespace_gets_no_name(full: SandboxRunner) -> None:
    """The kernel shows its path from the root of that mount, so the path says nothing."""
    policy = full.tree.put(full.tree.root / "nested.toml", "[syscalls]\nnamespaces = true\n")
    words = ["/usr/bin/python3", "-Ic", FOREIGN_MOUNT]
    for inside in (True, False):
        place = full.tree.root / f"foreign-{inside}"
        full.tree.make(place / "held")
        flags = ("--policy", policy)
        run = full.inside(words, *flags, cwd=place) if inside else full.outside(words, cwd=place)
        assert run.stdout.startswith("started\ndetached\n"), str(run)
        made = {name for name in (".envrc", "held/.envrc") if (place / name).exists()}
        assert made == (set() if inside else {".envrc", "held/.envrc"}), str(run)
