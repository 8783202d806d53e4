"""Writes ``core/profiles/RUSTC.profdata``: which ways the core takes through its functions, for the compiler.

    python bench/train.py

Builds a core that counts (which takes minutes), starts a command in both tiers, with and without a journal, and some
hundred commands under rules, and adds up what was counted. Needs ``rustup component add llvm-tools``. ``make setup``
and ``make wheel`` use the profile if it is this compiler's; of functions that changed since nothing is known, which
changes nothing but the time. ``bench/layout.py`` comes after it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from bench import execs, run  # noqa: E402
from tests.support import core  # noqa: E402

CORE = HERE.parent / "core"
TARGET = "x86_64-unknown-linux-musl"
# Counters live in the profile's file: a core becomes its command, and has no end at which it could write them.
COUNTING = ["-Cllvm-args=-runtime-counter-relocation", "-Cllvm-args=-disable-vp"]
STARTS, EXECS = 4, 100


def main() -> int:
    merger = _merger()
    with tempfile.TemporaryDirectory(prefix="paddock-train-") as place:
        counts = Path(place) / "counts"
        counts.mkdir()
        for directory, mode in ((Path(place), 0o755), (counts, 0o1777)):
            directory.chmod(mode)
        counting = _build(Path(place) / "target", counts)
        _use(counting, counts)
        profile = CORE / "profiles" / f"{_rustc('--version').split()[1]}.profdata"
        profile.parent.mkdir(exist_ok=True)
        found = [str(file) for file in counts.glob("*.profraw")]
        subprocess.run([merger, "merge", "--sparse", "-o", profile, *found], check=True)
    print(f"{profile.relative_to(HERE.parent)}: {profile.stat().st_size >> 10} KiB, of {len(found)} processes")
    return 0


def _build(target: Path, counts: Path) -> Path:
    flags = " ".join([f"-Cprofile-generate={counts}", *COUNTING])
    env = {**os.environ, f"CARGO_TARGET_{TARGET.upper().replace('-', '_')}_RUSTFLAGS": flags}
    words = ["cargo", "build", "--release", "--quiet", "--locked", "--bin", "paddock-core", "--target", TARGET]
    subprocess.run([*words, "--manifest-path", CORE / "Cargo.toml", "--target-dir", target], check=True, env=env)
    return target / TARGET / "release" / "paddock-core"


def _use(counting: Path, counts: Path) -> None:
    with run.set_up() as bench:
        named = bench.build / "paddock-core"
        named.write_text(f'#!/bin/sh\nLLVM_PROFILE_FILE={counts}/%p-%c.profraw exec {counting} "$@"\n')
        named.chmod(0o755)
        plans = (run.lean(bench.small_plan), run.lean(bench.small_full_plan), bench.small_plan, bench.small_full_plan)
        cases: list[tuple[core.Plan, list[str | Path]]] = [(plan, ["/bin/true"]) for plan in plans * STARTS]
        many: list[str | Path] = [bench.build / "many", str(EXECS), "/bin/true"]
        cases += [(execs.gated(run.gate_plan(bench, tier)), many) for tier in ("landlock", "full")]
        for plan, command in cases:
            with core.sealed(core.canonical(plan)) as fd:
                done = bench.user.run(
                    [named, *bench.through_core(fd, command)[1:]], cwd=bench.small, pass_fds=[fd], timeout_s=120
                )
            if done.exit_code != 0:
                sys.exit(f"train: {done}")


def _rustc(*words: str) -> str:
    return subprocess.run(["rustc", *words], check=True, capture_output=True, text=True).stdout.strip()


def _merger() -> Path:
    """Of the compiler's own LLVM: others do not read what it writes."""
    host = next(line for line in _rustc("-vV").splitlines() if line.startswith("host: ")).removeprefix("host: ")
    found = Path(_rustc("--print", "sysroot"), "lib", "rustlib", host, "bin", "llvm-profdata")
    if not found.exists():
        sys.exit("train: no llvm-profdata: rustup component add llvm-tools")
    return found


if __name__ == "__main__":
    sys.exit(main())
