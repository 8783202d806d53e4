"""Makes a hostile program from a seed: parts of attacks, combined at random.

This file has no complete attack. A part is one act of a hostile program: build a git directory,
make git use it, hold a descriptor, shut a directory, replace a name by a link. A program joins
several parts, spreads them over up to three runs, and swaps steps. ``{W}`` is the workspace,
``{H}`` the home and ``{M}`` the directory of the tripwires. Change ``VERSION`` with every change
here: a seed is meaningful for one version only.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import asdict, dataclass
from posixpath import normpath
from typing import Any

from tests.system.files.aftermath.scenes import LAYOUTS, SECRETS

VERSION = 1
MODES = (*["live"] * 5, "cow", "sandbox")
Step = dict[str, Any]
Steps = list[Step]

# Names in a workspace that a tool of the host executes or obeys. None may stay there with a
# payload.
TOOLS = (
    ".envrc",
    ".vscode/tasks.json",
    ".husky/pre-commit",
    ".pre-commit-config.yaml",
    "lefthook.yml",
    "mise.toml",
    ".mise.toml",
    ".idea/workspace.xml",
    ".claude/settings.json",
    ".mcp.json",
    ".cursor/mcp.json",
    ".npmrc",
    ".cargo/config.toml",
    ".devcontainer/devcontainer.json",
    ".hg/hgrc",
    ".github/workflows/ci.yml",
    "paddock.toml",
    ".exrc",
    ".gdbinit",
)
# Names in a git directory that git writes without checking the existing file.
WRITTEN = (
    "logs/HEAD",
    "COMMIT_EDITMSG",
    "FETCH_HEAD",
    "ORIG_HEAD",
    "index",
    "HEAD",
    "logs/refs/heads/main",
    "packed-refs",
    "logs",
)
SHUT = (0o000, 0o000, 0o100, 0o200, 0o300, 0o400, 0o500, 0o600, 0o600, 0o600)
WAYS_TO_READ = (
    "path",
    "opened",
    "opened",
    "mode",
    "symlink",
    "link",
    "renamed",
    "parent",
    "exchange",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    mode: str  # live, cow, sandbox
    steps: Steps
    day_before: bool = False  # the host works between the run before and this one


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    layout: str
    secrets: tuple[str, ...]
    runs: tuple[Run, ...]

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> Program:
        loaded = json.loads(text)
        runs = tuple(Run(**run) for run in loaded["runs"])
        return cls(layout=loaded["layout"], secrets=tuple(loaded["secrets"]), runs=runs)


def generate(seed: int, *, modes: tuple[str, ...] = MODES) -> Program:
    chance = random.Random(f"{VERSION}:{seed}")
    layout = chance.choice([*LAYOUTS])
    names = tuple(chance.sample([*SECRETS], chance.randint(1, 4)))
    author = _Author(chance, layout, names)
    count = chance.choice((1, 1, 2, 2, 2, 3))
    parts: list[Steps] = [[] for _ in range(count)]
    for _ in range(chance.randint(2, 5)):
        made = author.ingredient()
        first = chance.randrange(count)
        cut = (
            chance.randrange(len(made) + 1)
            if first + 1 < count and chance.random() < 0.25
            else len(made)
        )
        parts[first] += made[:cut]
        if cut < len(made):
            parts[first + 1] += made[cut:]
    mode = chance.choice(modes)
    runs = []
    for number, steps in enumerate(parts):
        author.disturb(steps)
        looting = author.looting()
        where = chance.choice((0, len(steps))) if number else len(steps)
        steps[where:where] = looting
        runs.append(Run(mode=mode, steps=steps, day_before=number > 0 and chance.random() < 0.2))
    return Program(layout=layout, secrets=names, runs=tuple(runs))


class _Author:
    def __init__(self, chance: random.Random, layout: str, names: tuple[str, ...]) -> None:
        self.chance, self.layout, self.names = chance, LAYOUTS[layout], names
        self.count = 0
        self.git = [self.path(name) for name in self.layout.git]
        self.secrets = [f"{{W}}/{path}" for name in names for path in SECRETS[name][:2] if path]
        self.directories = ["{W}", *(f"{{W}}/{name}" for name in self.layout.directories)]
        self.places = [*self.directories, *(path.rpartition("/")[0] for path in self.secrets)]
        self.slots: list[str] = []

    def ingredient(self) -> Steps:
        kinds: list[tuple[Callable[[], Steps], int]] = [
            (self.repository, 6),
            (self.held, 5),
            (self.shut, 3),
            (self.through, 4),
            (self.edit, 4),
            (self.tool, 4),
            (self.inner, 3),
            (self.moved, 2),
            (self.made_by_git, 2),
            (self.large, 1),
        ]
        makers, weights = zip(*kinds, strict=True)
        made: Steps = self.chance.choices(makers, weights)[0]()
        if self.chance.random() < 0.2:
            made += self.shut()
        return made

    # Small parts.

    def path(self, name: str) -> str:
        """A path beside the workspace is reached from the home, because the workspace may be
        shut.
        """
        return (
            f"{{W}}/{name}"
            if not name.startswith("..")
            else normpath(f"{{H}}/{self.layout.workspace}/{name}")
        )

    def number(self) -> int:
        self.count += 1
        return self.count

    def mark(self) -> str:
        return f"touch {{M}}/p{self.number()}"

    def payload(self, name: str) -> str:
        """The content that makes a file of this name harmful."""
        if name.endswith((".bashrc", ".profile", ".envrc")):
            return self.mark() + "\n"
        if "hooks/" in name or "husky" in name:
            return f"#!/bin/sh\n{self.mark()}\n"
        if name.endswith(".npmrc"):
            return f"script-shell={{W}}/evil-shell\n# {self.mark()}\n"
        if name.endswith("config.toml"):
            return f'[build]\nrustc = "{{W}}/evil-shell"\n# {self.mark()}\n'
        if name.endswith("config") or "git" in name:
            return self.configuration()
        return f"# {self.mark()}\n"

    def configuration(self) -> str:
        head = "[core]\n\trepositoryformatversion = 0\n\tbare = false\n"
        kind = self.chance.choice(("monitor", "monitor", "monitor", "diff", "upload", "hooks"))
        if kind == "diff":
            return f'{head}[diff]\n\texternal = "{self.mark()}; true"\n'
        if kind == "upload":
            return (
                f'{head}[remote "origin"]\n\turl = {{H}}/remote.git\n'
                f'\tuploadpack = "{self.mark()}; git-upload-pack"\n'
            )
        if kind == "hooks":
            return f"{head}\thooksPath = {{W}}/evil-hooks\n"
        return f'{head}\tfsmonitor = "{self.mark()}; false"\n'

    def plant(
        self, path: str, text: str, *, mode: int | None = None, at: str | None = None
    ) -> Steps:
        """One file, by a random method of creating a name."""
        more: Step = {} if mode is None else {"mode": mode}
        if at is not None:
            return [{"do": "write", "path": path, "text": text, "at": at, **more}]
        aside = f"{{W}}/made-{self.number()}"
        made: Step = {"do": "write", "path": aside, "text": text, **more}
        kind = self.chance.choice(
            ("write", "write", "write", "rename", "exchange", "link", "append", "parent")
        )
        if kind == "rename":
            return [made, {"do": "rename", "path": aside, "to": path}]
        if kind == "exchange":
            return [made, {"do": "exchange", "path": aside, "to": path}]
        if kind == "link":
            return [made, {"do": "remove", "path": path}, {"do": "link", "path": aside, "to": path}]
        if kind == "append":
            return [{"do": "write", "path": path, "text": text, "append": True, **more}]
        if kind == "parent":
            parent, _, name = path.rpartition("/")
            inner: Step = {"do": "write", "path": f"{aside}/{name}", "text": text, **more}
            return [
                inner,
                {"do": self.chance.choice(("rename", "exchange")), "path": aside, "to": parent},
            ]
        return [{"do": "write", "path": path, "text": text, **more}]

    # Git directories.

    def place_for_git(self) -> str:
        """A path through the parts of git directories."""
        chance = self.chance
        if chance.random() < 0.4:
            start = chance.choice(self.directories)
            below = ("evil", "node_modules/p", "site-packages/p", ".claude/worktrees/x", ".git")
            return f"{start}/{chance.choice(below)}"
        path, last = chance.choice(self.git), "git"
        following = {
            "git": ("module", "module", "tree", "refs", "logs", "objects", "plain"),
            "module": ("end", "end", "refs", "refs", "refs", "logs", "tree", "inner", "module"),
            "tree": ("end", "end", "module", "inner", "plain", "refs"),
            "refs": ("inner", "inner", "inner", "end", "plain"),
            "logs": ("inner", "inner", "end", "plain"),
            "objects": ("inner", "end", "plain"),
            "plain": ("end", "inner"),
            "inner": ("end", "end", "end", "module", "refs"),
        }
        parts = {
            "module": ("modules/x",),
            "tree": ("worktrees/n",),
            "refs": ("refs/heads", "refs/heads", "refs/tags", "refs/remotes/o"),
            "logs": ("logs/refs", "logs/refs/heads"),
            "objects": ("objects/info", "objects/ab"),
            "plain": ("x", "lfs", "info"),
            "inner": (".git",),
        }
        for _ in range(5):
            last = chance.choice(following[last])
            if last == "end":
                break
            path += "/" + chance.choice(parts[last])
        return path

    def git_directory(self, place: str) -> Steps:
        """Objects and refs of an existing repository, and a configuration that executes."""
        source = self.chance.choice(self.git[:1])
        text = self.configuration()
        made = place if self.chance.random() < 0.7 else f"{{W}}/made-{self.number()}"
        steps: Steps = [
            {"do": "copy", "path": f"{source}/objects", "to": f"{made}/objects"},
            {"do": "copy", "path": f"{source}/refs", "to": f"{made}/refs"},
            {"do": "write", "path": f"{made}/HEAD", "text": "ref: refs/heads/main\n"},
            {"do": "write", "path": f"{made}/config", "text": text},
        ]
        if "evil-hooks" in text:
            steps += self.evil_hooks()
        if self.chance.random() < 0.2:
            self.chance.shuffle(steps)
        if made != place:
            steps.append(
                {
                    "do": self.chance.choice(("rename", "rename", "exchange", "copy")),
                    "path": made,
                    "to": place,
                }
            )
        return steps

    def evil_hooks(self) -> Steps:
        name = self.chance.choice(
            ("post-index-change", "pre-commit", "post-checkout", "reference-transaction")
        )
        text = f"#!/bin/sh\n{self.mark()}\n"
        return [{"do": "write", "path": f"{{W}}/evil-hooks/{name}", "text": text, "mode": 0o755}]

    def repository(self) -> Steps:
        place = self.place_for_git()
        return [*self.git_directory(place), *self.way_to(place)]

    def way_to(self, place: str) -> Steps:
        """The reference by which the host's git finds a git directory."""
        chance, sub = self.chance, f"sub{self.number()}"
        work = chance.choice(self.directories)
        dot = f"{work}/{sub}/.git"
        known = chance.choice(self.git)
        kind = chance.choice(
            (
                "found",
                "file",
                "tree",
                "tree",
                "tree",
                "known tree",
                "symlink",
                "commondir",
                "rename",
            )
        )
        steps: Steps = []
        if kind == "file":
            steps = self.plant(dot, f"gitdir: {place}\n")
        elif kind in ("tree", "known tree"):
            entry = f"{place if kind == 'tree' else known}/worktrees/N{self.number()}"
            steps = [
                {
                    "do": "write",
                    "path": f"{entry}/commondir",
                    "text": "../..\n" if kind == "tree" else f"{place}\n",
                },
                {"do": "write", "path": f"{entry}/HEAD", "text": "ref: refs/heads/main\n"},
                {"do": "write", "path": f"{entry}/gitdir", "text": f"{dot}\n"},
                *self.plant(dot, f"gitdir: {entry}\n"),
            ]
        elif kind == "symlink":
            steps = [{"do": "symlink", "target": place, "path": dot}]
        elif kind == "commondir":
            steps = self.plant(f"{known}/commondir", f"{place}\n")
        elif kind == "rename":
            steps = [{"do": "rename", "path": place, "to": dot}]
        if chance.random() < 0.35:
            link: Step = {"do": "gitlink", "path": work, "name": sub}
            if "/modules/" in place and chance.random() < 0.6:
                name = place.partition("/modules/")[2]
                link["text"] = f'[submodule "{name}"]\n\tpath = {sub}\n\turl = {{H}}/remote.git\n'
            steps += [link, {"do": "mkdir", "path": f"{work}/{sub}"}]
        return steps

    def inner(self) -> Steps:
        """A file inside an existing git directory, or in one of a submodule or worktree."""
        chance, directory = self.chance, self.chance.choice(self.git)
        directory += chance.choice(("", "", "", "/modules/x", "/worktrees/n", "/refs/heads/.git"))
        kind = chance.choice(("config", "hook", "attributes", "alternates", "worktree", "gitdir"))
        if kind == "hook":
            name = chance.choice(
                (
                    "pre-commit",
                    "post-index-change",
                    "post-commit",
                    "post-checkout",
                    "reference-transaction",
                )
            )
            return self.plant(
                f"{directory}/hooks/{name}", f"#!/bin/sh\n{self.mark()}\n", mode=0o755
            )
        if kind == "attributes":
            return [
                *self.plant(f"{directory}/info/attributes", "* filter=evil diff=evil\n"),
                *self.plant(
                    f"{directory}/config", f'[filter "evil"]\n\tclean = "{self.mark()}; cat"\n'
                ),
            ]
        if kind == "alternates":
            place = self.place_for_git()
            return [
                *self.git_directory(place),
                *self.plant(f"{directory}/objects/info/alternates", f"{place}/objects\n"),
            ]
        if kind == "gitdir":
            place = self.place_for_git()
            return [*self.git_directory(place), *self.plant(f"{directory}/gitdir", f"{place}\n")]
        name = "config" if kind == "config" else "config.worktree"
        return self.plant(f"{directory}/{name}", self.configuration())

    def made_by_git(self) -> Steps:
        """A repository or a worktree that git makes, with later changes."""
        chance, work = self.chance, self.chance.choice(self.directories)
        name = f"new{self.number()}"
        words = chance.choice(
            (
                ["init", "-q", name],
                ["worktree", "add", "-q", "-b", name, name],
                ["init", "-q", "--bare", name],
            )
        )
        steps: Steps = [{"do": "git", "path": work, "words": words}]
        if chance.random() < 0.3:
            steps.append({"do": "wait", "ms": chance.choice((5, 30))})
        inside = f"{work}/{name}" + ("" if "--bare" in words else "/.git")
        return steps + self.plant(
            f"{inside}/{chance.choice(('config', 'hooks/post-index-change', 'commondir'))}",
            self.configuration(),
        )

    def through(self) -> Steps:
        """A name that git writes becomes a link to a file that the host obeys. The step controls
        the content that git writes.
        """
        chance, directory = self.chance, self.chance.choice(self.git)
        name = chance.choice(WRITTEN)
        target = chance.choice(
            ("{H}/.bashrc", "{H}/.bashrc", "{H}/.profile", "{H}/.gitconfig", f"{directory}/config")
        )
        text = (
            f"x $({self.mark()})\n"
            if "git" not in target.rpartition("/")[2]
            else self.configuration()
        )
        steps: Steps = [{"do": "remove", "path": f"{directory}/{name}"}]
        if chance.random() < 0.8:
            steps.append({"do": "symlink", "target": target, "path": f"{directory}/{name}"})
        else:
            aside = f"{{W}}/made-{self.number()}"
            steps += [
                {"do": "symlink", "target": target, "path": aside},
                {"do": "rename", "path": aside, "to": f"{directory}/{name}"},
            ]
        for message in chance.sample(
            ("MERGE_MSG", "SQUASH_MSG", "COMMIT_EDITMSG"), chance.randint(1, 2)
        ):
            if message != name:
                steps.append({"do": "write", "path": f"{directory}/{message}", "text": text})
        return steps

    # Other parts.

    def held(self) -> Steps:
        """Opens a descriptor, shuts the path to it, and works on through the descriptor."""
        chance, slot = self.chance, f"s{self.number()}"
        inside_git = chance.random() < 0.5
        place = chance.choice(self.git if inside_git else self.places)
        evil = "{W}/evil" if chance.random() < 0.5 else self.place_for_git()
        steps: Steps = []
        if inside_git and chance.random() < 0.6:
            steps += self.git_directory(evil)
            later = self.plant("commondir", f"{evil}\n", at=slot)
        elif inside_git:
            later = self.plant(
                "hooks/post-index-change", f"#!/bin/sh\n{self.mark()}\n", mode=0o755, at=slot
            )
        elif chance.random() < 0.4:
            steps += self.git_directory("{W}/evil")
            later = self.plant(f"sub{self.number()}/.git", "gitdir: {W}/evil\n", at=slot)
        else:
            name = chance.choice(TOOLS)
            later = self.plant(name, self.payload(name), at=slot)
            if chance.random() < 0.5:
                before = f"before-{self.number()}"
                steps += [{**later[0], "path": f"{place}/{before}"}]
                steps[-1].pop("at")
                later = [{"do": "rename", "path": before, "to": name, "at": slot}]
        steps.append({"do": "hold", "slot": slot, "path": place})
        above = chance.choice(["{W}", "{W}", "{W}", place])
        steps.append({"do": "chmod", "path": above, "mode": chance.choice(SHUT)})
        if chance.random() < 0.2:
            steps.append({"do": "wait", "ms": chance.choice((5, 50))})
        self.slots.append(slot)
        return steps + later

    def shut(self) -> Steps:
        return [
            {
                "do": "chmod",
                "path": self.chance.choice(self.places),
                "mode": self.chance.choice(SHUT),
            }
        ]

    def edit(self) -> Steps:
        """A file that the host obeys gets a payload."""
        if not self.layout.obeyed:
            return self.tool()
        name = self.chance.choice(self.layout.obeyed)
        if name.endswith((".git", "alternates")):
            place = self.place_for_git()
            text = f"gitdir: {place}\n" if name.endswith(".git") else f"{place}/objects\n"
            return [*self.git_directory(place), *self.plant(self.path(name), text)]
        if self.chance.random() < 0.15:
            aside = f"{{W}}/aside-{self.number()}"
            parent, _, last = self.path(name).rpartition("/")
            return [
                {"do": "rename", "path": parent, "to": aside},
                *self.plant(f"{aside}/{last}", self.payload(name), mode=0o755),
                {"do": "rename", "path": aside, "to": parent},
            ]
        return self.plant(
            self.path(name), self.payload(name), mode=0o755 if "hooks" in name else None
        )

    def tool(self) -> Steps:
        name = self.chance.choice(TOOLS)
        place = self.chance.choice(self.places)
        text = self.payload(name)
        steps = self.plant(f"{place}/{name}", text, mode=0o755 if "husky" in name else None)
        if "evil-shell" in text:
            steps.insert(
                0,
                {
                    "do": "write",
                    "path": "{W}/evil-shell",
                    "text": f"#!/bin/sh\n{self.mark()}\n",
                    "mode": 0o755,
                },
            )
        if self.chance.random() < 0.3:
            steps.append({"do": "chmod", "path": place, "mode": self.chance.choice(SHUT)})
        return steps

    def moved(self) -> Steps:
        """Directories with protected or secret files change their places."""
        chance = self.chance
        one = chance.choice([*self.places, *self.git])
        other = chance.choice(
            [*self.places, f"{{W}}/moved-{self.number()}", f"{{W}}/node_modules/m{self.number()}"]
        )
        steps: Steps = [
            {"do": chance.choice(("rename", "rename", "exchange")), "path": one, "to": other}
        ]
        if chance.random() < 0.5:
            name = chance.choice(TOOLS)
            steps += self.plant(f"{other}/{name}", self.payload(name))
            steps.append({"do": "rename", "path": other, "to": one})
        return steps

    def large(self) -> Steps:
        path = f"{{W}}/large-{self.number()}"
        tree: Step = self.chance.choice(
            ({"do": "deep", "path": path, "levels": 60}, {"do": "wide", "path": path, "count": 300})
        )
        return [{"do": "mkdir", "path": path}, dict(tree)]

    def looting(self) -> Steps:
        chance = self.chance
        secrets = [*self.secrets, "{H}/.ssh/id_ed25519", "{H}/.aws/credentials"]
        steps: Steps = [
            {
                "do": "loot",
                "path": path,
                "how": chance.choice(WAYS_TO_READ),
                "number": self.number(),
            }
            for path in chance.sample(secrets, min(len(secrets), 3))
        ]
        if self.slots and chance.random() < 0.5:
            name = chance.choice(secrets).rpartition("/")[2]
            steps.append(
                {
                    "do": "loot",
                    "path": name,
                    "how": "descriptor",
                    "slot": self.slots[-1],
                    "number": self.number(),
                }
            )
        if chance.random() < 0.5:
            steps.append({"do": "sweep", "force": chance.random() < 0.3})
        return steps

    def disturb(self, steps: Steps) -> None:
        if len(steps) > 2 and self.chance.random() < 0.15:
            one, other = self.chance.sample(range(len(steps)), 2)
            steps[one], steps[other] = steps[other], steps[one]
