"""A container engine for the tests: podman as root, with its own store and an image of one static
program.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.features import need, need_program, need_root

IMAGE = "localhost/tiny"
# The engine's default limits need CAP_SYS_RESOURCE.
OPTIONS = ("--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024")
_WORDS = (
    "sh cat echo sleep tr grep head tail printf test stty kill ls touch pwd env id true "
    "false "
    "setsid mkdir rm mv cp ln"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    words: tuple[str, ...]  # the client and its options

    def ask(self, *words: str) -> str:
        return subprocess.run(
            [*self.words, *words], capture_output=True, text=True, check=True
        ).stdout.strip()


@contextmanager
def installed(directory: Path) -> Iterator[Engine]:
    need_root()
    podman, runc = need_program("podman"), of_the_system("runc")
    place = Path("/var/tmp") / f"paddock-contract-{os.getpid()}"
    words = [podman, "--root", f"{place}/store", "--runroot", f"{place}/run", "--runtime", runc]
    engine = Engine(words=(*words, "--storage-driver", "vfs", "--cgroup-manager", "cgroupfs"))
    try:
        _make_image(engine, need_program("busybox"), directory)
        yield engine
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _make_image(engine: Engine, busybox: str, directory: Path) -> None:
    """Imports the image. Nothing is pulled."""
    root = directory / "root"
    for name in ("bin", "usr", "tmp", "proc", "dev", "etc", "work"):
        (root / name).mkdir(parents=True)
    shutil.copy(busybox, root / "bin" / "busybox")
    for word in _WORDS.split():
        (root / "bin" / word).symlink_to("busybox")
    (root / "usr" / "bin").symlink_to("../bin")
    engine.ask(
        "import", "--quiet", shutil.make_archive(str(directory / "image"), "tar", root), IMAGE
    )


def of_the_system(name: str) -> str:
    path = shutil.which(name, path="/usr/sbin:/usr/bin")
    need(name, path is not None, f"no {name} on this machine")
    return str(path)
