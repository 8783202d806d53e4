"""After a run, git outside runs nothing that the command planted in files that git obeys.

Each attack prepares a repository inside. Then the host does its daily work there. A mark shows that
a planted program has run. The control does the same without the sandbox, and the mark appears.
"""

from __future__ import annotations

import secrets
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.features import need
from tests.support.sandbox import SandboxRunner
from tests.support.tester import Outcome

FSMONITOR = """printf '[core]\\n\\tfsmonitor = touch "%s"; false\\n' $MARK"""
HOOK = "printf '#!/bin/sh\\ntouch %s\\n' $MARK"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """Shell scripts. P is the project, R a directory in memory, MARK shows success."""

    inside: str
    host: str
    before: str = "true"


# A directory in a git directory becomes its common directory, by the id in `commondir`.
OTHER_COMMON_DIR = f"""
mkdir -p .git/$S; cp -r .git/objects .git/refs .git/$S/; cp .git/config .git/$S/config
{FSMONITOR} >> .git/$S/config
"""
INDEX_OF_TWO_MEANINGS = """
import struct, hashlib, sys
evil, other = bytes.fromhex(sys.argv[1]), bytes.fromhex(sys.argv[2])
path = b".git/hooks/post-checkout"
def stat(mode):
    words = [0x01010101] * 6
    return struct.pack(">6I", *words) + struct.pack(">I", mode) + struct.pack(">3I", *words[:3])
hidden = stat(0x010181ED) + evil + struct.pack(">H", 0x8000 | len(path)) + bytes([11]) + path
first = stat(0o100644) + other + struct.pack(">H", 11) + b"\\0" + b"+" * 9
first += struct.pack(">H", 0x8000 | len(hidden)) + b"\\0"
out = b"DIRC" + struct.pack(">II", 4, 2) + first + hidden + b"\\0"
name = b"zzz"
size = 40 + 32 + 2 + 1 + len(name) + 1
entry = b"ZZZZ" + struct.pack(">I", size + 32 - 20 - 8) + b"\\1" * 32 + b"\\2" * 32
entry += struct.pack(">H", len(name)) + bytes([len(hidden)]) + name + b"\\0"
out += entry + b"\\0" * 12
sys.stdout.buffer.write(out + hashlib.sha1(out).digest())
"""
# With hashes of 20 bytes its entry is `.git/config`, with 32 bytes a plain name.
INDEX_OF_IGNORED_EXTENSION = """
import struct, sys
stat = bytearray(40)
struct.pack_into(">I", stat, 24, 0o100644)
entry = bytes(stat) + bytes.fromhex(sys.argv[1]) + struct.pack(">H", 11) + b".git/config\\0"
name = bytearray(b"x" * 0x700)
name[4:8] = b"ZZZZ"
entry += b"\\0\\0" + bytes(name)
entry += bytes(((76 + len(name) + 8) & ~7) - len(entry))
sys.stdout.buffer.write(b"DIRC" + struct.pack(">II", 3, 1) + entry + b"\\7" * 32)
"""
# Adds an entry to a shared index of version 2. Git knows the file by its name.
LONGER_SHARED_INDEX = """
import struct, sys
name, blob, path = sys.argv[1], bytes.fromhex(sys.argv[2]), b"zz/../.git/hooks/post-checkout"
old = open(name, "rb").read()
count, at = struct.unpack(">I", old[8:12])[0], 12
for _ in range(count):
    at += (62 + (struct.unpack(">H", old[at + 60 : at + 62])[0] & 0xFFF) + 8) // 8 * 8
added = struct.pack(">10I", 0, 0, 0, 0, 0, 0, 0o100755, 0, 0, 0) + blob
added += struct.pack(">H", len(path)) + path
added += bytes(8 - len(added) % 8)
new = old[:8] + struct.pack(">I", count + 1) + old[12:at] + added + old[-20:]
open("shared.new", "wb").write(new)
"""
ATTACKS = {
    "a shared index has a path of the git directory": Attack(
        before="""
        git config core.splitIndex true; git config splitIndex.maxPercentChange 0
        echo 2 > b.txt; git add b.txt; git commit -qm two; git update-index --split-index
        git branch side
        """,
        inside=f"""
        {HOOK} > h; cat > make.py <<'END'
{LONGER_SHARED_INDEX}
END
        S=$(ls .git/sharedindex.* | head -1); /usr/bin/python3 make.py $S $(git hash-object -w h)
        mv shared.new $S
        """,
        host="git checkout .; git checkout -q side",
    ),
    "an unfinished rebase writes a file of the git directory": Attack(
        before="""
        git checkout -qb side; echo 2 > a.txt; git commit -qam two; git checkout -q main
        echo 3 > a.txt; git commit -qam three; git checkout -q side; git rebase main || true
        test -e .git/rebase-merge
        """,
        inside=f"""
        S=$(git rev-parse main); {OTHER_COMMON_DIR}
        printf 'commondir\\n%s\\n%s\\n' $(echo $S | tr 0-9a-f 0) $S > .git/rebase-merge/update-refs
        echo 4 > a.txt; git add a.txt
        """,
        host="GIT_EDITOR=true git rebase --continue; git status",
    ),
    "an unfinished bisect writes a file of the git directory": Attack(
        before="""
        for i in 2 3 4 5 6 7 8 9; do echo $i > a.txt; git commit -qam $i; done
        git bisect start -q; git bisect bad; git bisect good HEAD~7
        """,
        inside=f"""
        for S in $(git rev-list main); do {OTHER_COMMON_DIR} done
        echo 'ref: commondir' > .git/BISECT_EXPECTED_REV
        """,
        host="git bisect good; git status",
    ),
    "a bare repository without HEAD": Attack(
        before="""
        git clone -q --bare . bare.git; git -C bare.git worktree add -q $P/tree main 2>&1 ||
        git -C bare.git worktree add -q $P/tree -b other
        """,
        inside=f"""
        rm bare.git/HEAD; {FSMONITOR} >> bare.git/config
        """,
        host="git -C tree status",
    ),
    "ORIG_HEAD names a file of the git directory": Attack(
        before="git branch side",
        inside=f"""
        S=$(git rev-parse HEAD); {OTHER_COMMON_DIR} echo 'ref: commondir' > .git/ORIG_HEAD
        """,
        host="git merge -q side; git status",
    ),
    "a hook in a directory of the git directory": Attack(
        inside=f"""
        S=$(git rev-parse HEAD); mkdir -p .git/$S/hooks; cp -r .git/objects .git/refs .git/$S/
        {HOOK} > .git/$S/hooks/pre-commit; chmod +x .git/$S/hooks/pre-commit
        echo 'ref: commondir' > .git/ORIG_HEAD
        """,
        host="""
        git reset -q --hard; git -c user.name=h -c user.email=h@x commit -q --allow-empty -m x
        """,
    ),
    "a branch that does not exist yet": Attack(
        inside=f"""
        S=$(git rev-parse HEAD); {OTHER_COMMON_DIR} echo 'ref: commondir' > .git/refs/heads/dev
        """,
        host="git checkout -q -b dev; git status",
    ),
    "a branch of a remote": Attack(
        before="""
        git init -qb main sub; git -C sub config user.name h; git -C sub config user.email h@x
        git -C sub commit -q --allow-empty -m x
        git remote add origin $P/sub
        git config remote.origin.fetch +refs/heads/main:refs/remotes/origin/main
        """,
        inside=f"""
        S=$(git -C sub rev-parse HEAD); {OTHER_COMMON_DIR}
        cp -rn sub/.git/objects/. .git/$S/objects/
        rm -rf .git/$S/refs/remotes
        mkdir -p .git/refs/remotes/origin; echo 'ref: commondir' > .git/refs/remotes/origin/main
        """,
        host="git fetch; git status",
    ),
    "a work tree of a repository in memory": Attack(
        inside=f"""
        git init -qb main $R; git -C $R config user.name x; git -C $R config user.email x@x
        git -C $R commit -q --allow-empty -m x; git -C $R worktree add -q $P/w
        {FSMONITOR} >> $R/.git/config
        git update-index --add --cacheinfo 160000,$(git -C $R rev-parse HEAD),w
        """,
        host="git status --short",
    ),
    "a remote that becomes a symlink": Attack(
        inside=f"""
        git init -qb main $R; {HOOK} > $R/.git/hooks/pre-receive
        chmod +x $R/.git/hooks/pre-receive
        git init -q sub; git config remote.origin.url $P/sub; git config branch.main.remote origin
        git config branch.main.merge refs/heads/main; git config push.default current
        mv sub sub.old; ln -s $R sub
        """,
        host="git push -q",
    ),
    "a branch whose remote is a symlink": Attack(
        inside=f"""
        git init -qb main $R; {HOOK} > $R/.git/hooks/pre-receive
        chmod +x $R/.git/hooks/pre-receive
        git config branch.main.remote up; git config push.default current; ln -s $R up
        """,
        host="git push -q",
    ),
    "the repository of a work tree becomes a symlink": Attack(
        before="""
        git init -qb main other; git -C other config user.name h; git -C other config user.email h@x
        git -C other commit -q --allow-empty -m x; git -C other worktree add -q ../wt
        """,
        inside=f"""
        git init -qb main $R; mkdir -p $R/.git/worktrees; cp -r other/.git/worktrees/wt \
            $R/.git/worktrees/; cp -r other/.git/objects other/.git/refs $R/.git/
        {FSMONITOR} >> $R/.git/config
        mv other other2 && ln -s $R other
        """,
        host="git -C wt status",
    ),
    "an index that means other paths with other hashes": Attack(
        inside=f"""
        n=0; while :; do {HOOK} > blob; echo "# $n" >> blob; h=$(git hash-object blob)
        case $(echo $h | sed 's/../& /g') in *00*|*2f*) n=$((n+1));; *) break;; esac; done
        git hash-object -w blob; cat > make.py <<'END'
{INDEX_OF_TWO_MEANINGS}
END
        /usr/bin/python3 make.py $h $(git rev-parse HEAD:a.txt) > idx
        cp .git/config conf; rm .git/index
        (echo '[core]'; echo 'repositoryformatversion = 1'; echo '[extensions]'
         echo 'objectformat = sha256') > .git/config
        sleep 0.1; cp idx .git/index; sleep 0.1; rm .git/config; cp conf .git/config
        """,
        host="git checkout .",
    ),
    "an index that means other paths, because git ignores an extension": Attack(
        inside=f"""
        H=$( (cat .git/config; {FSMONITOR}) | git hash-object -w --stdin)
        cat > make.py <<'END'
{INDEX_OF_IGNORED_EXTENSION}
END
        mv .git/index .git/idx.old
        sed '/repositoryformatversion/d' .git/config > .git/c
        printf '[extensions]\\n\\tobjectFormat = sha256\\n' >> .git/c; mv .git/c .git/config
        /usr/bin/python3 make.py $H > .git/i; mv .git/i .git/index; rm -f .git/idx.old
        """,
        host="git checkout .; git status",
    ),
    "a hooks directory that differs in a vertical tab": Attack(
        before="""
        mkdir .githooks; printf '#!/bin/sh\\nexit 0\\n' > .githooks/pre-commit
        chmod +x .githooks/pre-commit; git config core.hooksPath .githooks
        git add .; git commit -qm hooks
        """,
        inside=f"""
        D=$(printf '\\v.githooks'); mkdir "$D"; {HOOK} > "$D/pre-commit"; chmod +x "$D/pre-commit"
        sed "s/hooksPath = /&$(printf '\\v')/" .git/config > .git/config.lock
        mv .git/config.lock .git/config
        """,
        host="git commit -q --allow-empty -m two",
    ),
    "a hooks directory that differs in a blank at the end": Attack(
        before="""
        mkdir .githooks; printf '#!/bin/sh\\nexit 0\\n' > .githooks/pre-commit
        chmod +x .githooks/pre-commit; git config core.hooksPath .githooks
        git add .; git commit -qm hooks
        """,
        inside=f"""
        mkdir ".githooks "; {HOOK} > ".githooks /pre-commit"; chmod +x ".githooks /pre-commit"
        sed 's/hooksPath = .*/& \\\\\\n/' .git/config > .git/c; mv .git/c .git/config
        """,
        host="git commit -q --allow-empty -m two",
    ),
    "a sample that a hook is linked to": Attack(
        before="""
        printf '#!/bin/sh\\nexit 0\\n' > .git/hooks/pre-commit.sample
        chmod +x .git/hooks/pre-commit.sample; ln -s pre-commit.sample .git/hooks/pre-commit
        """,
        inside=f"{HOOK} > .git/hooks/pre-commit.sample",
        host="git commit -q --allow-empty -m two",
    ),
}


@pytest.fixture(params=["landlock", "full"])
def sandbox(
    request: pytest.FixtureRequest, sandbox: SandboxRunner, host: dict[str, Any]
) -> SandboxRunner:
    """Each test runs in both tiers."""
    if request.param == "full":
        need("namespaces", host["namespaces"]["usable"], str(host["namespaces"]))
    return replace(sandbox, tier=request.param)


@pytest.fixture
def memory() -> Iterator[Path]:
    """A path in memory, which a command can write to and which stays after a run."""
    path = Path("/dev/shm") / f"paddock-test-{secrets.token_hex(4)}"
    yield path
    shutil.rmtree(path, ignore_errors=True)


def host_repository(sandbox: SandboxRunner, place: Path, script: str) -> None:
    sandbox.tree.make(place)
    made = (
        "git init -qb main . && git config user.name host && git config user.email host@x "
        f"&& echo 1 > a.txt && git add a.txt && git commit -qm one && {{ P={place}; {script}\n}}"
    )
    done = sandbox.tester.run(["sh", "-c", made], cwd=place)
    assert done.exit_code == 0, str(done)


@pytest.mark.parametrize("name", ATTACKS)
def test_no_planted_program_runs(sandbox: SandboxRunner, memory: Path, name: str) -> None:
    for place, run in (
        (sandbox.tree.project, sandbox.inside),
        (sandbox.tree.outside, sandbox.outside),
    ):
        ran, output = attacked(sandbox, ATTACKS[name], place, run, memory)
        assert ran == (run == sandbox.outside), output


@pytest.mark.parametrize("name", ATTACKS)
def test_apply_plants_no_program(full: SandboxRunner, memory: Path, name: str) -> None:
    """Writes in a copy are not judged. Apply judges them."""

    def in_copy(words: list[str], cwd: Path) -> Outcome:
        outcome = full.inside(words, "--cow", cwd=cwd)
        applied = full.outside([full.installation.paddock, "apply"], cwd=cwd)
        assert "applied" in applied.stdout + applied.stderr, str(applied)
        return outcome

    ran, output = attacked(full, ATTACKS[name], full.tree.project, in_copy, memory)
    assert not ran, output


def attacked(
    sandbox: SandboxRunner,
    attack: Attack,
    place: Path,
    run: Callable[..., Outcome],
    memory: Path,
) -> tuple[bool, str]:
    """Whether the planted program has run, and the output."""
    host_repository(sandbox, place, attack.before)
    mark = sandbox.tree.root / f"ran-{place.name}"
    names = f"P={place}; R={memory}; MARK={mark}; cd $P"
    outcome = run(["sh", "-c", f"echo started; {names}; {attack.inside}"], cwd=place)
    assert outcome.started, str(outcome)
    after = sandbox.tester.run(["sh", "-c", f"{names}; {attack.host}"], cwd=place)
    shutil.rmtree(memory, ignore_errors=True)
    return mark.exists(), f"{outcome}\n{after}"


HIDDEN_TREE = """
import hashlib, sys
new, old = (bytes.fromhex(word) for word in sys.argv[1:])
index = open(".git/index", "rb").read()[:-20]
assert old in index
index = index.replace(old, new)
open("index.new", "wb").write(index + hashlib.sha1(index).digest())
"""


def test_the_next_commit_of_the_host_has_only_files_of_the_index(sandbox: SandboxRunner) -> None:
    """Git believes the cache of directories in its index, and writes it into the next commit."""
    script = f"""
    w=$(echo evil | git hash-object -w --stdin)
    wf=$(printf '100644 blob %s\\tevil.yml\\n' $w | git mktree)
    gh=$( (git ls-tree HEAD:.github; printf '040000 tree %s\\tworkflows\\n' $wf) | git mktree)
    cat > make.py <<'END'
{HIDDEN_TREE}
END
    /usr/bin/python3 make.py $gh $(git rev-parse HEAD:.github) && mv index.new .git/index
    """
    before = (
        "mkdir .github && echo x > .github/README && git add . && git commit -qm two "
        "&& git read-tree HEAD && git status -s"
    )
    host = "echo 2 > a.txt; git add a.txt; git commit -qm three; git ls-tree -r --name-only HEAD"
    for place, run in (
        (sandbox.tree.project, sandbox.inside),
        (sandbox.tree.outside, sandbox.outside),
    ):
        host_repository(sandbox, place, before)
        outcome = run(["sh", "-c", f"echo started; {script}"], cwd=place)
        assert outcome.started, str(outcome)
        after = sandbox.tester.run(["sh", "-c", host], cwd=place)
        assert after.exit_code == 0, str(after)
        assert ("evil.yml" in after.stdout) == (run == sandbox.outside), f"{outcome}\n{after}"
        checked = sandbox.tester.run(["git", "fsck"], cwd=place)
        assert checked.exit_code == 0, str(checked)


def test_a_repository_does_not_take_the_place_of_another_one(sandbox: SandboxRunner) -> None:
    """In a directory with files of the host's repository, git finds the new one."""
    before = "mkdir src own; echo 1 > src/a; git add .; git commit -qm two"
    entry = "other/.git/worktrees/n"
    for script, is_refused in (
        ("git init -q src", True),
        ("git init -q new; mv src old; mv new src", True),
        ("mv .git/index .git/idx; git init -q src; mv .git/idx .git/index", True),
        ("chmod 0 .git; git init -q src; chmod 755 .git", True),
        ("chmod 0 .git/index; git init -q src; chmod 644 .git/index", True),
        ("git rm -rq --cached src; git init -q src; git read-tree HEAD", True),
        (
            f"git init -qb main other; git -C other commit -q --allow-empty -m x; mkdir -p {entry};"
            f"echo ../.. > {entry}/commondir; echo $PWD/src/.git > {entry}/gitdir;"
            f"echo ref: refs/heads/main > {entry}/HEAD; echo gitdir: $PWD/{entry} > src/.git",
            True,
        ),
        ("git init -q own; git init -q new/er", False),
        ("git worktree add -q own/tree -b side; echo 2 > own/b; git add own/b", False),
    ):
        for place, run in (
            (sandbox.tree.project, sandbox.inside),
            (sandbox.tree.outside, sandbox.outside),
        ):
            shutil.rmtree(place, ignore_errors=True)
            host_repository(sandbox, place, before)
            outcome = run(["sh", "-c", f"echo started; {script}"], cwd=place)
            assert outcome.started, str(outcome)
            tracked = (
                sandbox.tester.run(["git", "ls-files", "src/a"], cwd=place).stdout == "src/a\n"
            )
            taken = tracked and (place / "src/.git").exists()
            made = any((place / name / ".git").exists() for name in ("new/er", "own/tree"))
            is_found = taken if is_refused else made
            assert is_found == (run == sandbox.outside or not is_refused), str(outcome)


def test_a_stash_of_the_host_does_not_become_a_commit(sandbox: SandboxRunner) -> None:
    script = """
    echo 'ref: refs/heads/main' > .git/refs/stash
    mkdir -p .git/logs/refs; cp .git/logs/HEAD .git/logs/refs/stash
    """
    for place, run in (
        (sandbox.tree.project, sandbox.inside),
        (sandbox.tree.outside, sandbox.outside),
    ):
        host_repository(sandbox, place, "true")
        outcome = run(["sh", "-c", f"echo started; {script}"], cwd=place)
        assert outcome.started, str(outcome)
        after = sandbox.tester.run(
            ["sh", "-c", "echo mine > a.txt; git stash -q; git log --format=%s main"], cwd=place
        )
        assert ("WIP" in after.stdout) == (run == sandbox.outside), f"{outcome}\n{after}"


def test_a_file_that_is_open_at_the_end_gets_no_name(sandbox: SandboxRunner) -> None:
    """Its content was not judged."""
    script = "(exec 3> .git/config.worktree; touch ready; sleep 60) & "
    script += "while ! test -e ready; do sleep 0.05; done"
    for place, run in (
        (sandbox.tree.project, sandbox.inside),
        (sandbox.tree.outside, sandbox.outside),
    ):
        host_repository(sandbox, place, "true")
        outcome = run(["sh", "-c", f"echo started; {script}"], cwd=place)
        assert outcome.started, str(outcome)
        assert (place / "ready").exists(), str(outcome)
        exists = (place / ".git/config.worktree").exists()
        assert exists == (run == sandbox.outside), str(outcome)
        assert ("config.worktree" in outcome.stderr) == (run == sandbox.inside), str(outcome)


def test_a_fetch_does_not_replace_objects(sandbox: SandboxRunner) -> None:
    before = """
    git init -qb main sub; git -C sub config user.name h; git -C sub config user.email h@x
    git -C sub commit -q --allow-empty -m x; git remote add origin $P/sub
    """
    script = """
    new=$(echo evil | git -C sub hash-object -w --stdin); mkdir -p sub/.git/refs/tags
    echo $new > sub/.git/refs/tags/$(git rev-parse HEAD:a.txt)
    git config remote.origin.fetch '+refs/tags/*:refs/replace/*'
    """
    for place, run in (
        (sandbox.tree.project, sandbox.inside),
        (sandbox.tree.outside, sandbox.outside),
    ):
        host_repository(sandbox, place, before)
        outcome = run(["sh", "-c", f"echo started; {script}"], cwd=place)
        assert outcome.started, str(outcome)
        after = sandbox.tester.run(
            ["sh", "-c", "git fetch -q; git cat-file -p HEAD:a.txt"], cwd=place
        )
        assert (after.stdout == "evil\n") == (run == sandbox.outside), f"{outcome}\n{after}"


MAKER = """
import os, sys, time
directory = os.open(sys.argv[1], os.O_RDONLY)
print("started", flush=True)
end = time.monotonic() + float(sys.argv[3])
while time.monotonic() < end:
    try:
        made = os.open("pre-commit", os.O_WRONLY | os.O_CREAT, 0o755, dir_fd=directory)
        os.write(made, b"#!/bin/sh\\n")
        os.close(made)
        os.unlink("pre-commit", dir_fd=directory)
    except OSError:
        pass
"""
MOVER = """
import os, sys, time
print("started", flush=True)
end = time.monotonic() + float(sys.argv[3])
while time.monotonic() < end:
    for old, new in ((sys.argv[1], sys.argv[2]), (sys.argv[2], sys.argv[1])):
        try:
            os.rename(old, new)
        except OSError:
            pass
"""
PART_MAKER = """
import os, sys, time
make, remove = (os.mkdir, os.rmdir) if sys.argv[1].endswith("refs") else (os.mknod, os.unlink)
print("started", flush=True)
end = time.monotonic() + float(sys.argv[3])
while time.monotonic() < end:
    for act in (make, remove):
        try:
            act(sys.argv[1])
        except OSError:
            pass
"""
SEER = """
import os, sys, time
end, seen = time.monotonic() + float(sys.argv[2]), 0
while time.monotonic() < end and not seen:
    seen += os.path.lexists(sys.argv[1])
print(seen)
"""
# A small directory is listed in one step.
LISTER = """
import os, sys, time
end, seen = time.monotonic() + float(sys.argv[2]), 0
while time.monotonic() < end and not seen:
    seen += {"HEAD", "refs", "objects"} <= set(os.listdir(sys.argv[1]))
print(seen)
"""
# The two commands, and a program outside that tells whether it has seen the name.
RACES = {
    "a name in a directory that moves": (
        (MAKER, "x", ""),
        (MOVER, "x", ".git/hooks"),
        (SEER, ".git/hooks/pre-commit"),
    ),
    "a file of git in a directory that moves": (
        (MAKER, ".git/refs/heads/x", ""),
        (MOVER, ".git/refs/heads/x", ".git/hooks"),
        (SEER, ".git/hooks/pre-commit"),
    ),
    "the parts of a repository": (
        (PART_MAKER, "y/refs", ""),
        (PART_MAKER, "y/HEAD", ""),
        (LISTER, "y"),
    ),
}


@pytest.mark.parametrize("name", RACES)
def test_two_runs_do_not_make_a_protected_name_together(sandbox: SandboxRunner, name: str) -> None:
    one, other, watcher = RACES[name]
    before = "rm -rf .git/hooks; mkdir -p x y/objects .git/refs/heads/x"
    for place, is_inside, seconds in (
        (sandbox.tree.project, True, "4"),
        # The control ends at the first sight.
        (sandbox.tree.outside, False, "60"),
    ):
        host_repository(sandbox, place, before)

        def starting(
            text: str,
            *words: str,
            place: Path = place,
            is_inside: bool = is_inside,
            seconds: str = seconds,
        ) -> AbstractContextManager[subprocess.Popen[str]]:
            argv = ["/usr/bin/python3", "-Ic", text, *words, seconds]
            return sandbox.tester.starting(
                sandbox.command(argv, "--quiet") if is_inside else argv, cwd=place
            )

        with ExitStack() as processes:
            # The maker opens the directory before the mover moves it.
            for words in (one, other):
                process = processes.enter_context(starting(*words))
                assert process.stdout is not None
                assert process.stdout.readline() == "started\n"
            seen = sandbox.tester.run(["/usr/bin/python3", "-Ic", *watcher, seconds], cwd=place)
        assert (int(seen.stdout) > 0) == (not is_inside), str(seen)
