"""Runs the same command inside the sandbox and outside of it."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support import journal
from tests.support.installation import Installation
from tests.support.programs import Programs
from tests.support.tester import Outcome, Tester
from tests.support.tree import ProjectTree

Word = str | bytes | Path
# Without seccomp no write is judged.
UNJUDGED: tuple[Word, ...] = ("--off", "seccomp")
_SYSTEM = "bin boot dev etc lib lib32 lib64 libx32 opt proc run sbin sys usr var"
# Mounts empty directories over busy ones, and the tester's own directories back in their places.
# Then runs the command as the tester.
_QUIET = """
mount -t tmpfs quiet /mnt
for place in {own}; do mkdir -p /mnt$place; mount --rbind $place /mnt$place; done
for place in {busy}; do [ -L $place ] || [ $place = /mnt ] || mount -t tmpfs -o mode=1777 quiet \
$place; done
for place in {own}; do mkdir -p $place; mount --move /mnt$place $place; done
mount -t tmpfs quiet /mnt
cd "$PWD"; exec {setpriv} "$@"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxRunner:
    """Runs ``paddock run`` in the project directory. Every run writes its journal to ``journal``,
    so tests never read the events of other tests. The ``flags`` of a call come last and win, after
    ``own_flags``.
    ``tier`` is the tier under test: in the full tier a denied file does not exist, so the errno
    differs.
    """

    tester: Tester
    installation: Installation
    programs: Programs
    tree: ProjectTree
    profile: str = "ai-agent"
    tier: str = "landlock"
    own_flags: tuple[Word, ...] = ()

    @property
    def journal(self) -> Path:
        return self.tree.root / "journal"

    def command(
        self, words: Sequence[Word], *flags: Word, profile: str | None = None, journal: bool = True
    ) -> list[Word]:
        """The whole argv. The probe's directory is readable, so that the probe can start."""
        logging: list[Word] = ["--audit-log", self.journal] if journal else []
        return [
            self.installation.paddock,
            "run",
            "--tier",
            self.tier,
            "--profile",
            profile or self.profile,
            "-r",
            f"{self.programs.directory}/**",
            *logging,
            *self.own_flags,
            *flags,
            "--",
            *words,
        ]

    def inside(
        self,
        words: Sequence[Word],
        *flags: Word,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        stdin: str | int | None = None,
        umask: int = 0o022,
        pass_fds: Sequence[int] = (),
        profile: str | None = None,
        journal: bool = True,
        prefix: Sequence[Word] = (),
        as_root: bool = False,
    ) -> Outcome:
        return self.tester.run(
            [*prefix, *self.command(words, *flags, profile=profile, journal=journal)],
            cwd=cwd or self.tree.project, env=env, stdin=stdin, umask=umask, pass_fds=pass_fds,
            as_root=as_root,
        )  # fmt: skip

    def inside_of_everything(
        self, words: Sequence[Word], *flags: Word, profile: str | None = None, journal: bool = True
    ) -> Outcome:
        """Runs with the whole machine granted, but without directories that other users change
        meanwhile. Such a change would refuse the start.
        """
        if os.getuid() != 0:
            return self.inside(words, *flags, profile=profile, journal=journal)
        busy = [
            str(place)
            for place in Path("/").iterdir()
            if place.is_dir() and place.name not in _SYSTEM.split()
        ]
        own = [self.tester.home, self.programs.directory]
        setpriv = f"setpriv --reuid={self.tester.uid} --regid={self.tester.gid} --clear-groups"
        script = _QUIET.format(
            busy=shlex.join([*busy, "/var/tmp"]), own=shlex.join(map(str, own)), setpriv=setpriv
        )
        quiet = ["unshare", "--mount", "sh", "-euc", script, "sh"]
        return self.inside(
            words, *flags, profile=profile, journal=journal, prefix=quiet, as_root=True
        )

    def outside(
        self,
        words: Sequence[Word],
        *,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        stdin: str | int | None = None,
        pass_fds: Sequence[int] = (),
        as_root: bool = False,
    ) -> Outcome:
        """The control: the same user and directory without a sandbox."""
        return self.tester.run(
            words,
            cwd=cwd or self.tree.project,
            env=env,
            stdin=stdin,
            pass_fds=pass_fds,
            as_root=as_root,
        )

    def probe(self, *words: Word) -> list[Word]:
        return [self.programs.probe, *words]

    @contextmanager
    def starting(
        self,
        words: Sequence[Word],
        *flags: Word,
        env: Mapping[str, str] | None = None,
        stdin: int | None = subprocess.DEVNULL,
        journal: bool = True,
    ) -> Iterator[subprocess.Popen[str]]:
        argv = self.command(words, *flags, journal=journal)
        with self.tester.starting(argv, cwd=self.tree.project, env=env, stdin=stdin) as process:
            yield process

    def events(self, directory: Path | None = None) -> list[dict[str, Any]]:
        """The journal as the host reads it, oldest first."""
        return journal.events(directory or self.journal)


def only(events: list[dict[str, object]], kind: str) -> dict[str, object]:
    found = [event for event in events if event["event"] == kind]
    assert len(found) == 1, f"{len(found)} times {kind} in {events}"
    return found[0]
