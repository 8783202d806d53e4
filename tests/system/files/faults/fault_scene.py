"""A workspace with denied and protected names, and commands that attack them. The host checks each
name.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.support.sandbox import SandboxRunner, Word
from tests.support.saved_state import remove
from tests.support.tester import TIMEOUT_S, Outcome
from tests.system.files.faults.injection import LOST

SECRET = "the-denied-secret"
DENIED = (
    ".env",
    "deploy/.env",
    "deploy/settings",
    "deploy/hard",
)  # a file, a link and its target, a hard link
PROTECTED = {
    "app/.vscode/tasks.json": "{}\n",
    "bare.git/config": "[core]\n\tbare = true\n",
    "hooks/pre-commit": "true\n",  # named by the configuration of the repository in nested/
}
REPOSITORIES = {
    "bare.git/HEAD": "ref: refs/heads/main\n",
    "nested/.git/HEAD": "ref: refs/heads/main\n",
    "nested/.git/config": "[core]\n\tbare = false\n\thooksPath = ../hooks\n",
}
PLANTED = (".envrc", "new/.vscode", "nested/.git/commondir", "app/.mcp.json")
PLANT = """
echo evil > .envrc; mkdir -p new/.vscode; echo evil > new/.vscode/tasks.json
echo ../evil > nested/.git/commondir; echo evil > app/.mcp.json
"""
ACT = f"""
echo started
cat {" ".join(DENIED)}
for f in {" ".join(PROTECTED)}; do echo evil > $f; done
{PLANT}
echo done > work.txt
"""
# The denied names that the host writes during the run: the first is replaced, the second is new.
LATE = {".env": f"{SECRET}-3\n", "app/.env": f"{SECRET}-4\n"}
# The command waits for the guard at most this many times 20 ms. That is longer than the guard waits
# between two checks.
TRIES = 150


GUARDED_ACT = f"""
echo started
{PLANT}
echo ready; read go
for f in {" ".join(LATE)}; do
    n=0; while cat $f >/dev/null 2>&1 && test $n -lt {TRIES}; do sleep 0.02; n=$((n+1)); done
    cat $f
done
echo done > work.txt
"""


@dataclass(frozen=True, slots=True)
class Scene:
    full: SandboxRunner

    @property
    def project(self) -> Path:
        return self.full.tree.project

    @property
    def state(self) -> Path:
        return self.full.tester.home / ".local" / "state" / "paddock"

    def lay_out(self) -> None:
        self.full.tree.put(self.project / "deploy" / "settings", f"{SECRET}-2\n")
        (self.project / "deploy" / ".env").symlink_to("settings")
        self.put_secret()
        self.put_files()

    def put_files(self) -> None:
        """The protected files, and the repositories around them."""
        for name, text in (PROTECTED | REPOSITORIES).items():
            if self.text_of(name) != text:
                self.full.tree.put(self.project / name, text)
        for name in ("bare.git", "nested/.git"):
            for part in ("objects", "refs"):
                if not (self.project / name / part).exists():
                    self.full.tree.make(self.project / name / part)

    def put_secret(self) -> None:
        """The first denied name and its hard link."""
        for name in (".env", "deploy/hard", "app/.env"):
            (self.project / name).unlink(missing_ok=True)
        self.full.tree.put(self.project / ".env", f"{SECRET}-1\n")
        os.link(self.project / ".env", self.project / "deploy" / "hard")

    def directories(self) -> list[Path]:
        return [Path(parent) for parent, _, _ in os.walk(self.project)]

    def left(self) -> list[str]:
        return [name for name in PLANTED if os.path.lexists(self.project / name)]

    def uncovered(self, outcome: Outcome) -> list[str]:
        """The names that were read, are left, or were changed, as the host sees them."""
        secrets = {1: DENIED[0], 2: DENIED[2], 3: ".env", 4: "app/.env"}
        read = [name for number, name in secrets.items() if f"{SECRET}-{number}" in outcome.stdout]
        files = PROTECTED | REPOSITORIES
        changed = [name for name, text in files.items() if self.text_of(name) != text]
        return [*read, *self.left(), *changed]

    def text_of(self, name: str) -> str | None:
        """None: the name is not there."""
        path = self.project / name
        return path.read_text() if path.exists() else None

    def judge(self, outcome: Outcome) -> tuple[str, str]:
        """The result: nothing is uncovered, or a line names it."""
        uncovered = self.uncovered(outcome)
        if not uncovered:
            return ("closed" if outcome.exit_code == 0 else f"closed ({outcome.exit_code})"), ""
        detail = f"{', '.join(uncovered)}; exit {outcome.exit_code}: {outcome.stderr}"
        if all(str(self.project / name) in outcome.stderr for name in uncovered):
            return "named", detail
        return LOST, detail

    def put_back(self) -> None:
        for name in (*self.left(), "new"):
            if os.path.lexists(self.project / name):
                remove(self.project / name)
        self.put_files()
        if (self.project / ".env").stat().st_nlink != 2:
            self.put_secret()

    def inside(self, prefix: Sequence[Word], *flags: Word, act: str = ACT) -> Outcome:
        return self.full.inside(["sh", "-c", act], "--quiet", *flags, journal=False, prefix=prefix)

    def guarded(self, prefix: Sequence[Word], *flags: Word) -> Outcome:
        """The command tries to plant names. Then the host replaces a denied name and creates a new
        one. The command waits until it can read neither.
        """
        words = self.full.command(["sh", "-c", GUARDED_ACT], "--quiet", *flags, journal=False)
        with self.full.tester.starting(
            [*prefix, *words], cwd=self.project, stdin=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            assert process.stdin is not None
            before = ""
            while (line := process.stdout.readline()) not in ("", "ready\n"):
                before += line
            for name, text in LATE.items():
                self.full.tree.put(self.full.tree.root / "fresh", text).rename(self.project / name)
            with suppress(BrokenPipeError):
                process.stdin.write("go\n")
                process.stdin.flush()
            stdout, stderr = process.communicate(timeout=TIMEOUT_S)
        return Outcome(argv=(), exit_code=process.returncode, stdout=before + stdout, stderr=stderr)
