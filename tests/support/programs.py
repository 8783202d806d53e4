"""The C programs of the tests, compiled once per test run into a directory that the tester
reads.
"""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

SOURCES = Path(__file__).parent / "programs"
_FLAGS = ("-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror")
_BARE = ("-nostdlib", "-fno-stack-protector")
# The length of a loader path, so that another path fits in its place.
ROOM = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Programs:
    directory: Path
    probe: Path  # static: it needs no loader; also the "static binary" of the bypass tests
    oldkernel: Path
    preload: Path  # a library that prints the program that loaded it
    # both add a line to a file in their working directory; the last letters of the names differ
    allowed: Path
    forbidden: Path
    linked: Path  # the forbidden program, dynamically linked
    posing: Path  # the forbidden program, which can be started as a loader: at any address,
    fixed: Path  # or at its fixed address
    hosted: Path  # the allowed program; the path of its loader can be overwritten by any other
    racer: Path
    naive: Path
    caller: Path  # a network client that resolves names itself
    file_calls: Path  # random system calls on files
    write_racer: Path
    naive_writes: Path


def build(directory: Path) -> Programs:
    probe, oldkernel, preload = (directory / name for name in ("probe", "oldkernel", "preload.so"))
    _compile(probe, sorted(SOURCES.glob("probe*.c")), "-static", "-pthread")
    _compile(oldkernel, [SOURCES / "oldkernel.c"])
    _compile(preload, [SOURCES / "preload.c"], "-shared", "-fPIC")
    allowed, forbidden, linked = (directory / f"mark-{name}" for name in ("a", "f", "linked"))
    racer, naive, caller = directory / "racer", directory / "naive", directory / "caller"
    write_racer, naive_writes = directory / "write_racer", directory / "naive_writes"
    _compile(allowed, [SOURCES / "mark.c"], "-static", '-DNAME="allowed"')
    for target, flags in ((forbidden, ["-static"]), (linked, [])):
        _compile(target, [SOURCES / "mark.c"], *flags, '-DNAME="forbidden"')
    posing, fixed, hosted = (directory / f"mark-{name}" for name in ("posing", "fixed", "hosted"))
    _compile(posing, [SOURCES / "posing.c"], *_BARE, "-static-pie", "-fPIE")
    # An address where no static program lies.
    _compile(
        fixed, [SOURCES / "posing.c"], *_BARE, "-static", "-no-pie", "-Wl,-Ttext-segment=0x10000000"
    )
    _compile(
        hosted,
        [SOURCES / "mark.c"],
        '-DNAME="allowed"',
        f"-Wl,--dynamic-linker={roomy(loader_of(linked))}",
    )
    file_calls = directory / "file_calls"
    _compile(file_calls, sorted(SOURCES.glob("file_calls*.c")), "-static", "-pthread")
    for target in (racer, naive, caller, write_racer, naive_writes):
        _compile(target, [SOURCES / f"{target.name}.c"], "-static", "-pthread")
    return Programs(
        directory=directory, probe=probe, oldkernel=oldkernel, preload=preload, allowed=allowed,
        forbidden=forbidden, linked=linked, racer=racer, naive=naive, caller=caller, posing=posing,
        fixed=fixed, hosted=hosted, file_calls=file_calls, write_racer=write_racer,
        naive_writes=naive_writes,
    )  # fmt: skip


def loader_of(program: Path) -> Path:
    """The loader path in the program."""
    found = re.search(rb"/lib[^\0]*/ld-[^\0]*", program.read_bytes())
    assert found is not None, program
    return Path(os.fsdecode(found[0]))


def roomy(path: Path) -> str:
    """The same path, padded to the common length."""
    return str(path).rjust(ROOM, "/")


def _compile(target: Path, sources: list[Path], *flags: str) -> None:
    subprocess.run(["cc", *_FLAGS, *flags, "-o", str(target), *map(str, sources)], check=True)
    target.chmod(0o755)
