"""State in a git directory that git obeys later: the index, an unfinished merge or rebase, replaced
objects.

A command writes it in one run. Then the host's git works, and marks on the host show what was
executed.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.sandbox import SandboxRunner
from tests.support.tree import SECRET
from tests.system.files.test_git_directories import made

# An index with one more entry, whose path is in the git directory.
_INDEX = r"""
import hashlib, os, struct, subprocess, sys
path, content = sys.argv[1].encode(), sys.argv[2].encode()
print("started", flush=True)
words = ["git", "hash-object", "-w", "--stdin"]
written = subprocess.run(words, input=content, capture_output=True, check=True)
raw = open(".git/index", "rb").read()
version, count = struct.unpack(">II", raw[4:12])
assert version == 2
at, entries = 12, []
for _ in range(count):
    length = struct.unpack(">H", raw[at + 60 : at + 62])[0] & 0xFFF
    entries.append((raw[at + 62 : at + 62 + length], raw[at : at + 62]))
    at += (62 + length + 8) // 8 * 8
head = struct.pack(">10I", 0, 0, 0, 0, 0, 0, 0o100755, 0, 0, 0)
head += bytes.fromhex(written.stdout.decode().strip())
entries.append((path, head + struct.pack(">H", len(path) | 0x8000)))
body = b"DIRC" + struct.pack(">II", 2, len(entries))
for name, head in sorted(entries):
    entry = head + name
    body += entry + b"\0" * (8 - len(entry) % 8)
open(".git/new", "wb").write(body + hashlib.sha1(body).digest())
os.rename(".git/new", ".git/index")
"""


@pytest.mark.parametrize("path", [".git/hooks/post-checkout", "../planted"])
def test_an_index_names_no_file_outside_the_work_tree(full: SandboxRunner, path: str) -> None:
    for place, run in (
        (full.tree.root / "control", full.outside),
        (full.tree.project, full.inside),
    ):
        made(full, place)
        mark = full.tree.outside / f"mark-{place.name}"
        planted = run(["python3", "-c", _INDEX, path, f"#!/bin/sh\ntouch {mark}\n"], cwd=place)
        assert planted.started, str(planted)
        full.outside(["git", "checkout", "."], cwd=place)
        written = place / path if path.startswith("..") else mark
        assert written.exists() is (run == full.outside), str(planted)
        if run == full.inside:
            assert ".git/index" in planted.stderr
            assert full.outside(["git", "reset", "-q"], cwd=place).exit_code == 0, "a new index"
        full.outside(["rm", "-f", place / path])


def test_an_honest_index_stays(full: SandboxRunner) -> None:
    place = made(full, full.tree.project)
    script = (
        "set -e; echo started; echo 2 > other; git add other; "
        "git -c user.name=a -c user.email=a@b commit -qm two"
    )
    ran = full.inside(["sh", "-c", script], cwd=place)
    assert (ran.exit_code, ran.started) == (0, True), str(ran)
    assert full.outside(["git", "status", "--short", "-uno"], cwd=place).stdout == ""
    assert full.outside(["git", "ls-files"], cwd=place).stdout == "file\nother\n"


def test_a_forged_merge_resolution_copies_no_secret(full: SandboxRunner) -> None:
    script = """echo started; mkdir -p .git/rr-cache/1111111111111111111111111111111111111111
        echo > .git/rr-cache/1111111111111111111111111111111111111111/preimage
        printf '1111111111111111111111111111111111111111\\t%s\\0' "$0" > .git/MERGE_RR"""
    for place, run in (
        (full.tree.root / "control", full.outside),
        (full.tree.project, full.inside),
    ):
        made(full, place)
        planted = run(["sh", "-c", script, str(full.tree.secret)], cwd=place)
        assert planted.started, str(planted)
        work = "echo x >> file; git -c user.name=a -c user.email=a@b commit -qam mine"
        assert full.outside(["sh", "-c", work], cwd=place).exit_code == 0
        copied = full.outside(["grep", "-rl", SECRET, ".git"], cwd=place).stdout
        assert bool(copied) is (run == full.outside), copied


# The command that obeys each of them: `git commit`, `rebase --continue`, `fetch`, every checkout.
@pytest.mark.parametrize(
    "part",
    ["MERGE_AUTOSTASH", "rebase-merge/autostash", "rebase-apply/autostash", "rebase-merge/strategy",
     "rebase-merge/strategy_opts", "sequencer/opts", "remotes/origin", "branches/origin",
     "refs/replace/x",
     "rr-cache/x", "worktrees/w/rebase-merge/strategy"],
)  # fmt: skip
def test_state_that_git_obeys_does_not_appear(full: SandboxRunner, part: str) -> None:
    place = made(full, full.tree.project)
    planted = full.inside(
        ["sh", "-c", f"echo started; mkdir -p $(dirname .git/{part}); echo evil > .git/{part}"]
    )
    assert planted.started, str(planted)
    assert not (place / ".git" / part).exists(), str(planted)
    full.outside(["sh", "-c", f"mkdir -p $(dirname .git/{part}); echo evil > .git/{part}"])
    assert (place / ".git" / part).exists(), "the control"


@pytest.mark.parametrize(("content", "stays"), [("3\n", True), ("$(touch x)1\n", False)])
def test_counts_of_a_rebase_are_digits(full: SandboxRunner, content: str, stays: bool) -> None:
    place = made(full, full.tree.project)
    planted = full.inside(
        [
            "sh",
            "-c",
            'echo started; mkdir .git/rebase-merge; printf %s "$0" > .git/rebase-merge/msgnum',
            content,
        ]
    )
    assert planted.started, str(planted)
    assert (place / ".git/rebase-merge/msgnum").exists() is stays


def test_apply_holds_back_an_index_that_names_a_hook(full: SandboxRunner) -> None:
    place: Path = made(full, full.tree.project)
    ran = full.inside(["python3", "-c", _INDEX, ".git/hooks/post-checkout", "#!/bin/sh\n"], "--cow")
    assert ran.started, str(ran)
    before = (place / ".git/index").read_bytes()
    applied = full.outside([full.installation.paddock, "apply"])
    assert ".git/index" in applied.stdout + applied.stderr, str(applied)
    assert (place / ".git/index").read_bytes() == before
