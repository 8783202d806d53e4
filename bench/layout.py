"""Writes ``core/launch.ld``: the functions that a start runs through, so that the linker puts them side by side.

Needs a core with symbols, and writes what the next build is laid out by:

    make symbols
    python bench/layout.py core/target/symbols/…/release/paddock-core

Run it again when ``bench/run.py`` shows launches that became slower: a name that is not there any more changes nothing
but the time.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from bench import run  # noqa: E402
from tests.support import core  # noqa: E402

SCRIPT = HERE.parent / "core" / "launch.ld"
TOP = """\
/* What a start runs through lies side by side. The kernel maps a program's file in pieces of 64 KiB, each when it is
   first touched: spread over two megabytes a start touched thirteen of them, and one in namespaces thirty in each of
   its processes. Written by bench/layout.py, from what single steps tell; a name that is not there any more changes
   nothing but the time. */
SECTIONS
{
  .text.launch :
  {
    *crt1.o(.text) *crtbegin.o(.text .text.*)
    *memcpy.lo(.text) *memset.lo(.text) *memmove.lo(.text) *__set_thread_area.lo(.text)
"""
BOTTOM = """\
  }
}
INSERT BEFORE .text;

/* And what it writes: in the page that the kernel copies anyway, because the data that has values ends there. What no
   start looks at comes before that page. */
SECTIONS
{
  .data.seldom :
  {
    *(.data*MAPPINGS_CACHE*)
    . = ALIGN(4096);
  }
}
INSERT BEFORE .init_array;

SECTIONS
{
  .bss.launch (NOLOAD) :
  {
    *(.bss._ZN12paddock_core3sys*ARENA*)
    *crtbegin.o(.bss .bss.*)
    *__init_tls.lo(.bss .bss.* COMMON) *libc.lo(.bss .bss.* COMMON) *defsysinfo.lo(COMMON) *__environ.lo(.bss .bss.*)
  }
}
INSERT AFTER .data;
"""


def main() -> int:
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    names = functions(Path(sys.argv[1]))
    lines = [f"    *(.text.{name} .text.hot.{name} .text.unlikely.{name})\n" for name in names]
    SCRIPT.write_text(TOP + "".join(dict.fromkeys(lines)) + BOTTOM)
    print(f"{len(lines)} functions")
    return 0


def functions(program: Path) -> list[str]:
    """As patterns of the linker: the shortest start's, then what a journal and namespaces add."""
    names: dict[int, list[str]] = {}
    for start, name in sorted(_symbols(program)):
        names.setdefault(start, []).append(_pattern(name))
    starts = list(names)
    found: dict[str, None] = {}
    for address in _reached(program):
        # The C library's have several names, of which one is its section's.
        found.update(dict.fromkeys(names[starts[bisect_right(starts, address) - 1]]))
    return list(found)


def _reached(program: Path) -> Iterator[int]:
    with run.set_up() as bench, tempfile.TemporaryDirectory(dir=bench.build) as place:
        bench.user.give(Path(place))
        step, copy, out = bench.build / "step", bench.build / "paddock-core", Path(place) / "reached"
        subprocess.run(["cc", "-O2", "-Wall", "-Werror", "-o", str(step), str(HERE / "step.c")], check=True)
        shutil.copy(program, copy)
        plans = (run.lean(bench.small_plan), run.lean(bench.small_full_plan), bench.small_plan, bench.small_full_plan)
        for plan in plans:
            with core.sealed(core.canonical(plan)) as fd:
                words = [step, out, copy, *bench.through_core(fd, ["/bin/true"])[1:]]
                done = bench.user.run(words, cwd=bench.small, pass_fds=[fd], timeout_s=120)
            if done.exit_code != 0:
                sys.exit(f"layout: {done}")
            yield from (int(line, 16) for line in out.read_text().splitlines())


def _symbols(program: Path) -> Iterator[tuple[int, str]]:
    listed = subprocess.run(["nm", "--defined-only", str(program)], check=True, capture_output=True, text=True)
    for line in listed.stdout.splitlines():
        address, kind, name = line.split(" ", 2)
        if kind in "tTwW":
            yield int(address, 16), name


def _pattern(name: str) -> str:
    """Without what changes from one compiler to the next: a hash at the end, or crates' numbers."""
    name = re.sub(r"17h[0-9a-f]{16}E$", "17h*", name)
    if name.startswith("_R"):
        name = re.sub(r"Cs[0-9A-Za-z]+_", "C*_", name)
    return name.replace("$", "?")


if __name__ == "__main__":
    sys.exit(main())
