"""Judged writes need /proc, and the command gets only what its policy grants there.

The landlock init reads the state of each caller in /proc. A policy can deny parts of /proc, or
grant none of it. Then init has more rights there than the command, and must not use them for it.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.features import need
from tests.support.sandbox import SandboxRunner, Word
from tests.support.tester import Outcome

PYTHON = "/usr/bin/python3"
WITHOUT_PROC = """
[meta]
version = 1

[filesystem]
read_globs = ["/usr/**", "/bin/**?", "/lib/**?", "/lib64/**?", "/etc/**"]
allow_globs = ["<cwd>/**", "/dev/null"]
no_bootstrap_reads = true
"""
# Opens each path in every way, and prints the errno or the kind of the result for each.
READER = """
import ctypes, errno, json, os, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
def opened(path, flags):
    return os.open(path, flags)
def opened_how(path, flags):
    how = struct.pack("QQQ", flags, 0, 0)
    fd = libc.syscall(437, -100, path.encode(), how, len(how))
    if fd < 0:
        raise OSError(ctypes.get_errno(), path)
    return fd
def answer(open_it, path, flags):
    try:
        fd = open_it(path, flags)
    except OSError as error:
        return errno.errorcode[error.errno]
    os.close(fd)
    return "ok"
print("started")
os.dup2(os.open("file", os.O_RDWR | os.O_CREAT, 0o600), 9)
print(json.dumps({
    path: [answer(call, path, flags) for flags in (os.O_RDONLY, os.O_RDWR)
           for call in (opened, opened_how)]
    for path in sys.argv[1:]
}))
"""
# Each leads to a file or a directory of the workspace, by an open file of the caller.
OWN = (
    "/proc/self/fd/9",
    "/proc/thread-self/fd/9",
    "/dev/fd/9",
    "/proc/self/cwd/file",
    "/proc/self/cwd/../{cwd}/file",
)
# The command reads these only with a grant.
STATE = (
    "/proc",
    "/proc/self/status",
    "/proc/self/fd",
    "/proc/self/environ",
    "/proc/self/mem",
    "/proc/thread-self/comm",
    "/proc/version",
    "/proc/sys/kernel/ostype",
)


@pytest.fixture(params=["landlock", "full"])
def each_tier(
    request: pytest.FixtureRequest, sandbox: SandboxRunner, host: dict[str, Any]
) -> SandboxRunner:
    if request.param == "full":
        need("namespaces", host["namespaces"]["usable"], str(host["namespaces"]))
    return replace(sandbox, tier=request.param)


def reading(*paths: str) -> list[Word]:
    return [PYTHON, "-Ic", READER, *paths]


def answers(stdout: str) -> dict[str, list[str]]:
    return dict(json.loads(stdout.splitlines()[1]))


def run_with(sandbox: SandboxRunner, policy: str, words: list[Word]) -> Outcome:
    """``policy``: what it says about /proc."""
    if policy == "a denied name":
        return sandbox.inside(words, "--deny", "/proc/version")
    profile = sandbox.tree.put(sandbox.tree.root / "without-proc.toml", WITHOUT_PROC)
    return sandbox.inside(words, profile=str(profile))


@pytest.mark.parametrize("policy", ["a denied name", "no grant"])
def test_files_are_written_without_a_grant_of_proc(each_tier: SandboxRunner, policy: str) -> None:
    script = (
        "echo started; umask 027; echo 1 > file; mkdir dir; mv file dir; echo 2 >> dir/file; "
        "ln -s dir link; chmod 600 link/file; echo x > .envrc; cat dir/file"
    )
    outcome = run_with(each_tier, policy, ["sh", "-c", script])
    assert outcome.stdout == "started\n1\n2\n", str(outcome)
    project = each_tier.tree.project
    assert (project / "dir").stat().st_mode & 0o777 == 0o750
    assert (project / "dir" / "file").stat().st_mode & 0o777 == 0o600
    assert not (project / ".envrc").exists(), "writes are judged"
    assert str(project / ".envrc") in outcome.stderr, str(outcome)


@pytest.mark.parametrize("policy", ["a denied name", "no grant"])
def test_init_reads_nothing_for_the_command_that_its_policy_does_not_grant(
    each_tier: SandboxRunner, policy: str
) -> None:
    """The kernel judges the plain reading open. Init does every other one."""
    paths = [path.format(cwd=each_tier.tree.project.name) for path in OWN]
    inside = run_with(each_tier, policy, reading(*paths, *STATE))
    assert inside.started, str(inside)
    found = answers(inside.stdout)
    assert {path: found[path] for path in paths} == {path: ["ok"] * 4 for path in paths}
    denied = [path for path in STATE if found[path][0] == "EACCES"]
    if each_tier.tier == "landlock":
        assert {"/proc", "/proc/self/status", "/proc/self/fd", "/proc/version"} <= set(denied)
    for path in STATE:
        plain, how, *_ = found[path]
        assert plain == how, path
        assert "ok" not in found[path][2:], path
    control = answers(each_tier.outside(reading(*paths, *STATE)).stdout)
    assert all(control[path][:2] == ["ok", "ok"] for path in (*paths, *STATE))


def test_all_of_proc_is_read_with_a_grant(sandbox: SandboxRunner) -> None:
    """The control of the tests above: the default profile grants /proc."""
    inside = sandbox.inside(reading(*STATE))
    assert inside.started, str(inside)
    assert all(found[:2] == ["ok", "ok"] for found in answers(inside.stdout).values()), str(inside)


@pytest.mark.skipif(os.getuid() != 0, reason="needs root")
def test_root_writes_files(sandbox: SandboxRunner) -> None:
    """For root the compiler closes parts of /proc."""
    script = "echo started; echo 1 > file; mkdir dir; mv file dir; echo x > .envrc; cat dir/file"
    project = sandbox.tree.project
    outcome = sandbox.inside(["sh", "-c", script], as_root=True)
    assert outcome.stdout == "started\n1\n", str(outcome)
    assert not (project / ".envrc").exists(), str(outcome)
    control = sandbox.outside(["sh", "-c", script], cwd=sandbox.tree.outside, as_root=True)
    assert control.stdout == "started\n1\n", str(control)
    assert (sandbox.tree.outside / ".envrc").exists()


# Each drops rights of root before it writes. The last one executes no program after that.
DROPPED = {
    "another user": "setpriv --reuid={uid} --regid={gid} --clear-groups sh -c '{acts}'",
    "another group": "setpriv --regid={gid} --clear-groups sh -c '{acts}'",
    "no capabilities": "setpriv --bounding-set=-all --inh-caps=-all sh -c '{acts}'",
    "another user without an exec": f"{PYTHON} -c 'import os; os.setgroups([]); "
    "os.setgid({gid}); "
    'os.setuid({uid}); dir = os.open(".", os.O_RDONLY); '
    'os.mkdir("made", dir_fd=dir); open("file", "w"); open("closed", "w")\'',
}


@pytest.mark.skipif(os.getuid() != 0, reason="needs root")
@pytest.mark.parametrize("dropped", DROPPED)
def test_a_process_of_root_does_not_get_dropped_rights_back(
    sandbox: SandboxRunner, dropped: str
) -> None:
    tester = sandbox.tester
    acts = "echo 1 > file; mkdir made; echo x > closed; chown {uid}:{gid} owned; chmod 700 owned"
    script = DROPPED[dropped].replace("{acts}", acts).format(uid=tester.uid, gid=tester.gid)
    found = []
    for place, run in (
        (sandbox.tree.project, sandbox.inside),
        (sandbox.tree.outside, sandbox.outside),
    ):
        for name, mode in (("owned", 0o600), ("closed", 0o400)):
            (place / name).touch()
            (place / name).chmod(mode)
        place.chmod(0o777)
        outcome = run(["sh", "-c", f"echo started; {script}; true"], cwd=place, as_root=True)
        assert outcome.started, str(outcome)
        found.append({
            entry.name: (facts.st_uid, facts.st_gid, facts.st_mode, facts.st_size)
            for entry in place.iterdir()
            if (facts := entry.lstat()) and entry.name in ("file", "made", "owned", "closed")
        })  # fmt: skip
    assert found[0] == found[1], str(outcome)
    assert len(found[0]) == 4, str(outcome)


def test_a_git_file_does_not_come_from_another_file_system(sandbox: SandboxRunner) -> None:
    """Init puts a copy in place, and the kernel would refuse the rename."""
    script = (
        "import os, sys; print('started'); open(sys.argv[1], 'w').write('[core]\\n')\n"
        "try: os.rename(sys.argv[1], '.git/config')\n"
        "except OSError as error: print(error.strerror)\n"
        "finally: os.path.exists(sys.argv[1]) and os.unlink(sys.argv[1])"
    )
    for place, run in (
        (sandbox.tree.project, sandbox.inside),
        (sandbox.tree.outside, sandbox.outside),
    ):
        done = sandbox.outside(["git", "init", "-q", place])
        assert done.exit_code == 0, str(done)
        before = (place / ".git" / "config").read_text()
        source = Path("/dev/shm") / f"{sandbox.tree.root.name}-config"
        outcome = run([PYTHON, "-Ic", script, source], cwd=place)
        assert outcome.stdout == "started\nInvalid cross-device link\n", str(outcome)
        assert (place / ".git" / "config").read_text() == before


def test_a_program_that_can_not_be_read_does_not_write(sandbox: SandboxRunner) -> None:
    """The kernel hides the memory of such a process, so init can not read the name."""
    tree = sandbox.tree
    for place, run in ((tree.project, sandbox.inside), (tree.outside, sandbox.outside)):
        program = tree.put(place / "program")
        program.write_bytes(Path("/bin/sh").read_bytes())
        program.chmod(0o111)
        outcome = run([program, "-c", "echo started; echo x > file; exit 0"], cwd=place)
        assert outcome.started, str(outcome)
        assert (place / "file").exists() == (run == sandbox.outside), str(outcome)
        if run == sandbox.inside:
            assert "Permission denied" in outcome.stderr, str(outcome)
            assert "write an unknown name by program: the file of the program" in outcome.stderr
            refused = [event for event in sandbox.events() if event["event"] == "file.refused"]
            assert [event["program"] for event in refused] == ["program"], refused
