"""A container whose root directory is one static busybox, and commands in it."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.features import need, need_program
from tests.support.installation import Installation
from tests.support.tester import Outcome, Tester

Word = str | bytes | Path

DIRECTORIES = ("bin", "dev", "etc", "proc", "srv", "tmp")
MESSAGE = "of the container"


def build_root(root: Path) -> Path:
    """A root directory that every uid can read, with /srv and /tmp writable."""
    busybox = need_program("busybox")
    linked = subprocess.run(
        ["readelf", "-l", busybox], capture_output=True, text=True, check=True
    ).stdout
    need(
        "busybox",
        "INTERP" not in linked,
        f"{busybox} is not static, so it can not start in a bare root directory",
    )
    for name in DIRECTORIES:
        (root / name).mkdir(parents=True)
        (root / name).chmod(0o1777 if name in ("srv", "tmp") else 0o755)
    root.chmod(0o755)
    shutil.copy(busybox, root / "bin" / "busybox")
    listed = subprocess.run([busybox, "--list"], capture_output=True, text=True, check=True)
    for applet in listed.stdout.split():
        if applet != "busybox":
            (root / "bin" / applet).symlink_to("busybox")
    (root / "etc" / "passwd").write_text("root:x:0:0:root:/:/bin/sh\n")
    (root / "etc" / "message").write_text(MESSAGE + "\n")
    return root


@dataclass(frozen=True, slots=True, kw_only=True)
class Jail:
    """``paddock jail`` as root or as the tester, each with its own root directory."""

    tester: Tester
    installation: Installation
    rootdir: Path
    journal: Path
    work: Path  # working directory of paddock
    as_root: bool
    username: str

    def command(self, words: Sequence[Word], *flags: Word) -> list[Word]:
        place: list[Word] = [
            "--rootdir",
            self.rootdir,
            "-U",
            self.username,
            "--audit-log",
            self.journal,
        ]
        return [self.installation.paddock, "jail", *place, *flags, "--", *words]

    def inside(
        self,
        words: Sequence[Word],
        *flags: Word,
        env: Mapping[str, str] | None = None,
        pass_fds: Sequence[int] = (),
        prefix: Sequence[Word] = (),
    ) -> Outcome:
        return self.raw([*prefix, *self.command(words, *flags)], env=env, pass_fds=pass_fds)

    def shell(self, script: str, *flags: Word, prefix: Sequence[Word] = ()) -> Outcome:
        return self.inside(["/bin/sh", "-c", f"echo started; {script}"], *flags, prefix=prefix)

    def raw(
        self,
        argv: Sequence[Word],
        *,
        env: Mapping[str, str] | None = None,
        pass_fds: Sequence[int] = (),
    ) -> Outcome:
        return self.tester.run(
            argv, cwd=self.work, env=env, pass_fds=pass_fds, as_root=self.as_root
        )

    @contextmanager
    def running(self, *flags: Word) -> Iterator[Running]:
        """A container that runs until its standard input ends."""
        words = ["/bin/sh", "-c", "echo started; read line"]
        with self.tester.starting(
            self.command(words, *flags), cwd=self.work, stdin=subprocess.PIPE, as_root=self.as_root
        ) as process:
            assert process.stdout
            first = process.stdout.readline()
            assert first == "started\n", process.stderr.read() if process.stderr else ""
            yield Running(supervisor=process)

    def events(self) -> list[dict[str, object]]:
        files = sorted(self.journal.glob("*.jsonl"))
        return [json.loads(line) for file in files for line in file.read_text("ascii").splitlines()]


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    supervisor: subprocess.Popen[str]

    @property
    def init(self) -> int:
        return _children(self.supervisor.pid)[0]

    @property
    def command(self) -> int:
        return _children(self.init)[0]


def _children(pid: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def status(pid: int, field: str) -> str:
    """A line of /proc/PID/status, as the host sees it."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return value.strip()
    raise KeyError(field)


@contextmanager
def roots_reach_put_aside() -> Iterator[None]:
    """Forgets earlier runs. The history knows directories by inode, and a new directory may get the
    inode of one of an earlier test.
    """
    reach = Path.home() / ".local" / "state" / "paddock" / "reach"
    before = reach.read_bytes() if reach.exists() else None
    reach.unlink(missing_ok=True)
    try:
        yield
    finally:
        reach.unlink(missing_ok=True)
        if before is not None:
            reach.write_bytes(before)
            reach.chmod(0o600)


@contextmanager
def of_root(tester: Tester, installation: Installation) -> Iterator[Jail]:
    place = Path(tempfile.mkdtemp(prefix="paddock-jail-", dir="/var/tmp"))
    try:
        place.chmod(0o755)
        (work := place / "work").mkdir(mode=0o755)
        with roots_reach_put_aside():
            yield Jail(
                tester=tester,
                installation=installation,
                rootdir=build_root(place / "root"),
                journal=place / "journal",
                work=work,
                as_root=True,
                username="nobody",
            )
    finally:
        shutil.rmtree(place)


@contextmanager
def of_tester(tester: Tester, installation: Installation, place: Path) -> Iterator[Jail]:
    root = build_root(place / "root")
    tester.give(root)
    yield Jail(
        tester=tester,
        installation=installation,
        rootdir=root,
        journal=place / "journal",
        work=place / "project",
        as_root=False,
        username="nobody",
    )
