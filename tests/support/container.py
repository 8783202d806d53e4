"""A container of a real engine without an image: an empty root directory with the host's /usr."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.features import need, need_program, need_root
from tests.support.sandbox import SandboxRunner, Word
from tests.support.tester import Outcome
from tests.support.waiting import wait_for

ENGINE_PROFILE = Path("/usr/share/containers/seccomp.json")
# The hard limit of every user: the engine's default needs CAP_SYS_RESOURCE.
_LIMITS = ("--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024")


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    sandbox: SandboxRunner
    podman: str
    runtime: tuple[str, ...]
    place: Path  # all state of the engine
    root: Path

    def run(self, words: Sequence[Word], *options: str, uid: int | None = None) -> Outcome:
        """Runs as the tester, in the project, under the engine's default filter unless ``options``
        change it.
        """
        tester, tree, installation = (
            self.sandbox.tester,
            self.sandbox.tree,
            self.sandbox.installation,
        )
        mounts = [
            "/usr:/usr:ro",
            f"{installation.root}:{installation.root}:ro",
            f"{tree.root}:{tree.root}",
        ]
        programs = self.sandbox.programs.directory
        engine: list[Word] = [
            self.podman,
            "--root",
            self.place / "root",
            "--runroot",
            self.place / "run",
            *self.runtime,
        ]
        engine += [
            "--storage-driver",
            "vfs",
            "--cgroup-manager",
            "cgroupfs",
            "run",
            "--rm",
            "--network",
            "none",
            *_LIMITS,
        ]
        engine += [f"--volume={mount}" for mount in (*mounts, f"{programs}:{programs}:ro")]
        engine += ["--user", str(tester.uid if uid is None else uid), "--workdir", tree.project]
        engine += ["--env", f"HOME={tester.home if uid is None else '/root'}"]
        environment = {"HOME": "/root", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
        return tester.run(
            [*engine, *options, "--rootfs", self.root, *words], env=environment, as_root=True
        )


@contextmanager
def started_from(sandbox: SandboxRunner) -> Iterator[Container]:
    need_root()
    podman = need_program("podman")
    need("podman", ENGINE_PROFILE.is_file(), f"{ENGINE_PROFILE} is missing")
    # runc, because crun, the engine's default, does not start with hybrid cgroups.
    runc = shutil.which("runc", path="/usr/sbin:/usr/bin")
    place = Path(tempfile.mkdtemp(prefix="paddock-container-", dir="/var/tmp"))
    try:
        root = place / "fs"
        _lay_out(root, sandbox)
        runtime = ("--runtime", runc) if runc else ()
        yield Container(sandbox=sandbox, podman=podman, runtime=runtime, place=place, root=root)
    finally:
        wait_for(lambda: removed(place), "the engine has left its files")


def removed(place: Path) -> bool:
    """Waits, because the clean-up process of a container may still write there."""
    shutil.rmtree(place, ignore_errors=True)
    return not place.exists()


def _lay_out(root: Path, sandbox: SandboxRunner) -> None:
    tester = sandbox.tester
    home = root / tester.home.relative_to("/")
    for directory in (home, root / "etc", root / "root", root / "tmp", root / "var" / "tmp"):
        directory.mkdir(parents=True)
    for directory in (root / "tmp", root / "var" / "tmp"):
        directory.chmod(0o1777)
    for name in ("bin", "sbin", "lib", "lib64"):
        (root / name).symlink_to(f"usr/{name}")
    (root / "etc" / "passwd").write_text(
        f"root:x:0:0::/root:/bin/sh\n{tester.name}:x:{tester.uid}:{tester.gid}::{tester.home}:/bin/sh\n"
    )
    tester.give(home)
