"""Copy-on-write sessions for the tests: made by a script on real overlay mounts, applied by the
real command.
"""

from __future__ import annotations

import json
import os
import secrets
import shlex
import shutil
import stat
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.installation import Installation
from tests.support.tester import Outcome, Tester
from tests.support.tree import ProjectTree

SUPPORT = Path(__file__).parent
PROTECT = (
    "**/.envrc",
    "**/.vscode",
    "**/.git",
    "**/.git/config",
    "**/.git/hooks",
    "**/.claude/settings.json",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workbench:
    """Programs of the tests in a directory that the tester can read, and a Python that imports the
    package under test.
    """

    directory: Path
    python: Path

    def script(self, source: Path) -> list[str | Path]:
        target = self.directory / source.name
        if not target.exists():
            shutil.copy(source, target)
            target.chmod(0o644)
        return [self.python, target]


@contextmanager
def workbench(directory: Path, tester: Tester, installation: Installation) -> Iterator[Workbench]:
    python = installation.root / "bin" / "python3" if tester.disposable else Path(sys.executable)
    package = (
        directory / "tests" / "support"
    )  # the scripts import modules by the names that they have here
    package.mkdir(parents=True)
    for name in ("__init__.py", "../__init__.py", "overlay.py"):
        shutil.copy(SUPPORT / name, package / name)
    yield Workbench(directory=directory, python=python)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cow:
    tester: Tester
    installation: Installation
    bench: Workbench
    tree: ProjectTree
    made: list[str] = field(default_factory=list)

    @property
    def workspace(self) -> Path:
        return self.tree.project

    @property
    def journal(self) -> Path:
        return self.tree.root / "journal"

    @property
    def store(self) -> Path:
        return self.tester.home / ".local" / "state" / "paddock" / "sessions"

    def session(self, script: str, *, masked: Sequence[str] = (), name: str | None = None) -> str:
        """Runs a shell script on an overlay over the workspace. Returns the name of its session,
        which has ended.
        """
        argv = self.command(["sh", "-euc", script], masked=masked, name=name)
        done = self.tester.run(argv, cwd=self.workspace)
        assert done.exit_code == 0, done
        return self.made[-1]

    def command(
        self,
        words: Sequence[str],
        *,
        masked: Sequence[str] = (),
        name: str | None = None,
        protect: Sequence[str] = PROTECT,
    ) -> list[str | Path]:
        name = name or secrets.token_hex(8)
        self.made.append(name)
        plan = json.dumps({"files": {"protect": list(protect), "opened": []}})
        script = self.bench.script(SUPPORT / "overlay.py")
        return [
            *script,
            self.store,
            name,
            self.workspace,
            plan,
            json.dumps(list(masked)),
            "--",
            *words,
        ]

    def paddock(self, *words: str | Path, cwd: Path | None = None) -> Outcome:
        outcome = self.tester.run([self.installation.paddock, *words], cwd=cwd or self.workspace)
        assert "Traceback" not in outcome.stderr, outcome
        return outcome

    def running(self, *words: str | Path, flags: Sequence[str | Path] = ()) -> list[str | Path]:
        start: list[str | Path] = [
            self.installation.paddock,
            "run",
            "--cow",
            "--profile",
            "ai-agent",
            "--audit-log",
            self.journal,
        ]
        return [*start, *flags, "--", *words]

    def run(self, *words: str | Path, flags: Sequence[str | Path] = ()) -> Outcome:
        """Runs ``paddock run --cow``. Its session is removed with the others."""
        known = self.sessions()
        outcome = self.tester.run(self.running(*words, flags=flags), cwd=self.workspace)
        self.made.extend(self.sessions() - known)
        return outcome

    def sessions(self) -> set[str]:
        return set(os.listdir(self.store)) if self.store.exists() else set()

    def only_session(self) -> str:
        (name,) = self.made
        return name

    def diff(self, *words: str | Path) -> dict[str, str]:
        """Path → kind of change, with its obstacle if there is one (``changed!conflict``)."""
        return {
            one["path"]: one["change"] + (f"!{one['obstacle']}" if one["obstacle"] else "")
            for one in self.changes(*words)
        }

    def changes(self, *words: str | Path) -> list[dict[str, Any]]:
        shown = self.paddock("diff", "--json", *words)
        assert shown.exit_code == 0, shown
        loaded: list[dict[str, Any]] = json.loads(shown.stdout)["changes"]
        return loaded

    def put(self, path: str, text: str = "") -> Path:
        """Writes new content in place, as the host does. Nothing else changes."""
        self.host(
            f"mkdir -p {shlex.quote(os.path.dirname(path) or '.')}; "
            f"printf %s {shlex.quote(text)} > {shlex.quote(path)}"
        )
        return self.workspace / path

    def host(self, script: str) -> None:
        """Runs a script of the host in the workspace, during a session or after it."""
        done = self.tester.run(["sh", "-euc", script], cwd=self.workspace)
        assert done.exit_code == 0, done

    def upper(self, session: str) -> Path:
        return self.store / session / "upper"


def tree_entries(root: Path) -> dict[str, tuple[Any, ...]]:
    """All entries below a directory, with every property that an apply has to copy."""
    found: dict[str, tuple[Any, ...]] = {}
    for parent, directories, files in os.walk(root):
        for name in (*directories, *files):
            path = Path(parent, name)
            facts = path.lstat()
            mode = stat.S_IMODE(facts.st_mode)
            entry: tuple[Any, ...]
            if stat.S_ISLNK(facts.st_mode):
                entry = ("link", os.readlink(path))
            elif stat.S_ISDIR(facts.st_mode):
                entry = ("directory", mode)
            elif not stat.S_ISREG(facts.st_mode):
                entry = ("special",)
            else:
                entry = ("file", mode, facts.st_mtime_ns, path.read_bytes())
            found[str(path.relative_to(root))] = entry
    return found
