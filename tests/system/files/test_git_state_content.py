"""The content of files that git writes and obeys later: written in place, read by several threads,
options of an unfinished `git am`, packed refs, and names that are neither file nor directory.

A command writes them in one run. Then the host's git works, and files on the host show the result.
Each control does the same without the sandbox.
"""

from __future__ import annotations

import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.sandbox import SandboxRunner
from tests.support.tester import Outcome
from tests.system.files.test_git_directories import made

_WHO = (
    "export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b\n"
)
Run = Callable[..., Outcome]


def _both(full: SandboxRunner, script: str) -> Iterator[tuple[Path, Run, bool]]:
    """A repository for the control, then one for the run. The last value is whether it is the
    run.
    """
    for place, run in (
        (full.tree.root / "control", full.outside),
        (full.tree.project, full.inside),
    ):
        yield (
            made(full, place, f"{_WHO}set -e; git init -q -b main .; {script}"),
            run,
            run == full.inside,
        )


def _host(full: SandboxRunner, place: Path, script: str) -> Outcome:
    return full.outside(["sh", "-c", _WHO + script], cwd=place)


# A file of the work tree becomes a hook: one letter of its path in the index changes, and so does
# the content of its object. No name appears.
_IN_PLACE = r"""
import mmap, os, subprocess, sys, zlib
how, content = sys.argv[1], sys.argv[2].encode()
print("started", flush=True)
found = subprocess.check_output(["git", "rev-parse", "HEAD:xgit/hooks/post-checkout"])
oid = found.decode().strip()
loose = f".git/objects/{oid[:2]}/{oid[2:]}"
os.chmod(loose, 0o644)
file = os.open(loose, os.O_WRONLY | os.O_TRUNC)
os.write(file, zlib.compress(b"blob %d\0" % len(content) + content))
index = os.open(".git/index", os.O_RDWR)
at = os.pread(index, 1 << 20, 0).index(b"xgit/hooks")
if how == "mapping":
    mapped = mmap.mmap(index, 0)
    assert mapped[at] == ord("x")
    mapped[at] = ord(".")
    mapped.close()
else:
    os.pwrite(index, b".", at)
"""


@pytest.mark.parametrize("how", ["write", "mapping"])
def test_an_index_written_in_place_is_judged(full: SandboxRunner, how: str) -> None:
    script = """mkdir -p xgit/hooks; echo 1 > xgit/hooks/post-checkout; chmod +x xgit/hooks/*
        git add .; git commit -qm 1"""
    for place, run, inside in _both(full, script):
        mark = full.tree.outside / f"mark-{place.name}"
        planted = run(["python3", "-c", _IN_PLACE, how, f"#!/bin/sh\ntouch {mark}\n"], cwd=place)
        assert (planted.exit_code, planted.started) == (0, True), str(planted)
        _host(full, place, "git checkout .")
        assert mark.exists() is not inside, str(planted)
        assert (".git/index" in planted.stderr) is inside


def test_a_count_written_in_place_is_judged(full: SandboxRunner) -> None:
    script = (
        "mkdir .git/rebase-merge; echo 1 > .git/rebase-merge/msgnum; echo 2 > .git/rebase-merge/end"
    )
    for place, run, inside in _both(full, script):
        untouched = run(["sh", "-c", "echo started"], cwd=place)
        assert untouched.started
        assert (place / ".git/rebase-merge/msgnum").exists(), str(untouched)
        planted = run(
            ["sh", "-c", "echo started; echo '$(touch x)' > .git/rebase-merge/msgnum"], cwd=place
        )
        assert planted.started, str(planted)
        written = "touch" in (place / ".git/rebase-merge/msgnum").read_text()
        assert written is not inside, str(planted)


_CONFLICT = """git commit -qm 0 --allow-empty; git branch b
echo 2 > c; git add c; git commit -qm c2; echo 1 > d; git add d; git commit -qm d1
echo 2 > d; git commit -qam d2; git checkout -q b; echo 1 > c; git add c; git commit -qm c1
git checkout -q main
"""


def test_options_of_an_unfinished_rebase_write_no_file(full: SandboxRunner) -> None:
    for place, run, inside in _both(full, f"{_CONFLICT} git rebase --apply b || :"):
        assert (place / ".git/rebase-apply/apply-opt").exists(), "git has stopped at the conflict"
        target = full.tree.outside / f"written-{place.name}"
        script = "echo started; echo \"'--build-fake-ancestor=$0'\" > .git/rebase-apply/apply-opt"
        planted = run(["sh", "-c", script, target], cwd=place)
        assert planted.started, str(planted)
        gone_on = _host(full, place, "echo 3 > c; git add c; GIT_EDITOR=: git rebase --continue")
        assert gone_on.exit_code == 0, str(gone_on)
        assert target.exists() is not inside, str(planted)


def test_git_am_and_rebase_go_on_inside(full: SandboxRunner) -> None:
    place = made(full, full.tree.project, f"{_WHO}set -e; git init -q -b main .; {_CONFLICT}")
    begin = "echo started; ! git rebase --apply --whitespace=fix -C2 b"
    begun = full.inside(["sh", "-c", _WHO + begin])
    assert (begun.exit_code, begun.started) == (0, True), str(begun)
    assert "-C2" in (place / ".git/rebase-apply/apply-opt").read_text()
    go_on = "echo started; echo 3 > c; git add c; GIT_EDITOR=: git rebase --continue"
    gone_on = full.inside(["sh", "-c", _WHO + go_on])
    assert (gone_on.exit_code, gone_on.started) == (0, True), str(gone_on)
    assert _host(full, place, "git log --format=%s").stdout.split() == ["d2", "d1", "c2", "c1", "0"]
    again = """echo started; git format-patch -q -1 --stdout > p; git reset -q --hard HEAD~
        git am --whitespace=fix p"""
    applied = full.inside(["sh", "-c", _WHO + again])
    assert (applied.exit_code, applied.started) == (0, True), str(applied)


@pytest.mark.parametrize("part", ["gpg_sign_opt", "strategy", "strategy_opts"])
def test_other_options_do_not_appear_in_an_unfinished_rebase(
    full: SandboxRunner, part: str
) -> None:
    for place, run, inside in _both(full, "mkdir .git/rebase-apply"):
        planted = run(["sh", "-c", f"echo started; echo x > .git/rebase-apply/{part}"], cwd=place)
        assert planted.started, str(planted)
        assert (place / ".git/rebase-apply" / part).exists() is not inside, str(planted)


# A split index in the body of an extension, which git finds by EOIE if it reads with threads.
_HIDDEN = r"""
import glob, hashlib, os, shutil, struct, subprocess, sys
print("started", flush=True)
run = lambda *words, **more: subprocess.run(words, check=True, capture_output=True, **more).stdout
content = sys.argv[1].encode()
oid = bytes.fromhex(run("git", "hash-object", "-w", "--stdin", input=content).decode().strip())
path = b".git/hooks/post-checkout"
entry = bytes(24) + struct.pack(">I", 0o100755) + bytes(12) + oid
entry += struct.pack(">H", len(path)) + path
signed = lambda body: body + hashlib.sha1(body).digest()
base = signed(b"DIRC" + struct.pack(">II", 2, 1) + entry + bytes(8 - len(entry) % 8))
there = sys.argv[2]
run("git", "init", "-q", there)
open(there + "/.git/index", "wb").write(base)
run("git", "update-index", "--split-index", cwd=there)
shared = glob.glob(there + "/.git/sharedindex.*")[0]
split = open(there + "/.git/index", "rb").read()
at = split.index(b"link")
link = split[at : at + 8 + struct.unpack(">I", split[at + 4 : at + 8])[0]]
shutil.copy(shared, ".git/" + os.path.basename(shared))
shutil.rmtree(there)
raw = open(".git/index", "rb").read()
at = 12
for _ in range(struct.unpack(">I", raw[8:12])[0]):
    at += (62 + raw.index(b"\0", at + 62) - (at + 62) + 8) & ~7
body = raw[:at] + sys.argv[3].encode() + struct.pack(">I", len(link) + 32)
offset = len(body)
body += link + b"EOIE" + struct.pack(">II", 24, offset) + hashlib.sha1(link[:8]).digest()
open(".git/new", "wb").write(signed(body))
os.rename(".git/new", ".git/index")
"""


@pytest.mark.parametrize("extension", ["ZZZZ", "TREE"])
def test_threads_of_git_read_no_other_index(full: SandboxRunner, extension: str) -> None:
    script = "git config index.threads 2; echo 1 > file; git add file; git commit -qm one"
    for place, run, inside in _both(full, script):
        mark = full.tree.outside / f"mark-{place.name}"
        words = ["python3", "-c", _HIDDEN, f"#!/bin/sh\ntouch {mark}\n", place / "copy", extension]
        planted = run(words, cwd=place)
        assert planted.started, str(planted)
        _host(full, place, "git checkout .")
        if extension == "ZZZZ" or inside:  # git itself refuses some bodies of TREE
            assert mark.exists() is not inside, str(planted)


# Git writes IEOT for several blocks, and for "true" only if there are three processors.
@pytest.mark.parametrize(("threads", "version"), [("true", 2), ("4", 2), ("4", 4)])
def test_an_index_that_git_writes_for_threads_stays(
    full: SandboxRunner, threads: str, version: int
) -> None:
    script = f"""git config index.threads {threads}; git config index.version {version}
        o=$(echo 1 | git hash-object -w --stdin)
        for n in $(seq 20500); do printf '100644 %s\\tf%05d\\n' $o $n; done |
        git update-index --index-info"""
    place = made(full, full.tree.project, f"{_WHO}set -e; git init -q -b main .; {script}")
    ran = full.inside(["sh", "-c", "echo started; echo 2 > other; git add other"])
    assert (ran.exit_code, ran.started) == (0, True), str(ran)
    index = (place / ".git/index").read_bytes()
    assert index[7] == version
    assert _host(full, place, "git ls-files | wc -l").stdout.strip() == "20501"


# With hashes of 32 bytes git would read another path in the same bytes, and no extension.
_TWO_FORMATS = r"""
import os, struct
print("started", flush=True)
path = b"../aaaaaaa0 " + b"b" * 32
oid = open(".git/index", "rb").read()[52:72]
entry = bytes(24) + struct.pack(">I", 0o100644) + bytes(12) + oid + struct.pack(">H", len(path))
entry += path + bytes(6)
body = b"DIRC" + struct.pack(">II", 2, 1) + entry + b"AAAA" + struct.pack(">I", 100) + b"xxxx"
open(".git/new", "wb").write(body + bytes(20))
os.rename(".git/new", ".git/index")
"""


def test_an_index_is_read_with_the_hash_of_its_repository(full: SandboxRunner) -> None:
    for place, run, inside in _both(full, "echo 1 > file; git add file; git commit -qm one"):
        planted = run(["python3", "-c", _TWO_FORMATS], cwd=place)
        assert planted.started, str(planted)
        _host(full, place, "git checkout .")
        written = place.parent / f"aaaaaaa0 {'b' * 32}"
        assert written.exists() is not inside, str(planted)
        written.unlink(missing_ok=True)


@pytest.mark.parametrize("flags", [(), ("--cow",)])
def test_an_index_with_longer_hashes_stays(full: SandboxRunner, flags: tuple[str, ...]) -> None:
    script = "git init -q -b main --object-format=sha256 .; echo 1 > file; git add file"
    place = made(full, full.tree.project, f"{_WHO}set -e; {script}; git commit -qm one")
    ran = full.inside(["sh", "-c", "echo started; echo 2 > other; git add other"], *flags)
    assert (ran.exit_code, ran.started) == (0, True), str(ran)
    if flags:
        applied = full.outside([full.installation.paddock, "apply"])
        assert applied.exit_code == 0, str(applied)
    assert _host(full, place, "git ls-files").stdout.split() == ["file", "other"]


_REPLACE = """echo started; A=$(git rev-parse HEAD)
export GIT_INDEX_FILE=$PWD/.git/other; git read-tree HEAD
b=$(echo EVIL | git hash-object -w --stdin)
git update-index --cacheinfo 100644,$b,file; B=$(git commit-tree -m h $(git write-tree))
git update-ref refs/heads/x $B; git pack-refs --all
sed -i "s#refs/heads/x#refs/replace/$A#" .git/packed-refs
"""


def test_packed_refs_replace_no_object_and_keep_the_branches(full: SandboxRunner) -> None:
    script = """echo 1 > file; git add file; git commit -qm one
        git branch kept; git tag -am t v1; git pack-refs --all"""
    for place, run, inside in _both(full, script):
        planted = run(["sh", "-c", _WHO + _REPLACE], cwd=place)
        assert planted.started, str(planted)
        host = _host(full, place, "git reset -q --hard; git for-each-ref --format='%(refname)'")
        assert (place / "file").read_text() == ("1\n" if inside else "EVIL\n"), str(planted)
        refs = host.stdout.split()
        assert {"refs/heads/main", "refs/heads/kept", "refs/tags/v1"} <= set(refs)
        assert any(ref.startswith("refs/replace/") for ref in refs) is not inside
        assert (".git/packed-refs" in planted.stderr) is inside


def test_packed_refs_that_the_user_has_replaced_stay(full: SandboxRunner) -> None:
    script = """echo 1 > file; git add .; git commit -qm one; git commit -qm two --allow-empty
        git replace HEAD HEAD~; git pack-refs --all"""
    place = made(full, full.tree.project, f"{_WHO}set -e; git init -q -b main .; {script}")
    before = (place / ".git/packed-refs").read_bytes()
    assert b"refs/replace/" in before
    ran = full.inside(["sh", "-c", "echo started; echo 2 > other; git add other"])
    assert (ran.exit_code, ran.started) == (0, True), str(ran)
    assert (place / ".git/packed-refs").read_bytes() == before


def test_no_fifo_is_made_in_a_git_directory(full: SandboxRunner) -> None:
    for place, run, inside in _both(full, "mkfifo .git/own; git commit -qm 0 --allow-empty"):
        planted = run(
            ["sh", "-c", "echo started; mv .git/HEAD .git/old; mkfifo .git/HEAD"], cwd=place
        )
        assert planted.started, str(planted)
        is_fifo = stat.S_ISFIFO((place / ".git/HEAD").stat().st_mode)
        assert is_fifo is not inside, str(planted)
        ended = _host(full, place, "timeout 3 git status")
        assert (ended.exit_code == 124) is not inside, "git waits at the FIFO"
        assert stat.S_ISFIFO((place / ".git/own").stat().st_mode), "the file existed before"


def test_no_socket_is_made_in_a_git_directory(full: SandboxRunner) -> None:
    script = "import socket; print('started'); socket.socket(socket.AF_UNIX).bind('.git/HEAD.lock')"
    for place, run, inside in _both(full, "git commit -qm 0 --allow-empty"):
        planted = run(["python3", "-c", script], cwd=place)
        assert planted.started, str(planted)
        assert (place / ".git/HEAD.lock").exists() is not inside, str(planted)


@pytest.mark.parametrize("part", ["packed-refs", "rebase-apply/apply-opt", "index"])
def test_apply_holds_back_git_state_of_the_session(full: SandboxRunner, part: str) -> None:
    script = """echo 1 > file; git add file; git commit -qm one; git pack-refs --all
        mkdir .git/rebase-apply; : > .git/rebase-apply/apply-opt"""
    place = made(full, full.tree.project, f"{_WHO}set -e; git init -q -b main .; {script}")
    options = "echo started; echo \"'--build-fake-ancestor=x'\" > .git/rebase-apply/apply-opt"
    commands: dict[str, list[str | bytes | Path]] = {
        "packed-refs": ["sh", "-c", _WHO + _REPLACE],
        "rebase-apply/apply-opt": ["sh", "-c", options],
        "index": ["python3", "-c", _HIDDEN, "#!/bin/sh\n", place / "copy", "TREE"],
    }
    before = (place / ".git" / part).read_bytes()
    ran = full.inside(commands[part], "--cow")
    assert (ran.exit_code, ran.started) == (0, True), str(ran)
    applied = full.outside([full.installation.paddock, "apply"])
    assert f".git/{part}" in applied.stdout + applied.stderr, str(applied)
    assert (place / ".git" / part).read_bytes() == before
