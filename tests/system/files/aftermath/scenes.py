"""The scenes of a hostile program: a home, a workspace in it, and files that the host trusts.

Each layout is built once in the tester's home and kept as a template, so that absolute paths stay
valid. Secrets are added afterwards, with a new token each time.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.saved_state import remove
from tests.support.tester import Tester

_COMMON = """
set -eu
umask 022
cd
mkdir -p .ssh .aws .config/direnv marks
chmod 700 .ssh .aws
printf 'PS1=x\\n' > .bashrc
printf '[ -f ~/.bashrc ] && . ~/.bashrc\\n' > .profile
git config --global user.name host
git config --global user.email host@example.com
git config --global init.defaultBranch main
git config --global protocol.file.allow always
git config --global advice.detachedHead false
printf '[whitelist]\\nprefix = ["%s"]\\n' "$HOME" > .config/direnv/direnv.toml
made() { git init -q "$1"; cd "$1"; mkdir -p src lib/deep; echo 1 > a.txt; echo 1 > src/one; echo \
1 > lib/deep/two
  printf '.env*\\nid_*\\nconf\\nhost-note\\nloot\\n' > .gitignore; git add .; git commit -qm one; \
cd; }
made other
git clone -q --bare other remote.git 2>/dev/null
"""

# The script of each layout, its workspace, its git directories, and files in it that the host
# obeys.
_PROJECT = """git clone -q remote.git proj
cd proj
printf 'all:\\n\\ttrue\\n' > Makefile
echo '{"scripts": {"build": "true"}}' > package.json
"""
_BARE = """mkdir w
git clone -q --bare remote.git w/.bare
cd w/.bare
git worktree add -q -b feature ../feature
git worktree add -q -b fix ../fix
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    script: str
    workspace: str
    git: tuple[str, ...] = (".git",)  # existing git directories, relative to the workspace
    obeyed: tuple[str, ...] = ()  # files in the workspace that git or a shell of the host obeys
    directories: tuple[str, ...] = ("src", "lib", "lib/deep")


LAYOUTS = {
    "plain": Layout(script=_PROJECT, workspace="proj", obeyed=(".git/config",)),
    "nested": Layout(
        script=_PROJECT + "git clone -q ~/remote.git nested; cd nested; mkdir -p tools/hooks\n"
        "printf '[core]\\n\\thooksPath = tools/hooks\\n' > .gitconfig; "
        "git config include.path ../.gitconfig\n"
        "printf '#!/bin/sh\\n' > tools/hooks/pre-commit; chmod +x tools/hooks/pre-commit\n",
        workspace="proj",
        git=(".git", "nested/.git"),
        obeyed=("nested/.git/config", "nested/.gitconfig", "nested/tools/hooks/pre-commit"),
        directories=("src", "nested", "nested/src"),
    ),
    "bare": Layout(
        script=_BARE,
        workspace="w",
        git=(".bare", ".bare/worktrees/feature", ".bare/worktrees/fix"),
        obeyed=(".bare/config", "feature/.git"),
        directories=("feature", "feature/src", "fix/lib"),
    ),
    "worktree": Layout(
        script=_BARE,
        workspace="w/feature",
        git=("../.bare", "../.bare/worktrees/feature"),
        obeyed=("../.bare/config", ".git"),
    ),
    "linked": Layout(
        script=_PROJECT
        + "git worktree add -q -b tree ../tree; git worktree add -q -b inner inner\n",
        workspace="tree",
        git=("../proj/.git", "../proj/.git/worktrees/tree"),
        obeyed=("../proj/.git/config", ".git"),
    ),
    "submodule": Layout(
        script=_PROJECT + "git submodule -q add ~/remote.git lib/sub; git commit -qm sub\n",
        workspace="proj",
        git=(".git", ".git/modules/lib/sub"),
        obeyed=(".git/modules/lib/sub/config", "lib/sub/.git", ".gitmodules"),
        directories=("src", "lib", "lib/sub", "lib/sub/src"),
    ),
    "includes": Layout(
        script=_PROJECT
        + "mkdir -p tools/hooks tools/more; git config include.path ../tools/gitconfig\n"
        "printf '[include]\\n\\tpath = more/config\\n[core]\\n\\thooksPath = tools/hooks\\n' "
        "> tools/gitconfig\n"
        "printf '[user]\\n\\tname = team\\n' > tools/more/config\n"
        "printf '#!/bin/sh\\n' > tools/hooks/post-commit; chmod +x tools/hooks/post-commit\n",
        workspace="proj",
        obeyed=(
            "tools/gitconfig",
            "tools/more/config",
            "tools/hooks/post-commit",
            "tools/hooks/pre-commit",
        ),
        directories=("src", "tools", "tools/more"),
    ),
    "alternates": Layout(
        script=_PROJECT
        + (
            "git clone -q --bare ~/remote.git vendor/cache.git; "
            "git clone -q --shared vendor/cache.git shared\n"
        ),
        workspace="proj",
        git=(".git", "vendor/cache.git", "shared/.git"),
        obeyed=(
            "vendor/cache.git/config",
            "shared/.git/config",
            "shared/.git/objects/info/alternates",
        ),
        directories=("src", "vendor", "shared", "shared/src"),
    ),
    "dotfiles": Layout(
        script="made dot; cd dot; mkdir -p git/.config/git bash\n"
        "mv ~/.gitconfig git/.gitconfig; ln -s dot/git/.gitconfig ~/.gitconfig\n"
        "mv ~/.bashrc ~/.profile bash; ln -s dot/bash/.bashrc dot/bash/.profile ~\n"
        "printf '[core]\\n\\tautocrlf = false\\n' > git/.config/git/config\n"
        "ln -s ../dot/git/.config/git ~/.config/git\n",
        workspace="dot",
        obeyed=("git/.gitconfig", "bash/.bashrc", "bash/.profile", "git/.config/git/config"),
        directories=("src", "git", "bash"),
    ),
    "config": Layout(
        script="mkdir -p .config/git .config/tool; printf '[core]\\n\\tautocrlf = false\\n' > "
        ".config/git/config\n"
        "made .config/mine\n",
        workspace=".config",
        git=("mine/.git",),
        obeyed=("git/config", "direnv/direnv.toml", "mine/.git/config"),
        directories=("tool", "git", "mine", "mine/src"),
    ),
    "hooks": Layout(
        script=_PROJECT + "mkdir .githooks; git config core.hooksPath .githooks\n"
        "printf '#!/bin/sh\\n. scripts/check\\n' > .githooks/pre-commit; "
        "chmod +x .githooks/pre-commit; mkdir scripts\n"
        "ln -s ../.githooks/shared .githooks/post-commit\n"
        "printf '#!/bin/sh\\n' > .githooks/shared; chmod +x .githooks/shared\n",
        workspace="proj",
        obeyed=(".githooks/pre-commit", ".githooks/shared", ".githooks/post-checkout"),
        directories=("src", "lib"),
    ),
    "large": Layout(
        script=_PROJECT
        + "for i in 0 1 2 3 4 5 6 7; do mkdir -p many/$i/a many/$i/b/c; echo $i > many/$i/a/f; "
        "done\n"
        "d=tower; for i in $(seq 40); do d=$d/level$i; done; mkdir -p $d; "
        "git clone -q ~/remote.git many/3/b/repo\n",
        workspace="proj",
        git=(".git", "many/3/b/repo/.git"),
        obeyed=("many/3/b/repo/.git/config",),
        directories=("src", "many/3", "many/3/b/c", "tower/level1/level2/level3"),
    ),
}

# Paths of secrets in a workspace. A pair is a second name of the same file: a link, or a hard link.
SECRETS: dict[str, tuple[str, str | None, str]] = {
    "top": (".env", None, ""),
    "deploy": ("deploy/.env", None, ""),
    "key": ("deploy/id_rsa", None, ""),
    "keys": ("keys/id_ed25519", None, ""),
    "below": ("app/conf/.env.production", None, ""),
    "source": ("src/.env.local", None, ""),
    "linked": ("conf/settings", "web/.env", "symlink"),
    "hard": ("svc/.env", "copies/second", "link"),
}
# Files of the home that no command may change, also behind links.
TRUSTED = (".bashrc", ".profile", ".gitconfig", ".config/git/config", ".config/direnv/direnv.toml")
NEW_IN_HOME = (
    ".bash_profile",
    ".bash_login",
    ".config/git/attributes",
    ".ssh/authorized_keys",
    ".ssh/config",
    ".config/direnv/direnvrc",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """One layout with its secrets in the home."""

    layout: str
    home: Path
    tokens: dict[str, str] = field(default_factory=dict)  # token → path
    trusted: dict[str, bytes | None] = field(default_factory=dict)

    @property
    def workspace(self) -> Path:
        return self.home / LAYOUTS[self.layout].workspace

    @property
    def marks(self) -> Path:
        return self.home / "marks"


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


class Stage:
    """The tester's home, which holds one scene after the other."""

    def __init__(self, tester: Tester, keep: set[str], templates: Path) -> None:
        self.tester, self._keep, self._templates = tester, keep, templates

    def clear(self) -> None:
        for entry in self.tester.home.iterdir():
            if entry.name not in self._keep:
                remove(entry)

    def lay_out(self, layout: str, names: tuple[str, ...]) -> Scene:
        self.clear()
        template = self._templates / layout
        if not template.exists():
            self._build(layout, template)
        subprocess.run(["cp", "-a", "-t", self.tester.home, *template.iterdir()], check=True)
        scene = Scene(layout=layout, home=self.tester.home)
        self._put_secrets(scene, names)
        for name in (*TRUSTED, *NEW_IN_HOME):
            scene.trusted[name] = _content(scene.home / name)
        return scene

    def _build(self, layout: str, template: Path) -> None:
        done = self.tester.run(
            ["bash", "-c", _COMMON + LAYOUTS[layout].script], cwd=self.tester.home
        )
        assert done.exit_code == 0, done
        template.mkdir()
        for entry in self.tester.home.iterdir():
            if entry.name not in self._keep:
                subprocess.run(["mv", entry, template], check=True)

    def _put_secrets(self, scene: Scene, names: tuple[str, ...]) -> None:
        for place in (scene.home / ".ssh/id_ed25519", scene.home / ".aws/credentials"):
            self._put(scene, place)
        for name in names:
            path, second, how = SECRETS[name]
            made = self._put(scene, scene.workspace / path)
            if second is None:
                continue
            other = scene.workspace / second
            self._make(other.parent)
            if how == "link":
                os.link(made, other)
            else:
                other.symlink_to(os.path.relpath(made, other.parent))
                os.lchown(other, self.tester.uid, self.tester.gid)

    def _put(self, scene: Scene, path: Path) -> Path:
        token = f"SECRET-{secrets.token_hex(8)}"
        self._make(path.parent)
        path.write_text(f"KEY={token}\n")
        os.chown(path, self.tester.uid, self.tester.gid)
        scene.tokens[token] = str(path.relative_to(scene.home))
        return path

    def _make(self, directory: Path) -> None:
        missing = [place for place in (directory, *directory.parents) if not place.exists()]
        for place in reversed(missing):
            place.mkdir()
            os.chown(place, self.tester.uid, self.tester.gid)


@contextmanager
def stage(tester: Tester, installed: Path, scratch: Path) -> Iterator[Stage]:
    """During the block the home holds the scene and the installation. Everything else is moved
    away.
    """
    aside = tester.home / ".aftermath-aside"
    keep = {aside.name, installed.relative_to(tester.home).parts[0]}
    templates = scratch / "templates"
    templates.mkdir()
    made = Stage(tester, keep, templates)
    if (
        aside.exists()
    ):  # a test was killed: its scene is left over, and the moved files are still there
        made.clear()
    else:
        aside.mkdir(mode=0o700)
        for entry in tester.home.iterdir():
            if entry.name not in keep:
                entry.rename(aside / entry.name)
    try:
        yield made
    finally:
        made.clear()
        for entry in aside.iterdir():
            entry.rename(tester.home / entry.name)
        shutil.rmtree(aside)
