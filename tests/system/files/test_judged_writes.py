"""Paddock refuses every way to make or change a protected or denied name.

Calls that make, change or remove a name wait in the kernel, and init judges and performs them. Each
verdict here is the state of the files on the host. Each control does the same act without the
sandbox, and it succeeds.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support import write_acts
from tests.support.features import need, need_program
from tests.support.sandbox import SandboxRunner, Word
from tests.support.tester import Outcome
from tests.support.tree import ProjectTree, Snapshot

PYTHON = "/usr/bin/python3"
# The mark behind the pattern: reading stays open in this tier. Sockets can be bound.
FLAGS = ("--deny", "**/*.private?", "--socket", "unix")
NAMES = (
    ".envrc",
    "deep/er/.envrc",
    ".vscode/tasks.json",
    ".mcp.json",
    ".claude/settings.json",
    ".husky/pre-commit",
    ".github/workflows/ci.yml",
    ".gitmodules",
    ".hg/hgrc",
    ".git/hooks/pre-commit",
    ".env",
    "notes.private",
)


@pytest.fixture(params=["landlock", "full"])
def sandbox(
    request: pytest.FixtureRequest, sandbox: SandboxRunner, host: dict[str, Any]
) -> SandboxRunner:
    """Each test runs in both tiers."""
    if request.param == "full":
        need("namespaces", host["namespaces"]["usable"], str(host["namespaces"]))
    return replace(sandbox, tier=request.param)


def acting(sandbox: SandboxRunner, table: str, top: Path, name: str) -> list[Word]:
    program = sandbox.programs.directory / "write_acts.py"
    shutil.copy(write_acts.__file__, program)
    return [PYTHON, "-I", program, table, top, name]


def python(text: str, *words: Word) -> list[Word]:
    return [PYTHON, "-Ic", text, *words]


def repository(tree: ProjectTree, path: Path) -> Path:
    """A repository of the host with one commit."""
    tree.make(path)
    script = (
        "git init -qb main . && git config user.name host && git config user.email host@x "
        "&& mkdir -p .git/hooks && echo 1 > a.txt && git add a.txt && git commit -qm one"
    )
    done = tree.tester.run(["sh", "-ec", script], cwd=path)
    assert done.exit_code == 0, str(done)
    return path


def lay_out(tree: ProjectTree, top: Path, table: str, name: str) -> dict[str, Path]:
    """A directory for each way, with the parent of the name, and the name itself for changes."""
    model = repository(tree, tree.root / "model") if name.startswith(".git/") else None
    paths = {}
    for way in write_acts.TABLES[table]:
        place = top / way
        place.mkdir(parents=True)
        if model:
            subprocess.run(["cp", "-a", model / ".git", place], check=True)
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if table == "change" and not path.exists():
            path.write_text("of the host\n")
        if path.exists():
            os.setxattr(path, "user.old", b"x")
        paths[way] = path
    if model:
        subprocess.run(["rm", "-r", model], check=True)
    tree.make(top)
    return paths


def state(path: Path) -> object:
    """Everything about a name that the host can see, except the time of access."""
    try:
        facts = path.lstat()
    except FileNotFoundError:
        return None
    content = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
    attributes = tuple(sorted(os.listxattr(path, follow_symlinks=False)))
    return (
        facts.st_mode, facts.st_ino, facts.st_nlink, facts.st_mtime_ns, facts.st_ctime_ns, content,
        attributes,
    )  # fmt: skip


def changed(paths: dict[str, Path], before: dict[str, object]) -> set[str]:
    return {way for way, path in paths.items() if state(path) != before[way]}


def assert_refused(sandbox: SandboxRunner, table: str, name: str) -> Outcome:
    """Plays a table inside and outside. Nothing changes inside, everything changes outside."""
    tree = sandbox.tree
    paths = lay_out(tree, tree.project / "acts", table, name)
    before = {way: state(path) for way, path in paths.items()}
    inside = sandbox.inside(acting(sandbox, table, tree.project / "acts", name), *FLAGS)
    assert inside.started, str(inside)
    assert inside.stdout.count("\n") == len(paths) + 1, str(inside)
    assert changed(paths, before) == set(), str(inside)
    controls = lay_out(tree, tree.outside / "acts", table, name)
    before = {way: state(path) for way, path in controls.items()}
    control = sandbox.outside(acting(sandbox, table, tree.outside / "acts", name))
    assert changed(controls, before) == set(controls), str(control)
    return inside


@pytest.mark.parametrize("name", NAMES)
def test_a_protected_name_can_not_be_made(sandbox: SandboxRunner, name: str) -> None:
    inside = assert_refused(sandbox, "make", name)
    answers = dict(line.split() for line in inside.stdout.splitlines()[1:])
    # In the full tier a mount locks a protected directory that exists.
    refusals = {"EACCES", "EROFS", "EXDEV"} if sandbox.tier == "full" else {"EACCES"}
    assert set(answers.values()) <= refusals, answers


@pytest.mark.parametrize("name", NAMES)
def test_an_existing_protected_name_can_not_be_changed(sandbox: SandboxRunner, name: str) -> None:
    assert_refused(sandbox, "change", name)


NEW_TIMES = """
import errno, os, sys
for path in sys.argv[1:]:
    try:
        os.utime(os.open(path, os.O_RDONLY), (1, 1))
        print("ok")
    except OSError as error:
        print(errno.errorcode[error.errno])
"""


def test_an_open_protected_file_gets_no_new_times(sandbox: SandboxRunner) -> None:
    """In the full tier this call does not wait for init: a mount refuses it."""
    tree = sandbox.tree
    repository(tree, tree.project)
    held = [tree.project / name for name in (".envrc", ".git/hooks/pre-commit", ".vscode/x.json")]
    for path in held:
        path.parent.mkdir(exist_ok=True)
        path.write_text("of the host\n")
    ordinary = tree.project / "a.txt"
    tree.make(tree.project)
    before = [state(path) for path in held]
    inside = sandbox.inside(python(NEW_TIMES, *held, ordinary))
    refusal = "EROFS" if sandbox.tier == "full" else "EACCES"
    assert inside.stdout.split() == [refusal] * len(held) + ["ok"], str(inside)
    assert [state(path) for path in held] == before
    assert ordinary.stat().st_mtime == 1
    control = sandbox.outside(python(NEW_TIMES, *held))
    assert control.stdout.split() == ["ok"] * len(held), str(control)
    assert all(path.stat().st_mtime == 1 for path in held)


def planted(paths: dict[str, Path]) -> set[str]:
    """The ways that put a program into a configuration."""
    return {
        way
        for way, path in paths.items()
        if path.is_file() and write_acts.PROGRAM_KEY in path.read_bytes()
    }


@pytest.mark.parametrize("name", [".git/config", ".git/config.worktree", ".git/modules/m/config"])
@pytest.mark.parametrize("table", ["make", "change"])
def test_no_program_gets_into_a_git_configuration(
    sandbox: SandboxRunner, table: str, name: str
) -> None:
    tree = sandbox.tree
    found = {}
    for place, run in ((tree.project, sandbox.inside), (tree.outside, sandbox.outside)):
        paths = lay_out(tree, place / "acts", table, name)
        for path in paths.values():
            if table == "make":
                path.unlink(missing_ok=True)
            else:
                path.write_text("[user]\n\tname = host\n")
        outcome = run(acting(sandbox, table, place / "acts", name))
        assert outcome.started, str(outcome)
        found[place] = (planted(paths), outcome)
    inside, outside = found[tree.project], found[tree.outside]
    assert inside[0] == set(), str(inside[1])
    assert len(outside[0]) > 10, str(outside[1])


# One act each, as a script that the workspace is the directory of. ``{P}`` is a payload that a
# program outside would run. The verdict is a shell test on the host: true if the act succeeded.
KEY = "[core]\\n\\tfsmonitor = touch x\\n"
HOLD = """
import os, sys
old, new, late = sys.argv[1:4]
fd = os.open(old, os.O_RDWR | os.O_CREAT, 0o644)
os.write(fd, b"[user]\\n\\tname = agent\\n")
print("started", flush=True)
try:
    os.rename(sys.argv[4], sys.argv[5]) if sys.argv[4:] else os.rename(old, new)
except OSError as error:
    print(error)
os.write(fd, late.encode())
os.close(fd)
"""
LATE = '[core]\n\tfsmonitor = "touch late"\n'
BRANCH = "modules/a/refs/heads/b"


def rename_with_flags(old: str, new: str, flags: int) -> str:
    """A line of a shell script that calls renameat2(2)."""
    call = f'renameat2(-100, b"{old}", -100, b"{new}", {flags})'
    return f"python3 -c 'import ctypes; ctypes.CDLL(None).{call}' || true"


def test_a_descriptor_of_a_renamed_file_does_not_write_the_placed_one(
    sandbox: SandboxRunner,
) -> None:
    """git renames config.lock to config, so that is allowed. A copy gets the name."""
    words = python(HOLD, ".git/config.lock", ".git/config", LATE)
    for place, run in (
        (sandbox.tree.project, sandbox.inside),
        (sandbox.tree.outside, sandbox.outside),
    ):
        # In the full tier a mount locks a configuration that exists.
        new = ["sh", "-c", 'git init -q new && cd new && exec "$@"', "sh", *words]
        outcome = run(new, cwd=place)
        assert outcome.stdout == "started\n", str(outcome)
        content = (place / "new" / ".git" / "config").read_text()
        assert "name = agent" in content
        assert (LATE in content) == (place == sandbox.tree.outside), content


def test_a_directory_with_a_protected_name_can_not_be_moved_into_place(
    sandbox: SandboxRunner,
) -> None:
    """Also not if a descriptor of a file in it is written after the move."""
    words = python(HOLD, "made/tasks.json", "-", "planted\n", "made", ".vscode")
    for place, run in (
        (sandbox.tree.project, sandbox.inside),
        (sandbox.tree.outside, sandbox.outside),
    ):
        sandbox.tree.make(place / "made")
        outcome = run(words, cwd=place)
        assert outcome.started, str(outcome)
        assert (place / ".vscode" / "tasks.json").exists() == (place == sandbox.tree.outside)


MOVES = {
    "a tree with a protected file": (
        "mkdir -p made/sub; echo x > made/sub/envrc; mv made/sub/envrc made/sub/.envrc; "
        "mv made there",
        "test -e there/sub/.envrc",
    ),
    "a prepared directory of settings": (
        "mkdir made; echo x > made/settings.json; mv made .claude",
        "test -e .claude/settings.json",
    ),
    "a prepared directory of settings, exchanged": (
        "mkdir made .vscode-; echo x > made/tasks.json; mv .vscode- .vscode; "
        'python3 -c \'import ctypes; ctypes.CDLL(None).renameat2(-100, b"made", -100, '
        'b".vscode", 2)\' || true',
        "test -e .vscode/tasks.json",
    ),
    "a directory of hooks": (
        "mkdir made; echo x > made/pre-commit; chmod +x made/pre-commit; "
        "rm -r .git/hooks; mv made .git/hooks",
        "test -e .git/hooks/pre-commit",
    ),
    "a whole git directory with a hook": (
        "mkdir -p made/hooks made/objects made/refs; cp .git/HEAD x; echo x > made/hooks/update; "
        "mv x made/HEAD; mkdir sub; mv made sub/.git",
        "test -e sub/.git/hooks/update && test -e sub/.git/HEAD",
    ),
    "a whole git directory with a program in its configuration": (
        f"mkdir -p made/objects made/refs; printf '{KEY}' > made/config; cp .git/HEAD x; "
        "mv x made/HEAD; mkdir sub; mv made sub/.git",
        "grep -q fsmonitor sub/.git/config && test -e sub/.git/HEAD",
    ),
    "a bare repository, HEAD last": (
        f"mkdir bare; cd bare; mkdir objects refs; printf '{KEY}' > config; "
        "echo 'ref: refs/heads/main' > HEAD",
        "test -e bare/HEAD && grep -q fsmonitor bare/config",
    ),
    "a bare repository, objects last": (
        f"mkdir bare; cd bare; echo 'ref: refs/heads/main' > HEAD; mkdir refs; "
        f"printf '{KEY}' > config; mkdir objects",
        "test -e bare/HEAD && test -e bare/objects && grep -q fsmonitor bare/config",
    ),
    "a bare repository, refs last by a rename": (
        f"mkdir bare; cd bare; echo 'ref: refs/heads/main' > HEAD; mkdir objects other; "
        f"printf '{KEY}' > config; mv other refs",
        "test -e bare/refs && grep -q fsmonitor bare/config",
    ),
    "a bare repository, HEAD last as a link": (
        f"mkdir bare; cd bare; mkdir objects refs; printf '{KEY}' > config; "
        "ln -s refs/heads/main HEAD",
        "test -L bare/HEAD && grep -q fsmonitor bare/config",
    ),
    "a bare repository, configuration last": (
        f"mkdir bare; cd bare; mkdir objects refs; echo 'ref: refs/heads/main' > HEAD; "
        f"printf '{KEY}' > config",
        "test -e bare/HEAD && grep -q fsmonitor bare/config",
    ),
    "a bare repository, moved out of a directory": (
        f"mkdir -p bare/in; cd bare/in; mkdir objects refs; printf '{KEY}' > config; "
        "echo 'ref: refs/heads/main' > ../head; mv ../head ./HEAD",
        "test -e bare/in/HEAD && grep -q fsmonitor bare/in/config",
    ),
    "a git directory of a work tree entry": (
        f"mkdir bare; cd bare; printf '{KEY}' > config; echo . > commondir; "
        "echo 'ref: refs/heads/main' > HEAD",
        "test -e bare/HEAD && test -e bare/commondir && grep -q fsmonitor bare/config",
    ),
    "a .git file that leads elsewhere": (
        f"mkdir -p sub bare/objects bare/refs; printf '{KEY}' > bare/config; "
        "echo 'gitdir: ../bare' > sub/.git",
        "grep -q bare sub/.git",
    ),
    "a .git file that leads elsewhere, by a rename": (
        "mkdir sub; echo 'gitdir: ../bare' > x; mv x sub/.git",
        "grep -q bare sub/.git",
    ),
    "a .git link that leads elsewhere": (
        "mkdir sub bare; ln -s ../bare sub/.git",
        "test -L sub/.git",
    ),
    "the .git file of a work tree": (
        "echo 'gitdir: /tmp/elsewhere' > tree/.git",
        "grep -q elsewhere tree/.git",
    ),
    "the commondir of a work tree": (
        "echo /tmp/elsewhere > .git/worktrees/tree/commondir",
        "grep -q elsewhere .git/worktrees/tree/commondir",
    ),
    "alternates of another repository": (
        "echo /tmp/elsewhere > .git/objects/info/alternates",
        "test -e .git/objects/info/alternates",
    ),
    "an include in a configuration": (
        "printf '[include]\\n\\tpath = ../x\\n' >> .git/config",
        "grep -q include .git/config",
    ),
    "an include by git itself": (
        "git config include.path ../x",
        "grep -q include .git/config",
    ),
    "a program by git itself": (
        "git config core.fsmonitor 'touch x'",
        "grep -q fsmonitor .git/config",
    ),
    "an alias by git itself": (
        "git config alias.st '!touch x'",
        "grep -q touch .git/config",
    ),
    "a hooks path by git itself": (
        "mkdir my-hooks; git config core.hooksPath my-hooks",
        "grep -qi hookspath .git/config",
    ),
    "a hook by git's template": (
        "mkdir -p t/hooks; echo x > t/hooks/update; git init -q --template=t sub",
        "test -e sub/.git/hooks/update",
    ),
    "a sample that becomes a hook": (
        "printf '#!/bin/sh' > .git/hooks/update.sample; "
        "mv .git/hooks/update.sample .git/hooks/update",
        "test -e .git/hooks/update",
    ),
    "a renamed directory above": (
        "mv host-settings elsewhere",
        "test -e elsewhere/.envrc",
    ),
    "a removed directory": (
        "rm -rf host-settings",
        "! test -e host-settings/.envrc",
    ),
    "a protected file out of an archive": (
        "mkdir x; echo y > x/.envrc-; tar cf a.tar --transform s/envrc-/envrc/ x; tar xf a.tar",
        "test -e x/.envrc",
    ),
    "a protected file by cp": ("echo x > y; cp -a y .mcp.json", "test -e .mcp.json"),
    "a protected file by install": ("echo x > y; install y .mcp.json", "test -e .mcp.json"),
    "a protected file by sed": (
        "sed -i s/host/x/ host-settings/.envrc",
        "! grep -q host host-settings/.envrc",
    ),
    "a protected file by git": (
        "git checkout -q settings",
        "test -e .vscode/tasks.json",
    ),
    "a repository that is made in a git directory and moved out": (
        "mkdir -p .git/foo/objects .git/foo/refs; cp .git/HEAD .git/foo/HEAD; "
        f"printf '{KEY}' > .git/foo/config; mv .git/foo foo",
        "test -e foo/HEAD && grep -q fsmonitor foo/config",
    ),
    "an entry that is moved to where it means another directory": (
        "mkdir -p a/b .git/worktrees/w; cp .git/HEAD .git/worktrees/w/HEAD; "
        "echo ../.. > .git/worktrees/w/commondir; mv .git/worktrees/w a/b/w",
        "test -e a/b/w/HEAD && test -e a/b/w/commondir",
    ),
    "an entry that moves while its commondir is open": (
        "mkdir -p a/b .git/worktrees/w; exec 7> .git/worktrees/w/commondir; echo ../.. >&7; "
        "mv .git/worktrees/w a/b/w; exec 7>&-",
        "test -s a/b/w/commondir",
    ),
    "an open configuration that moves to another protected name": (
        "mkdir -p c/.git; exec 7> c/.git/config; printf '[user]\\n\\tname = x\\n' >&7; "
        "mv c/.git c/.cargo; exec 7>&-",
        "test -e c/.cargo/config",
    ),
    "a number of a rebase, in a directory": (
        "mkdir .git/x; echo 'a[$(touch x)]' > .git/x/msgnum; mv .git/x .git/rebase-merge",
        "test -e .git/rebase-merge/msgnum",
    ),
    "an index, in a directory": (
        "mkdir made sub; echo x > made/index; mv made sub/.git",
        "test -e sub/.git/index",
    ),
    "a link with the name of git's probe": (
        "ln -s /dev/null .git/refs/heads/testing",
        "test -L .git/refs/heads/testing",
    ),
    "a submodule that is a link": (
        "mkdir -p .git/modules made; ln -s ../../made .git/modules/testing",
        "test -L .git/modules/testing",
    ),
    "attributes of a protected file": (
        "chattr +d host-settings/.envrc",
        "lsattr host-settings/.envrc | cut -d ' ' -f 1 | grep -q d",
    ),
    "a configuration that is exchanged away": (
        f"printf '{KEY}' > evil; " + rename_with_flags(".git/config", "evil", 2),
        "grep -q fsmonitor .git/config",
    ),
    "a whiteout": (rename_with_flags(".git/HEAD", "head", 4), "test -c .git/HEAD"),
    "another hash for an index": (
        "printf '[core]\\n\\trepositoryformatversion = 1\\n' > .git/config; "
        "printf '[extensions]\\n\\tobjectformat = sha256\\n' >> .git/config",
        "grep -q sha256 .git/config",
    ),
    "an index with another hash, where the configuration is hidden": (
        "mkdir up; git init -q --object-format=sha256 up/s; cp .git/index x; "
        'python3 -c \'import os; dir = os.open("up/s/.git", os.O_RDONLY); os.chmod("up", 0); '
        'os.rename("x", "index", dst_dir_fd=dir)\'; chmod 755 up',
        "test -e up/s/.git/index",
    ),
    "a bare repository that is hidden": (
        f"printf '{KEY}' > x; python3 -c 'import os; "
        'dir = os.open("up/bare.git", os.O_RDONLY); os.chmod("up", 0); '
        'os.rename("x", "config", dst_dir_fd=dir)\'; chmod 755 up',
        "grep -q fsmonitor up/bare.git/config",
    ),
    "a submodule whose name looks like a branch": (
        f"cd .git; mkdir -p {BRANCH}/objects {BRANCH}/refs; printf '{KEY}' > {BRANCH}/config; "
        f"cp HEAD {BRANCH}/HEAD",
        f"cd .git; test -e {BRANCH}/HEAD && grep -q fsmonitor {BRANCH}/config",
    ),
    "a submodule whose name looks like a directory of branches": (
        "cd .git; mkdir -p modules/a/refs/heads/objects modules/a/refs/heads/refs; "
        f"printf '{KEY}' > modules/a/refs/heads/config; cp HEAD modules/a/refs/heads",
        "cd .git/modules/a/refs/heads; test -e HEAD && grep -q fsmonitor config",
    ),
    "a submodule that gets the name of a branch": (
        "cd .git; mkdir -p modules/x/objects modules/x/refs modules/a/refs/heads; "
        f"cp HEAD modules/x/HEAD; mv modules/x {BRANCH}; printf '{KEY}' > {BRANCH}/config",
        f"cd .git; test -e {BRANCH}/HEAD && grep -q fsmonitor {BRANCH}/config",
    ),
    "the host's submodule whose name looks like a branch": (
        f"printf '{KEY}' > .git/modules/host/refs/heads/b/config",
        "grep -q fsmonitor .git/modules/host/refs/heads/b/config",
    ),
    "a hook of the host's submodule whose name looks like a branch": (
        "mkdir -p .git/modules/host/refs/heads/b/hooks; "
        "echo x > .git/modules/host/refs/heads/b/hooks/update",
        "test -e .git/modules/host/refs/heads/b/hooks/update",
    ),
    "a remote of a branch that is a path": (
        "git config branch.main.remote .git/foo",
        "grep -q foo .git/config",
    ),
    "a .git file through a link and back": (
        "git init -q d; git init -q other; mkdir -p d/.git/worktrees/n w other/sub; "
        'ln -s "$PWD/other/sub" d/lnk; echo "gitdir: $PWD/d/lnk/../.git/worktrees/n" > w/.git',
        "grep -q lnk w/.git",
    ),
    "a relative .git file that moves": (
        "git init -q other; mkdir -p other/.git/worktrees/n q/w; "
        "echo 'gitdir: ../../other/.git/worktrees/n' > q/w/.git; mv q/w w",
        "test -e w/.git",
    ),
    "a link on the way of a .git file": (
        "git init -q other; mkdir -p other/.git/worktrees/n w; "
        'echo "gitdir: $PWD/other/.git/worktrees/n" > w/.git; mv other gone; ln -s gone other',
        "test -L other && test -e w/.git",
    ),
    "a link on the way of a .git file, by a rename": (
        "mkdir sub; git init -q sub/other; mkdir -p sub/other/.git/worktrees/n w; "
        'echo "gitdir: $PWD/sub/other/.git/worktrees/n" > w/.git; mv sub gone; mkdir made; '
        "ln -s ../gone/other made/other; mv made sub",
        "test -L sub/other && test -e w/.git",
    ),
}


@pytest.mark.parametrize("act", MOVES)
def test_a_protected_name_can_not_be_reached_in_steps(sandbox: SandboxRunner, act: str) -> None:
    script, verdict = MOVES[act]
    for place, run in (
        (sandbox.tree.project, sandbox.inside),
        (sandbox.tree.outside, sandbox.outside),
    ):
        repository(sandbox.tree, place)
        sandbox.tree.put(place / "host-settings" / ".envrc", "of the host\n")
        made = sandbox.outside(
            ["sh", "-ec", "git worktree add -q -b tree tree; git checkout -qb settings; "
             "mkdir .vscode; echo x > .vscode/tasks.json; git add -f .vscode; git commit -qm two; "
             "git checkout -q main; rmdir .vscode 2>/dev/null || true; "
             "git init -q --bare up/bare.git; git init -q host; "
             "mkdir -p .git/modules/host/refs/heads; mv host/.git .git/modules/host/refs/heads/b"],
            cwd=place,
        )  # fmt: skip
        assert made.exit_code == 0, str(made)
        assert sandbox.outside(["sh", "-c", verdict], cwd=place).exit_code != 0
        outcome = run(["sh", "-c", f"echo started; {script}"], cwd=place)
        assert outcome.started, str(outcome)
        succeeded = sandbox.outside(["sh", "-c", verdict], cwd=place).exit_code == 0
        assert succeeded == (place == sandbox.tree.outside), str(outcome)


# Facts that only the scan at the start finds: what the host has prepared, one act of the command,
# and a shell test on the host that is true if the act succeeded.
HOOKS = "git config core.hooksPath tools/gh; "
FOUND = {
    "a hook that a configuration names": (
        HOOKS + "mkdir -p tools/gh; echo host > tools/gh/pre-commit",
        "echo x > tools/gh/pre-commit",
        "grep -q x tools/gh/pre-commit",
    ),
    "a new hook beside it": (
        HOOKS + "mkdir -p tools/gh",
        "echo x > tools/gh/post-commit",
        "test -e tools/gh/post-commit",
    ),
    "a directory of hooks that does not exist yet": (
        HOOKS,
        "mkdir -p tools/gh; echo x > tools/gh/pre-commit",
        "test -e tools/gh",
    ),
    "a directory of hooks by a rename": (
        HOOKS,
        "mkdir -p made/gh; echo x > made/gh/pre-commit; mv made tools",
        "test -e tools/gh/pre-commit",
    ),
    "a directory of hooks by a link": (
        HOOKS,
        "mkdir -p made/gh; echo x > made/gh/pre-commit; ln -s made tools",
        "test -e tools/gh/pre-commit",
    ),
    "hooks of a nested repository": (
        "git init -q sub; git -C sub config core.hooksPath tools/gh",
        "mkdir -p sub/tools/gh; echo x > sub/tools/gh/pre-commit",
        "test -e sub/tools/gh",
    ),
    "hooks of a work tree that is moved": (
        "git config core.hooksPath my-hooks; git worktree add -q -b tree tree",
        "mv tree other && mkdir other/my-hooks && echo x > other/my-hooks/pre-commit",
        "test -e other/my-hooks/pre-commit",
    ),
    "an included file that does not exist yet": (
        "git config include.path ../inc.cfg",
        f"printf '{KEY}' > inc.cfg",
        "test -e inc.cfg",
    ),
    "hooks that an included file names": (
        "git config include.path ../inc.cfg; printf '[core]\\n\\thooksPath = gh\\n' > inc.cfg",
        "mkdir gh; echo x > gh/pre-commit",
        "test -e gh",
    ),
    "a program of a filter": (
        "git config filter.x.clean ./clean.sh; echo host > clean.sh",
        "echo x > clean.sh",
        "grep -q x clean.sh",
    ),
    "the target of a link at a protected name": (
        "echo host > real; ln -s real .envrc",
        "echo x > real",
        "grep -q x real",
    ),
    "the target of a link that does not exist yet": (
        "ln -s none .envrc",
        "echo x > none",
        "test -e none",
    ),
    "a directory behind a link at a protected name": (
        "mkdir settings; ln -s settings .vscode",
        "echo x > settings/tasks.json",
        "test -e settings/tasks.json",
    ),
    "a link on the way to a protected file": (
        "mkdir one two; echo host > one/real; ln -s one way; ln -s way/real .envrc",
        "echo x > two/real; ln -sfn two way",
        "grep -q x .envrc",
    ),
    "the target of a link at a denied name": (
        "echo host > real; ln -s real .env",
        "echo x > real",
        "grep -q x real",
    ),
    "a hard link to a protected file": (
        "echo host > .envrc; ln .envrc other",
        "echo x > other",
        "grep -q x .envrc",
    ),
    "a hard link to a protected file, appended": (
        "echo host > .envrc; ln .envrc other",
        "echo x >> other",
        "grep -q x .envrc",
    ),
    "a hard link to a protected file, by a descriptor": (
        "echo host > .envrc; ln .envrc other",
        "exec 3< other; echo x > /proc/self/fd/3",
        "grep -q x .envrc",
    ),
    "a hard link to a protected file, truncated": (
        "echo host > .envrc; ln .envrc other",
        "python3 -c 'import os; os.truncate(\"other\", 0)'",
        "! grep -q host .envrc",
    ),
    "a hard link to a protected file, its mode": (
        "echo host > .envrc; ln .envrc other",
        "chmod 777 other",
        "test -x .envrc",
    ),
    "a hard link to a protected file, renamed": (
        "echo host > .envrc; mkdir d; ln .envrc d/other",
        "mv d e; echo x > e/other",
        "grep -q x .envrc",
    ),
    "a hard link to a denied file": (
        "echo host > .env; ln .env other",
        "echo x > other",
        "grep -q x .env",
    ),
    "a hard link to a hook with the name of a sample": (
        "echo host > .git/hooks/update; ln .git/hooks/update .git/hooks/x.sample",
        "echo x > .git/hooks/x.sample",
        "grep -q x .git/hooks/update",
    ),
    "a bare repository": (
        "git init -q --bare store",
        f"printf '{KEY}' >> store/config",
        "grep -q fsmonitor store/config",
    ),
    "hooks that a bare repository names": (
        "git init -q --bare store; git -C store config core.hooksPath $PWD/gh",
        "mkdir gh; echo x > gh/post-receive",
        "test -e gh",
    ),
    "a bare repository, moved with the directory above": (
        "mkdir dir; git init -q --bare dir/store",
        "mv dir other",
        "test -e other",
    ),
    "a directory that was shut": (
        "mkdir shut; chmod 0 shut",
        "chmod 700 shut; echo x > shut/new",
        "chmod 700 shut; test -e shut/new",
    ),
    "a repository in a directory that was shut": (
        "mkdir shut; git init -q shut/sub; git -C shut/sub config core.hooksPath ../../gh; "
        "chmod 0 shut",
        "mkdir gh; echo x > gh/pre-commit",
        "test -e gh",
    ),
    "a directory above one that was shut": (
        "mkdir -p dir/shut; chmod 0 dir/shut",
        "mv dir other",
        "test -e other",
    ),
}


@pytest.mark.parametrize("act", FOUND)
def test_what_the_scan_finds_can_not_be_changed(sandbox: SandboxRunner, act: str) -> None:
    prepared, script, verdict = FOUND[act]
    for place, run in (
        (sandbox.tree.project, sandbox.inside),
        (sandbox.tree.outside, sandbox.outside),
    ):
        repository(sandbox.tree, place)
        made = sandbox.outside(["sh", "-ec", prepared], cwd=place)
        assert made.exit_code == 0, str(made)
        outcome = run(["sh", "-c", f"echo started; echo x > free; {script}"], cwd=place)
        assert outcome.started, str(outcome)
        assert (place / "free").read_text() == "x\n", str(outcome)
        succeeded = sandbox.outside(["sh", "-c", verdict], cwd=place).exit_code == 0
        assert succeeded == (place == sandbox.tree.outside), str(outcome)


def test_the_target_of_a_link_of_the_home_can_not_be_changed(sandbox: SandboxRunner) -> None:
    """Settings in a repository of their own: ~/.inputrc leads into the workspace."""
    home, project = sandbox.tester.home, sandbox.tree.project
    need("root", sandbox.tester.disposable, "the tests do not change an ordinary user's home")
    link = home / ".inputrc"
    target = sandbox.tree.put(project / "inputrc", "of the host\n")
    link.symlink_to(target)
    words = ["sh", "-c", "echo started; echo x > inputrc; echo x > free"]
    try:
        inside = sandbox.inside(words)
        content = target.read_text()
        control = sandbox.outside(words)
    finally:
        link.unlink()
    assert inside.started, str(inside)
    assert content == "of the host\n", str(inside)
    assert (project / "free").exists(), str(inside)
    assert target.read_text() == "x\n", str(control)


def test_hooks_of_a_repository_around_the_workspace_can_not_be_made(sandbox: SandboxRunner) -> None:
    """Its configuration names a directory of the workspace."""
    script = "echo started; mkdir gh; echo x > gh/pre-commit; echo x > free"
    for place, run in (
        (sandbox.tree.project, sandbox.inside),
        (sandbox.tree.outside, sandbox.outside),
    ):
        repository(sandbox.tree, place)
        sandbox.outside(["git", "config", "core.hooksPath", "sub/gh"], cwd=place)
        outcome = run(["sh", "-c", script], cwd=sandbox.tree.make(place / "sub"))
        assert outcome.started, str(outcome)
        assert (place / "sub" / "free").exists(), str(outcome)
        assert (place / "sub" / "gh").exists() == (place == sandbox.tree.outside), str(outcome)


def test_names_in_a_grant_behind_a_link_can_not_be_made(sandbox: SandboxRunner) -> None:
    """The judge sees the path without the link."""
    other, link = sandbox.tree.make(sandbox.tree.root / "other"), sandbox.tree.root / "link"
    link.symlink_to(other)
    words = ["sh", "-c", f"echo started; echo x > {link}/.envrc; echo x > {link}/free"]
    inside = sandbox.inside(words, "--allow", f"{link}/**")
    assert inside.started, str(inside)
    assert [path.name for path in other.iterdir()] == ["free"], str(inside)
    sandbox.outside(words)
    assert (other / ".envrc").exists()


def test_a_scan_that_fails_refuses_the_run(sandbox: SandboxRunner, full: SandboxRunner) -> None:
    """As in the full tier. A run that can write nothing needs no scan."""
    config = repository(sandbox.tree, sandbox.tree.project / "sub") / ".git" / "config"
    config.chmod(0)
    words = ["sh", "-c", "echo started"]
    refused = sandbox.inside(words)
    assert refused.exit_code == 125, str(refused)
    assert "started" not in refused.stdout
    assert f"cannot read {config}" in refused.stderr, str(refused)
    assert "make the file readable to you, or remove it" in refused.stderr, str(refused)
    assert full.inside(words).stderr == refused.stderr
    assert sandbox.inside(words, profile="read-only").started
    config.chmod(0o644)
    assert sandbox.inside(words).started


# More threads than init may have descriptors. Each does one call, and then waits.
THREADS = """
import os, sys, threading
threading.stack_size(1 << 16)
os.mkfifo("fifo")
done = threading.Semaphore(0)
def work():
    done.release()
    if sys.argv[1] == "open":
        os.open("fifo", os.O_WRONLY)
    os.umask(0o22)
    done.release()
    threading.Event().wait()
count = 400 if sys.argv[1] == "open" else 1100
for _ in range(count):
    threading.Thread(target=work, daemon=True).start()
for _ in range(count if sys.argv[1] == "open" else 2 * count):
    done.acquire()
for number in range(50):
    open("x", "w").close()
os.mkdir("made")
os._exit(0)
"""

# Work that a person expects to succeed. Each script ends with a check of its own.
HONEST = {
    "git init": "git init -q new && git -C new status --porcelain && test -e new/.git/HEAD",
    "git commit": "echo 2 > b.txt; git add .; git commit -qm two; git log --oneline | grep two",
    "git branch and merge": "git checkout -qb side; echo 2 > b.txt; git add .; git commit -qm side;"
    " git checkout -q main; echo 3 > c.txt; git add .; git commit -qm more;"
    " git merge -q --no-edit side; test -e b.txt",
    "git rebase": "git checkout -qb side; echo 2 > b.txt; git add .; git commit -qm side;"
    " git checkout -q main; echo 3 > c.txt; git add .; git commit -qm more;"
    " git checkout -q side; git rebase -q main; test -e c.txt",
    "git rebase that stops": "git checkout -qb side; echo 2 > a.txt; git commit -qam side;"
    " git checkout -q main; echo 3 > a.txt; git commit -qam more; git checkout -q side;"
    " git rebase -q main && exit 1; echo 4 > a.txt; git add .;"
    " GIT_EDITOR=true git rebase --continue; test $(cat a.txt) = 4",
    "git stash": "echo 2 > a.txt; git stash -q; test $(cat a.txt) = 1; git stash pop -q;"
    " test $(cat a.txt) = 2",
    "git cherry-pick": "git checkout -qb side; echo 2 > b.txt; git add .; git commit -qm side;"
    " git checkout -q main; git cherry-pick side >/dev/null; test -e b.txt",
    "git worktree": "git worktree add -q -b tree tree; cd tree; echo 2 > b.txt; git add .;"
    " git commit -qm tree; cd ..; git worktree remove tree; test ! -e tree",
    "git clone": "git clone -q $PWD copy; cd copy;"
    " git config user.name agent; git config user.email agent@x;"
    " echo 2 > b.txt; git add .; git commit -qm two;"
    " git push -q origin HEAD:pushed; cd ..; git log --oneline pushed | grep two",
    "git clone of a relative path": "mkdir sub; cd sub; git clone -q .. copy; test -e copy/a.txt",
    "git config": "git config user.name agent; test $(git config user.name) = agent;"
    " git config --unset user.name",
    "git gc": "for i in 1 2 3; do echo $i > f$i; git add .; git commit -qm $i; done; git gc -q;"
    " git fsck",
    "git tag and reset": "git tag one; echo 2 > a.txt; git commit -qam two;"
    " git reset -q --hard one; test $(cat a.txt) = 1",
    "git am": "echo 2 > a.txt; git commit -qam two; git format-patch -q -1; git reset -q --hard"
    " HEAD~; git am -q 0001*; test $(cat a.txt) = 2",
    "git bisect": "git tag one; for i in 1 2 3 4; do echo $i > f; git add f; git commit -qm $i;"
    " done; git bisect start HEAD one; git bisect run false >/dev/null; git bisect reset",
    "git clean": "mkdir -p x/y; echo 1 > x/y/z; git clean -qfdx; test ! -e x",
    "tar": "mkdir -p d/e; echo 1 > d/e/f; ln -s f d/e/l; tar czf d.tgz d; rm -r d; tar xzf d.tgz;"
    " test $(cat d/e/l) = 1",
    "cp -a": "mkdir -p d/e; echo 1 > d/e/f; ln -s f d/e/l; mkfifo d/p; cp -a d copy;"
    " test $(cat copy/e/l) = 1; test -p copy/p",
    "cp -a of a repository": "cp -a . ../project/copy 2>/dev/null || cp -a .git/objects copy;"
    " test -d copy",
    "a rename to the own name": "git commit -qm 1 --allow-empty; git branch x;"
    " python3 -c \"import os; p = '.git/refs/heads/x'; os.rename(p, p)\"; git rev-parse -q x",
    "mkdir -p": "mkdir -p a/b/c/d; rmdir -p a/b/c/d; test ! -e a",
    "mv of a tree": "mkdir -p a/b; echo 1 > a/b/c; mv a z; test $(cat z/b/c) = 1",
    "chmod and touch": "echo 1 > x; chmod 750 x; touch -d 2001-01-01 x;"
    " test $(stat -c %a%Y x) = 750978307200",
    "umask": "umask 077; echo 1 > x; mkdir y; test $(stat -c %a x)$(stat -c %a y) = 600700",
    "a FIFO": "mkfifo p; cat p > got & echo through > p; wait; test $(cat got) = through",
    "a FIFO, reader last": "mkfifo p; echo through > p & cat p > got; wait;"
    " test $(cat got) = through",
    "here documents": "cat > x <<EOF\n1\nEOF\ntest $(cat x) = 1",
    "mktemp": "f=$(mktemp); echo 1 > $f; rm $f; d=$(mktemp -d); rmdir $d",
    "sort with temporary files": "seq 200000 | sort -R -S 1M | sort -n -S 1M | tail -1"
    " | grep 200000",
    "a unix socket": 'python3 -c \'import socket; s = socket.socket(socket.AF_UNIX); s.bind("s");'
    ' s.listen(); c = socket.socket(socket.AF_UNIX); c.connect("s")\'; test -S s',
    "an undumpable process": "python3 -c 'import ctypes; ctypes.CDLL(None).prctl(4, 0, 0, 0, 0);"
    ' open("x", "w").write("1"); import os; os.rename("x", "y")\'; test $(cat y) = 1',
    "writes to devices": "echo 1 > /dev/null;"
    " { echo 1 > /dev/stdout; echo 1 > /dev/fd/1; echo 1 > /proc/self/fd/1; } | cat > x;"
    " test $(tr -d '\\n' < x) = 111",
    "a deleted working directory": "mkdir d; cd d; rmdir ../d; ! echo 1 > x; cd ..; echo 1 > x",
    "a long name": "x=$(printf %0255d 1); echo 1 > $x; test -e $x; ! echo 1 > 1$x",
    "sqlite": 'python3 -c \'import sqlite3; c = sqlite3.connect("d");'
    ' c.execute("pragma journal_mode=wal"); c.execute("create table t(x)"); c.commit()\'',
    "python in a virtual environment": "python3 -m venv --without-pip v; v/bin/python -c 1",
    "a protected name of another kind": "echo 1 > envrc; echo 1 > x.envrc; mkdir vscode",
    "many threads that changed their umask": f"python3 -c '{THREADS}' umask; test -d made",
    "many opens that wait for a reader": f"timeout 60 python3 -c '{THREADS}' open; test -d made",
}


@pytest.mark.parametrize("work", HONEST)
def test_honest_work_succeeds(sandbox: SandboxRunner, work: str) -> None:
    script = "set -e; echo started; " + HONEST[work]
    for place, run in (
        (sandbox.tree.project, sandbox.inside),
        (sandbox.tree.outside, sandbox.outside),
    ):
        repository(sandbox.tree, place)
        flags = ("--socket", "unix") if run == sandbox.inside else ()
        outcome = run(["sh", "-c", script], *flags, cwd=place)
        assert outcome.started, str(outcome)
        assert outcome.exit_code == 0, str(outcome)


def test_the_terminal_is_the_one_of_the_caller(sandbox: SandboxRunner) -> None:
    """/dev/tty stands for another terminal in each process. The landlock init has none."""
    need_program("script")
    words = sandbox.command(["sh", "-c", "echo through > /dev/tty"])
    shown = sandbox.outside(["script", "-qec", shlex.join(map(str, words)), "/dev/null"])
    assert shown.exit_code == 0, str(shown)
    assert "through" in shown.stdout, str(shown)
    without = sandbox.inside(["sh", "-c", "echo started; echo through > /dev/tty"])
    assert without.started
    assert without.exit_code != 0, "a process without a terminal has none"


BIND_WHILE_DESCRIPTORS_CHANGE = """
import os, socket, threading
os.mkdir("free")
free, hooks = (os.open(path, os.O_RDONLY) for path in ("free", ".git/hooks"))
os.dup2(free, 50)
def flip():
    while True:
        os.dup2(hooks, 50)
        os.dup2(free, 50)
print("started", flush=True)
threading.Thread(target=flip, daemon=True).start()
for number in range(500):
    bound = socket.socket(socket.AF_UNIX)
    try:
        bound.bind(f"/proc/{os.getpid()}/fd/50/{number}")
    except OSError:
        pass
os._exit(0)
"""


def test_a_socket_is_bound_in_the_directory_that_was_judged(sandbox: SandboxRunner) -> None:
    for place, run in (
        (sandbox.tree.project, sandbox.inside),
        (sandbox.tree.outside, sandbox.outside),
    ):
        repository(sandbox.tree, place)
        flags = ("--socket", "unix") if run == sandbox.inside else ()
        outcome = run(python(BIND_WHILE_DESCRIPTORS_CHANGE), *flags, cwd=place)
        assert outcome.started, str(outcome)
        planted = [path for path in (place / ".git" / "hooks").iterdir() if path.is_socket()]
        assert bool(planted) == (place == sandbox.tree.outside), str(outcome)
        assert any((place / "free").iterdir()), str(outcome)


def test_metadata_outside_of_the_grants_can_not_be_changed(sandbox: SandboxRunner) -> None:
    secret = sandbox.tree.secret
    before = state(secret)
    script = (
        f"echo started; chmod 666 {secret}; touch -d 2001-01-01 {secret}; "
        f"setfattr -n user.x -v 1 {secret}; chown :$(id -g) {secret}"
    )
    inside = sandbox.inside(["sh", "-c", script])
    assert inside.started, str(inside)
    assert state(secret) == before, str(inside)
    refusal = {"landlock": "Read-only file system", "full": "No such file"}[sandbox.tier]
    assert refusal in inside.stderr, str(inside)
    sandbox.outside(["sh", "-c", script])
    assert state(secret) != before


def test_a_refused_write_is_reported(sandbox: SandboxRunner) -> None:
    """A line on stderr and an event in the journal, for a call and for a judged content."""
    script = (
        "echo started; git init -q new; "
        f"echo x > .envrc; printf '{KEY}' > new/.git/config; echo x > free"
    )
    outcome = sandbox.inside(["sh", "-c", script])
    assert outcome.started, str(outcome)
    events = [event for event in sandbox.events() if event["event"] == "file.refused"]
    paths = [str(sandbox.tree.project / name) for name in (".envrc", "new/.git/config")]
    assert [event["path"] for event in events] == paths, str(outcome)
    assert {(event["op"], event["program"]) for event in events} == {("write", "sh")}
    for path in paths:
        assert path in outcome.stderr, str(outcome)
    shown = sandbox.outside(
        [sandbox.installation.paddock, "audit", "show", "--dir", sandbox.journal]
    )
    assert shown.exit_code == 0, str(shown)
    assert all(path in shown.stdout for path in paths), str(shown)


def test_names_that_the_policy_opens_are_written(sandbox: SandboxRunner) -> None:
    """The control of the judge: it refuses the same write without the flag."""
    script = ["sh", "-c", "echo started; echo x > .envrc"]
    assert sandbox.inside(script).started
    assert not (sandbox.tree.project / ".envrc").exists()
    opened = sandbox.inside(script, "--open-protected", "<cwd>/.envrc")
    assert (sandbox.tree.project / ".envrc").read_text() == "x\n", str(opened)


def test_without_seccomp_the_run_says_that_names_are_open(sandbox: SandboxRunner) -> None:
    need_program("script")
    words = sandbox.command(["sh", "-c", "echo x > .envrc"], "--off", "seccomp")
    shown = sandbox.outside(["script", "-qec", shlex.join(map(str, words)), "/dev/null"])
    assert (sandbox.tree.project / ".envrc").exists(), str(shown)
    names = {
        "landlock": "names that programs outside run later (.git/hooks, .envrc, .vscode …)",
        "full": "new names that programs outside run later (.git/hooks, .envrc, .vscode …)",
    }[sandbox.tier]
    assert f"not enforced in this tier: {names}" in shown.stdout, str(shown)
    unjudged = f"writes are not judged: {names} are not protected"
    assert unjudged in shown.stdout, str(shown)
    # Without a terminal, and in the journal.
    assert unjudged in sandbox.inside(["true"], "--off", "seccomp").stderr
    partial = [event for event in sandbox.events() if event["event"] == "enforcement.partial"]
    assert any(unjudged in str(event["text"]) for event in partial), partial


def test_without_seccomp_mounts_hold_the_names_that_exist(
    sandbox: SandboxRunner,
) -> None:
    there = sandbox.tree.put(sandbox.tree.project / ".envrc", "as it was\n")
    script = f"echo started; echo evil > {there}; echo evil > .mcp.json"
    assert sandbox.inside(["sh", "-c", script], "--off", "seccomp").started
    is_held = sandbox.tier == "full"
    assert (there.read_text() == "as it was\n") == is_held
    assert (sandbox.tree.project / ".mcp.json").exists(), "a new name is not held"
    why: list[Word] = [sandbox.installation.paddock, "why", "--tier", sandbox.tier]
    why += ["--off", "seccomp"]
    made = sandbox.outside([*why, "--path", "new/.envrc", "--op", "write"])
    assert made.stdout.startswith("allowed"), str(made)
    kept = sandbox.outside([*why, "--path", there, "--op", "write"])
    assert kept.stdout.startswith("allowed") == (not is_held), str(kept)


def test_no_file_of_the_judge_is_left(sandbox: SandboxRunner) -> None:
    """Copies and staged files have temporary names for a moment."""
    repository(sandbox.tree, sandbox.tree.project)
    script = (
        f"printf '{KEY}' > .git/config; git config user.name agent; git commit -q --allow-empty "
        "-m x; git worktree add -q tree; exec 3> .git/config.worktree"
    )
    sandbox.inside(["sh", "-c", script])
    names = [entry[0] for entry in Snapshot.of(sandbox.tree.project).entries]
    assert [name for name in names if ".paddock-" in name] == []


def test_other_users_get_no_right_to_write_the_configuration_of_git(sandbox: SandboxRunner) -> None:
    for place, run in (
        (sandbox.tree.project, sandbox.inside),
        (sandbox.tree.outside, sandbox.outside),
    ):
        config = repository(sandbox.tree, place) / ".git/config"
        before = config.stat().st_mode & 0o7777
        outcome = run(["sh", "-c", "echo started; chmod 666 .git/config"], cwd=place)
        assert outcome.started, str(outcome)
        expected = before if run == sandbox.inside else 0o666
        assert config.stat().st_mode & 0o7777 == expected, str(outcome)
