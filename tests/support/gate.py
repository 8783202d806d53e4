"""Commands under exec rules, and what the host sees of the programs they started."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.fence import Fence, Word
from tests.support.tester import TIMEOUT_S, Outcome

EXEC = ("exec", "exec.attack")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """``paddock run`` under a policy of its own. The programs of the tests lie in a granted place,
    as the system's do. Every marker leaves a line in the file ``ran`` of the directory it is
    started in: that is how the host knows.
    """

    fence: Fence

    @property
    def project(self) -> Path:
        return self.fence.ground.project

    @property
    def forbidding(self) -> str:
        """What most tests are about: the marker is denied, by whatever file it is."""
        return rule(
            "no-marker",
            "deny",
            exe=[str(self.fence.programs.forbidden), str(self.fence.programs.linked)],
        )

    def policy(
        self, *rules: str, default: str = "allow", more: str = "", profile: str = "ai-agent"
    ) -> Path:
        text = (
            f'[meta]\ninherit = "{profile}"\ndefault_action = "{default}"\n'
            "on_supervisor_timeout_ms = 10000\n"  # others may use the machine too
            f'[filesystem]\nexec_globs = ["{self.fence.programs.directory}/**"]\n{more}\n'
            f"{''.join(rules)}"
        )
        path = self.fence.ground.root / "gate.toml"
        # An unchanged file stays as it is, so that the next run of a test can use the memo.
        if path.exists() and path.read_text() == text:
            return path
        return self.fence.ground.put(path, text)

    def command(self, words: Sequence[Word], policy: Path, *flags: Word) -> list[Word]:
        return self.fence.command(words, "--policy", policy, *flags)

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
        tester = self.fence.tester
        return tester.run(argv, cwd=cwd or self.project, env=env, stdin=stdin, timeout_s=timeout_s)

    def shell(
        self, script: str, *rules: str, default: str = "allow", flags: Sequence[Word] = ()
    ) -> Outcome:
        return self.inside(["sh", "-c", script], *rules, default=default, flags=flags)

    def without(self, words: Sequence[Word]) -> Outcome:
        """The control: the same fence, and no gate."""
        return self.fence.inside(words, "-x", f"{self.fence.programs.directory}/**")

    def ran(self, directory: Path | None = None) -> list[str]:
        """What has run since the last look, as the host sees it."""
        marks = (directory or self.project) / "ran"
        lines = marks.read_text(errors="surrogateescape").splitlines() if marks.exists() else []
        marks.unlink(missing_ok=True)
        return lines

    def execs(self) -> list[dict[str, object]]:
        return [event for event in self.fence.events() if event["event"] in EXEC]


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
