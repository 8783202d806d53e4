"""`paddock why` and the kernel give the same answer.

The test tries thousands of acts on random trees, under random grants and denies, in both tiers and
in a copy of the workspace. Each act is first tried without the sandbox, as the control: only an act
that succeeds there can be refused by the sandbox.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support.file_probe import MARK
from tests.support.installation import reachable_interpreter
from tests.support.sandbox import SandboxRunner, Word
from tests.support.tester import Outcome
from tests.support.tree import ProjectTree

WORLDS = 5
POLICIES = 4  # for each random tree
LEAST = 500  # acts that the sandbox could decide, for each tier
SEED = 20261115

PLAIN = ("a", "b", "c", "d.txt", "e.py", "with space", "n\u00e4me", "\udcff")
SPECIAL = (
    ".env",
    "id_rsa",
    ".envrc",
    ".vscode",
    "Makefile",
    ".pre-commit-config.yaml",
    ".mcp.json",
)
MODES = (0o644, 0o755, 0o755, 0o600, 0o444, 0o200)
# The operations of the plan for the acts of the probe.
OPERATIONS = {"make-directory": "make"}


@dataclass(slots=True)
class RandomTree:
    """A random tree. It can be made again, the same each time."""

    root: Path
    seed: int
    directories: list[Path] = field(default_factory=list)
    files: list[Path] = field(default_factory=list)
    links: list[Path] = field(default_factory=list)
    victims: list[Path] = field(default_factory=list)
    shut: list[Path] = field(default_factory=list)

    def make(self, tree: ProjectTree) -> None:
        _empty(self.root)
        choose = random.Random(self.seed)
        self.directories, self.files, self.links, self.victims, self.shut = (
            [self.root],
            [],
            [],
            [],
            [],
        )
        for number in range(choose.randint(8, 12)):
            name = choose.choice([*PLAIN, *PLAIN, *SPECIAL]) + choose.choice(["", str(number)])
            self._directory(choose.choice(self.directories) / name)
        if choose.random() < 0.7:
            self._repository(choose.choice(self.directories))
        for directory in tuple(self.directories):
            for name in choose.sample([*PLAIN, *SPECIAL], choose.randint(1, 3)):
                self._file(directory / name, choose.choice(MODES))
            victim = directory / "victim"
            self._file(victim, 0o644)
            self.victims.append(victim)
        # These directories cannot be listed, so no rule by name protects files in them.
        for directory in choose.sample(self.directories, 2):
            shut = directory / "shut"
            shut.mkdir()
            (shut / "inside").write_text("#!/bin/sh\n")
            shut.chmod(0o300)
            self.shut.append(shut)
        for number in range(6):
            self._link(choose.choice(self.directories) / f"link{number}", choose)
        for number in range(4):
            self._hard_link(
                choose.choice(self.directories) / f"hard{number}", choose.choice(self.files)
            )
        tree.tester.give(self.root)

    def _directory(self, path: Path) -> None:
        if not os.path.lexists(path):
            path.mkdir()
            self.directories.append(path)

    def _repository(self, path: Path) -> None:
        git = path / ".git"
        for one in (git, git / "hooks", git / "objects", git / "refs"):
            self._directory(one)
        for one in (git / "HEAD", git / "config", git / "hooks" / "pre-commit"):
            self._file(one, 0o755)

    def _file(self, path: Path, mode: int) -> None:
        if not os.path.lexists(path):
            path.write_text("#!/bin/sh\n")
            path.chmod(mode)
            self.files.append(path)

    def _link(self, path: Path, choose: random.Random) -> None:
        target = choose.choice([*self.files, *self.directories, *self.links, self.root / "nowhere"])
        if not os.path.lexists(path):
            path.symlink_to(
                target if choose.random() < 0.5 else os.path.relpath(target, path.parent)
            )
            self.links.append(path)

    def _hard_link(self, path: Path, file: Path) -> None:
        if not os.path.lexists(path):
            os.link(file, path)
            self.files.append(path)

    def cases(self, choose: random.Random) -> Iterator[tuple[str, str]]:
        for path in (*self.directories, *self.files, *self.links):
            yield from ((str(path), act) for act in ("read", "write", "exec", "change"))
        for path in self.shut:
            yield from ((str(path / "inside"), act) for act in ("read", "write", "change"))
            yield str(path / "new"), "make"
        # Directories above the tree, which are only parents of a grant.
        yield from (
            (str(path), act)
            for path in (self.root.parent, Path("/"))
            for act in ("read", "write", "make")
        )
        for number, directory in enumerate((*self.directories, *self.links)):
            yield str(directory / f"new{number}"), "make"
            yield str(directory / f"new-directory{number}"), "make-directory"
            yield str(directory / choose.choice(SPECIAL)), "make"
        yield from ((str(path), "remove") for path in self.victims)
        # Last, because other cases use these paths.
        yield from ((str(path), "remove") for path in self.links)


def _empty(root: Path) -> None:
    for entry in os.scandir(root):
        path = Path(entry.path)
        shutil.rmtree(path) if entry.is_dir(follow_symlinks=False) else path.unlink()


def grants(random_tree: RandomTree, choose: random.Random, *, whole: bool) -> list[str]:
    """``whole``: grants the whole workspace, because a copy needs that."""
    flags = ["--allow", f"{random_tree.root}/**"] if whole else []
    for directory in choose.sample(
        random_tree.directories, min(len(random_tree.directories), choose.randint(1, 4))
    ):
        flags += [
            choose.choice(["--read", "--read", "--allow", "--allow", "-x", "--write"]),
            f"{directory}/**",
        ]
    for file in choose.sample(random_tree.files, 2):
        flags += [choose.choice(["--read", "--allow", "-x"]), str(file)]
    flags += [choose.choice(["--read", "--allow"]), f"{random_tree.root}/absent/**?"]
    if choose.random() < 0.4:
        inert = _policy(
            random_tree,
            choose.choice(["read_globs", "allow_globs"]),
            choose.choice(random_tree.directories),
        )
        flags += ["--policy", str(inert)]
    for place in choose.sample(
        [*random_tree.directories[1:], *random_tree.files], choose.randint(0, 3)
    ):
        flags += ["--deny", f"{place}/**" if place.is_dir() else str(place)]
    if choose.random() < 0.5:
        flags += [
            "--deny",
            choose.choice(
                [
                    "**/.env?",
                    "**/*.txt?",
                    f"{random_tree.root}/**/a?",
                    f"{random_tree.root}/*/.vscode?",
                ]
            ),
        ]
    if choose.random() < 0.3:
        flags += ["--open-protected", choose.choice(["**/.envrc", "**/.vscode", "**/.git/hooks"])]
    return flags


def _policy(random_tree: RandomTree, key: str, directory: Path) -> Path:
    """A grant without execution, which has no flag."""
    path = random_tree.root.parent / "policy.toml"
    path.write_text(
        f"[meta]\nversion = 1\n[filesystem]\n{key} = [{{ path = '{directory}/**', "
        f"execute = false }}]\n",
        errors="surrogateescape",
    )
    return path


@dataclass(slots=True)
class Compared:
    """The result: acts that the sandbox could decide, by decision, and disagreements."""

    allowed: int = 0
    refused: int = 0
    wrong: list[str] = field(default_factory=list)


def try_all(outcome: Outcome, cases: list[tuple[str, str]]) -> list[int]:
    assert outcome.started, f"the probe never ran: {outcome}"
    errnos = [int(line) for line in outcome.stdout.splitlines()[1:]]
    assert len(errnos) == len(cases), outcome
    return errnos


def compare(
    sandbox: SandboxRunner, seed: int, *flags: str, judged_flags: tuple[str, ...] = ()
) -> Compared:
    """``judged_flags``: the plan gets other flags than the run, for the control of this test."""
    copied = "--cow" in flags
    choose = random.Random(seed)
    random_tree = RandomTree(root=sandbox.tree.project, seed=seed)
    script = sandbox.programs.directory / "file_probe.py"
    shutil.copy(Path(__file__).parents[2] / "support" / "file_probe.py", script)
    script.chmod(0o644)
    prober: list[Word] = [reachable_interpreter(sandbox.tester)[0], "-I", script]
    random_tree.make(sandbox.tree)
    cases = list(dict.fromkeys(random_tree.cases(choose)))
    control = try_all(sandbox.outside(prober, stdin=json.dumps(cases)), cases)
    found = Compared()
    for _ in range(POLICIES):
        random_tree.make(sandbox.tree)
        policy = grants(random_tree, choose, whole=copied)
        argv = sandbox.command(prober, *policy, *flags, profile="base", journal=False)
        options = [str(word) for word in argv[2 : argv.index("--")]]
        judged = judge_all(sandbox, [*options, *judged_flags], cases)
        if judged is None:  # two grants contradict each other
            assert sandbox.tester.run(argv, cwd=sandbox.tree.project).exit_code == 125
            continue
        # The last cases remove links of the path.
        places = {
            path: os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
            for path, _ in cases
        }
        tried = try_all(
            sandbox.inside(
                prober, *policy, *flags, profile="base", journal=False, stdin=json.dumps(cases)
            ),
            cases,
        )
        for (path, act), outside, inside, answer in zip(cases, control, tried, judged, strict=True):
            where = (
                f"{act} {path}: {answer} kernel {os.strerror(inside)}, seed {seed}, "
                f"{' '.join(policy)}"
            )
            if outside != 0:
                # A name that is hidden in a copy can be created there. A removed one can be created
                # again by another path.
                if inside == 0 and not (act == "make" and (copied or answer["later"])):
                    found.wrong.append(f"done only inside: {where}")
                continue
            succeeds = answer["allowed"] or answer["later"]
            if succeeds != (inside == 0):
                found.wrong.append(where)
            if inside == 0:
                found.allowed += 1
            else:
                found.refused += 1
            # Init drops the mark where it is not harmless content for git.
            by_content = act == "write" and "harmless content only" in str(answer["reason"])
            if not by_content and not _host_agrees(
                places[path], act, done=inside == 0 and not copied, later=bool(answer["later"])
            ):
                found.wrong.append(f"the host sees another outcome: {where}")
    return found


def judge_all(
    sandbox: SandboxRunner, options: list[str], cases: list[tuple[str, str]]
) -> list[dict[str, object]] | None:
    """None if the plan is refused."""
    script = Path(__file__).parents[2] / "support" / "plan_answers.py"
    asked = {"flags": options, "cases": [(path, OPERATIONS.get(act, act)) for path, act in cases]}
    python = sandbox.installation.root / "bin" / "python3"
    shown = sandbox.tester.run(
        [python, "-I", "-c", script.read_text()], cwd=sandbox.tree.project, stdin=json.dumps(asked)
    )
    # A shut directory in a denied directory refuses every run: links in it may lead to secrets.
    if "PolicyError" in shown.stderr or "cannot list" in shown.stderr:
        return None
    assert shown.exit_code == 0, shown
    answers: list[dict[str, object]] = json.loads(shown.stdout)
    return answers


def _host_agrees(path: str, act: str, *, done: bool, later: bool) -> bool:
    match act:
        case "write" if os.path.isfile(path):
            # A hard link of the same file may have been written.
            return MARK in Path(path).read_bytes() or not done
        case "make" | "make-directory":
            return later or os.path.lexists(path) == done
        case "remove":
            return os.path.lexists(path) != done
        case _:
            return True


@pytest.mark.parametrize("how", ["landlock", "full", "cow"])
def test_the_plan_and_the_kernel_agree_on_every_act(
    sandbox: SandboxRunner, full: SandboxRunner, how: str
) -> None:
    chosen, flags = (
        (sandbox, ()) if how == "landlock" else (full, ("--cow",) if how == "cow" else ())
    )
    total = Compared()
    for number in range(WORLDS):
        found = compare(chosen, SEED + number, *flags)
        total.allowed += found.allowed
        total.refused += found.refused
        total.wrong += found.wrong
    assert not total.wrong, f"{len(total.wrong)} of {total.allowed + total.refused}:\n" + "\n".join(
        total.wrong[:20]
    )
    assert min(total.allowed, total.refused) >= LEAST, total


@pytest.mark.parametrize("grant", ["--read", "--allow"])
def test_control_a_plan_with_one_more_grant_is_detected(full: SandboxRunner, grant: str) -> None:
    """The control: with one more grant than the run, the plan disagrees with the kernel."""
    assert compare(full, SEED, judged_flags=(grant, f"{full.tree.project}/**")).wrong
