"""The guard of a live workspace: attacks of a command on the guard, and changes of the host
meanwhile.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.guard import wait_until_judged
from tests.support.outside_targets import state
from tests.support.sandbox import SandboxRunner, Word
from tests.support.waiting import wait_for

# Prints what it can read after the host has finished.
READER = """
echo started; touch ready
while ! test -e done; do sleep 0.05; done
cat SECRET 2>&1; rm -f ready done
"""


@contextmanager
def running(
    full: SandboxRunner, words: list[Word], *flags: Word, stdin: int = subprocess.DEVNULL
) -> Iterator[subprocess.Popen[str]]:
    with full.starting(words, *flags, stdin=stdin) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        yield process


def output(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    text = process.stdout.read()
    process.wait(timeout=120)
    return text


def judged(full: SandboxRunner) -> None:
    wait_until_judged(full.tester, full.tree.project, full.journal)


def by_host(full: SandboxRunner, script: str, *, until: str = "ready") -> None:
    """The command continues when the guard has judged the script and the file ``until`` exists."""
    wait_for(lambda: (full.tree.project / "ready").exists(), "the command waits")
    done = full.outside(["sh", "-c", f"set -e; {script}"])
    assert done.exit_code == 0, str(done)
    wait_for(lambda: (full.tree.project / until).exists(), f"the command makes {until}")
    judged(full)
    assert full.outside(["touch", "done"]).exit_code == 0


@pytest.mark.parametrize(
    ("deny", "act"),
    [
        ("a/b/secret", "echo new-secret > ../new; mv ../new a/b/secret"),
        ("a/b/secret", "rm a/b/secret; echo new-secret > a/b/secret"),
        ("a/b/secret", "mv a/b ../old; mkdir a/b; echo new-secret > a/b/secret"),
        ("a/b/**", "mv a/b ../old; mkdir a/b; echo new-secret > a/b/secret"),
        ("a/*/secret", "echo new-secret > ../new; mv ../new a/b/secret"),
    ],
)
def test_a_deny_by_its_path_holds_when_the_host_replaces_the_file(
    full: SandboxRunner, deny: str, act: str
) -> None:
    secret = full.tree.put(full.tree.project / "a" / "b" / "secret", "old-secret\n")
    script = READER.replace("SECRET", str(secret))
    with running(full, ["sh", "-c", script], "--deny", f"{full.tree.project}/{deny}") as process:
        by_host(full, act)
        assert "secret" not in output(process).replace(str(secret), "")
    with running(full, ["sh", "-c", script]) as process:
        by_host(full, "true")
        assert "new-secret" in output(process), "the control: without the deny it is read"


@pytest.mark.parametrize("act", ["moves", "is removed", "is replaced"])
def test_a_directory_that_moves_during_the_start_is_searched_again(
    full: SandboxRunner, act: str
) -> None:
    """A name that the search saw counts as covered. If it moves before it is covered, it would stay
    uncovered.
    """
    project = full.tree.project
    full.tree.put(project / "d" / ".env", "secret\n")
    full.tree.put(project / "d" / "plain", "plain\n")
    script = (
        "echo started; while ! test -e done; do sleep 0.01; done; cat */.env */plain; rm -f done"
    )
    here, there = project / "d", project / "e"
    for turn in range(60):
        if act == "is replaced":
            full.tree.put(project / "new", "secret\n")
        with full.starting(["sh", "-c", script], "--quiet") as process:
            time.sleep(turn * 0.0005)
            match act:
                case "moves":
                    here.rename(there)
                    here, there = there, here
                case "is removed":
                    (here / ".env").unlink()
                case "is replaced":
                    (project / "new").rename(here / ".env")
            assert process.stdout is not None
            assert process.stdout.readline() == "started\n", turn
            judged(full)
            full.tree.put(project / "done", "")
            text = output(process)
        # One change does not refuse a start.
        assert (process.returncode, text) == (0, "plain\n"), turn
        if act == "is removed":
            full.tree.put(here / ".env", "secret\n")
    assert full.outside(["sh", "-c", "cat */.env"]).stdout == "secret\n", "the control"


def test_a_directory_that_the_host_moves_under_a_copy_stays_closed(full: SandboxRunner) -> None:
    """In a live workspace the cover moves with the directory. In a copy the name was hidden by its
    path.
    """
    full.tree.put(full.tree.project / "d" / "deep" / ".env", "secret\n")
    full.tree.put(full.tree.project / "d" / "deep" / "plain", "plain\n")
    script = "echo started; read x; cat */deep/.env */deep/plain"
    for flags in (["--cow"], []):
        with running(full, ["sh", "-c", script], *flags, stdin=subprocess.PIPE) as process:
            assert full.outside(["mv", "d", "e"]).exit_code == 0
            judged(full)
            assert process.communicate("\n", timeout=120)[0] == "plain\n", flags
        assert full.outside(["mv", "e", "d"]).exit_code == 0
    assert full.outside(["sh", "-c", "cat */deep/.env"]).stdout == "secret\n", "the control"


# The child has its own session, so the stop of the command does not stop it.
STOPPED = """
import os, signal, time
print("started", flush=True)
me = os.getpid()
if os.fork() == 0:
    os.setsid()
    os.kill(me, signal.SIGSTOP)
    end, text = time.time() + 60, "secret"
    while text and time.time() < end:
        time.sleep(0.02)
        try:
            text = open("d/.env").read() if os.path.exists("go") else text
        except OSError:
            text = ""
    print("read:", text, flush=True)
    os.kill(me, signal.SIGCONT)
    os._exit(0)
os.wait()
"""


def test_a_command_that_stops_does_not_stop_the_guard(full: SandboxRunner) -> None:
    """The supervisor stops too, as its parent expects. A shell would show it as a stopped job."""
    full.tree.make(full.tree.project / "d")
    with running(full, ["python3", "-c", STOPPED]) as process:
        wait_for(lambda: state(process.pid) == "T", "the supervisor is stopped")
        secret = full.tree.put(full.tree.project / "d" / ".env", "secret")
        full.tree.put(full.tree.project / "go")
        # The command is continued after that. So the name was masked while it was stopped.
        assert output(process) == "read: \n"
    assert full.outside(["cat", secret]).stdout == "secret", "the control"


def test_unread_output_does_not_stop_the_guard(full: SandboxRunner) -> None:
    """stderr is a full pipe. The messages of the guard wait for the end."""
    script = """
    echo started
    python3 -c 'import os, select
while select.select([], [2], [], 0)[1]: os.write(2, bytes(4096))'
    touch ready; while ! test -e done; do sleep 0.05; done
    cat */.env 2>/dev/null | wc -l; rm -f ready done
    """
    with running(full, ["sh", "-c", script]) as process:
        by_host(full, "for i in $(seq 40); do mkdir $i; echo secret > $i/.env; done")
        assert process.stdout is not None
        assert process.stdout.readline() == "0\n"
        assert process.stderr is not None
        process.stderr.read()
        process.wait(timeout=120)
    assert full.outside(["sh", "-c", "cat */.env | wc -l"]).stdout == "40\n", "the control"


def test_a_name_that_the_host_removed_cannot_be_created_by_the_command(full: SandboxRunner) -> None:
    project = full.tree.project
    for name in (".envrc", "a/.vscode/tasks.json", ".mcp.json"):
        full.tree.put(project / name, "as it was\n")
    script = """
    echo started; touch ready
    while test -e .envrc || test -e a/.vscode; do sleep 0.01; done
    echo evil > .envrc; mkdir x; echo evil > x/tasks.json; mv x a/.vscode
    touch planted; while ! test -e done; do sleep 0.05; done; rm -f done ready
    """
    with running(full, ["sh", "-c", script]) as process:
        by_host(full, "rm -r .envrc a/.vscode; echo mine > new; mv new .mcp.json", until="planted")
        output(process)
    assert not (project / ".envrc").exists()
    assert not (project / "a" / ".vscode").exists()
    assert (project / ".mcp.json").read_text() == "mine\n", "a file that the host renames stays"


REPOSITORIES = {
    "a nested repository": "git init -q n; cd n; git config core.hooksPath tools/hooks",
    "a linked worktree": (
        "git init -q .; git config core.hooksPath tools/hooks; "
        "git commit -q --allow-empty -m x; git worktree add -q n"
    ),
    "a worktree's own configuration": (
        "git init -q .; git commit -q --allow-empty -m x; git worktree add -q n; "
        "git config extensions.worktreeConfig "
        "true; git -C n config --worktree core.hooksPath tools/hooks"
    ),
    "a submodule": (
        "git init -q ../s; git -C ../s commit -q --allow-empty -m x; git init -q .; "
        "git -c protocol.file.allow=always "
        "submodule --quiet add $PWD/../s n; git -C n config core.hooksPath tools/hooks"
    ),
}


@pytest.mark.parametrize("made", REPOSITORIES.values(), ids=REPOSITORIES)
def test_paths_named_by_other_repositories_of_the_workspace_are_protected(
    full: SandboxRunner, made: str
) -> None:
    project, mark = full.tree.project, full.tree.outside / "mark"
    who = {
        f"GIT_{one}_{what}": "t@example.com"
        for one in ("AUTHOR", "COMMITTER")
        for what in ("NAME", "EMAIL")
    }
    done = full.outside(["sh", "-c", f"set -e; {made}"], env=who)
    assert done.exit_code == 0, str(done)
    plant = (
        f"mkdir -p n/tools/hooks; printf '#!/bin/sh\\ntouch {mark}\\n' > n/tools/hooks/pre-commit;"
        "chmod +x n/tools/hooks/pre-commit"
    )
    assert full.inside(["sh", "-c", f"echo started; {plant}"]).started
    commit: list[Word] = ["git", "-C", project / "n", "commit", "-q", "--allow-empty", "-m", "y"]
    assert full.outside(commit, env=who).exit_code == 0
    assert not mark.exists()
    assert full.outside(["sh", "-c", plant]).exit_code == 0
    full.outside(commit, env=who)
    assert mark.exists(), "the control: such a hook runs"


def test_a_bare_repository_gets_no_hooks(full: SandboxRunner) -> None:
    project, mark = full.tree.project, full.tree.outside / "mark"
    made = (
        "git init -q .; git commit -q --allow-empty -m x; git clone -q --bare --template= . "
        "fixture.git"
    )
    who = {
        f"GIT_{one}_{what}": "t@example.com"
        for one in ("AUTHOR", "COMMITTER")
        for what in ("NAME", "EMAIL")
    }
    assert full.outside(["sh", "-c", made], env=who).exit_code == 0
    plant = (
        f"mkdir -p fixture.git/hooks; printf '#!/bin/sh\\ntouch {mark}\\n' > "
        f"fixture.git/hooks/post-receive;"
        "chmod +x fixture.git/hooks/post-receive"
    )
    assert full.inside(
        ["sh", "-c", f"echo started; {plant}; echo ../e > fixture.git/commondir"]
    ).started
    assert full.outside(["git", "push", "-q", "fixture.git", "HEAD:one"]).exit_code == 0
    assert not mark.exists()
    assert not (project / "fixture.git" / "commondir").exists()
    assert full.outside(["sh", "-c", plant]).exit_code == 0
    assert full.outside(["git", "push", "-q", "fixture.git", "HEAD:two"]).exit_code == 0
    assert mark.exists(), "the control: such a hook runs"


EXHAUST = """
import ctypes, os, sys
print("started", flush=True)
libc = ctypes.CDLL(None, use_errno=True)
fd, count = libc.inotify_init1(0), 0
for at, names, files in os.walk("/usr"):
    for name in files:
        if libc.inotify_add_watch(fd, os.fsencode(os.path.join(at, name)), 2) < 0:
            print(count, flush=True)
            sys.exit()
        count += 1
"""


def test_a_command_cannot_use_up_the_watches_of_the_user(full: SandboxRunner) -> None:
    most = int(Path("/proc/sys/fs/inotify/max_user_watches").read_text())
    done = full.inside(["cat", "/proc/sys/user/max_inotify_watches"])
    assert done.stdout == f"{most // 2}\n", str(done)
    if most // 2 < 60_000:  # the limit is low enough to try it
        assert int(full.inside([sys.executable, "-c", EXHAUST]).answer) <= most // 2


# Waits like READER, in a new mount namespace and beside it. A process in the new one can not write.
TWO_READERS = """
echo started
unshare -U -m --propagation unchanged sh -c '
    echo entered; while ! test -e done; do sleep 0.05; done
    echo "its own: $(cat .env 2>&1)"' | { read entered; touch ready; cat; }
echo "the sandbox: $(cat .env 2>&1)"; rm -f ready done
"""


def test_known_limit_a_nested_mount_namespace_misses_later_masks(
    full: SandboxRunner,
) -> None:
    """A known limit of SECURITY.md: the creator of a mount namespace can stop mount propagation
    into it. The run warns of it.
    """
    policy = full.tree.put(full.tree.root / "nested.toml", "[syscalls]\nnamespaces = true\n")
    with running(full, ["sh", "-c", TWO_READERS], "--policy", policy) as process:
        by_host(full, "echo new-secret > .env")
        answers = dict(line.split(": ", 1) for line in output(process).splitlines())
        assert process.stderr is not None
        assert "creates or replaces do not reach into these namespaces" in process.stderr.read()
    assert answers["its own"] == "new-secret", "if this fails, SECURITY.md is out of date"
    assert "new-secret" not in answers["the sandbox"]
