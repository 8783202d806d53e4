"""Commands under exec rules, and what the host sees of the programs they started."""

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
    """``paddock run`` under a policy of its own. The programs of the tests lie in a granted place,
    as the system's do. Every marker leaves a line in the file ``ran`` of the directory it is
    started in: that is how the host knows.
    """

    sandbox: SandboxRunner

    @property
    def project(self) -> Path:
        return self.sandbox.tree.project

    @property
    def forbidding(self) -> str:
        """What most tests are about: the marker is denied, by whatever file it is."""
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
            "on_supervisor_timeout_ms = 10000\n"  # others may use the machine too
            f'[filesystem]\nexec_globs = ["{self.sandbox.programs.directory}/**"]\n{more}\n'
            f"{''.join(rules)}"
        )
        return self.sandbox.tree.put(self.sandbox.tree.root / "gate.toml", text)

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
        """The control: the same sandbox, and no gate."""
        return self.sandbox.inside(words, "-x", f"{self.sandbox.programs.directory}/**")

    def ran(self, directory: Path | None = None) -> list[str]:
        """What has run since the last look, as the host sees it."""
        marks = (directory or self.project) / "ran"
        lines = marks.read_text(errors="surrogateescape").splitlines() if marks.exists() else []
        marks.unlink(missing_ok=True)
        return lines

    def execs(self) -> list[dict[str, object]]:
        return [event for event in self.sandbox.events() if event["event"] in EXEC]


def rule(name: str, action: str, **keys: str | int | list[str]) -> str:
    """As in a policy file; a TOML string is close enough to Python's."""
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
