"""Commands under exec rules, and the host's record of the programs that they started."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.sandbox import SandboxRunner, Word
from tests.support.tester import TIMEOUT_S, Outcome

EXEC = ("exec", "exec.attack")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """Runs ``paddock run`` with its own policy. The test programs are in a granted directory, as
    the programs of the system are. Every marker program adds a line to the file ``ran`` in its
    working directory. The host reads that file.
    """

    sandbox: SandboxRunner

    @property
    def project(self) -> Path:
        return self.sandbox.tree.project

    @property
    def forbidding(self) -> str:
        """The rule of most tests: it denies the marker program under both names."""
        return rule(
            "no-marker",
            "deny",
            exe=[str(self.sandbox.programs.forbidden), str(self.sandbox.programs.linked)],
        )

    def policy(
        self, *rules: str, default: str = "allow", more: str = "", profile: str = "ai-agent"
    ) -> Path:
        text = (
            f'[meta]\ninherit = "{profile}"\ndefault_action = "{default}"\n'
            "on_supervisor_timeout_ms = 10000\n"  # long enough for a busy machine
            f'[filesystem]\nexec_globs = ["{self.sandbox.programs.directory}/**"]\n{more}\n'
            f"{''.join(rules)}"
        )
        path = self.sandbox.tree.root / "gate.toml"
        # An unchanged file stays as it is, so that the next run of a test can use the memo.
        if path.exists() and path.read_text() == text:
            return path
        return self.sandbox.tree.put(path, text)

    def command(self, words: Sequence[Word], policy: Path, *flags: Word) -> list[Word]:
        return self.sandbox.command(words, "--policy", policy, *flags)

    def inside(
        self,
        words: Sequence[Word],
        *rules: str,
        default: str = "allow",
        more: str = "",
        flags: Sequence[Word] = (),
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        stdin: str | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> Outcome:
        argv = self.command(words, self.policy(*rules, default=default, more=more), *flags)
        tester = self.sandbox.tester
        return tester.run(argv, cwd=cwd or self.project, env=env, stdin=stdin, timeout_s=timeout_s)

    def shell(
        self, script: str, *rules: str, default: str = "allow", flags: Sequence[Word] = ()
    ) -> Outcome:
        return self.inside(["sh", "-c", script], *rules, default=default, flags=flags)

    def without(self, words: Sequence[Word]) -> Outcome:
        """The control: the same sandbox without a gate."""
        return self.sandbox.inside(words, "-x", f"{self.sandbox.programs.directory}/**")

    def ran(self, directory: Path | None = None) -> list[str]:
        """The programs that ran since the last call, as the host sees them."""
        marks = (directory or self.project) / "ran"
        lines = marks.read_text(errors="surrogateescape").splitlines() if marks.exists() else []
        marks.unlink(missing_ok=True)
        return lines

    def execs(self) -> list[dict[str, object]]:
        return [event for event in self.sandbox.events() if event["event"] in EXEC]


def rule(name: str, action: str, **keys: str | int | list[str]) -> str:
    """A rule as in a policy file. A TOML string is close enough to a Python string."""
    lines = "".join(f"{key} = {_toml(value)}\n" for key, value in keys.items())
    return f'[[rule]]\nid = "{name}"\naction = "{action}"\n{lines}'


def _toml(value: str | int | list[str]) -> str:
    match value:
        case int():
            return str(value)
        case str():
            assert "'" not in value, value
            return f"'{value}'"
        case list():
            return f"[{', '.join(map(_toml, value))}]"


def script(*words: Word) -> str:
    return shlex.join(map(str, words))
