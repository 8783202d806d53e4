"""--observe reports each denial of the sandbox with the flag that allows it. It does not report
calls that succeed, or that fail without the sandbox too. No command keeps the supervisor from its
work.
"""

from __future__ import annotations

import os
import shutil
from typing import Any

import pytest

from tests.support import core
from tests.support.installation import reachable_interpreter
from tests.support.sandbox import SandboxRunner, Word

TIERS = ["landlock", "full", "cow"]
FLOOD = 100_000


@pytest.fixture(name="watched", params=TIERS)
def _watched(request: pytest.FixtureRequest) -> tuple[SandboxRunner, tuple[str, ...]]:
    how = str(request.param)
    chosen: SandboxRunner = request.getfixturevalue("sandbox" if how == "landlock" else "full")
    return chosen, ("--observe", "--cow") if how == "cow" else ("--observe",)


def refused(sandbox: SandboxRunner) -> list[tuple[object, object, object, object]]:
    events = [event for event in sandbox.events() if event["event"] == "file.refused"]
    return [(event["op"], event["path"], event["program"], event["allow"]) for event in events]


def test_a_denial_is_reported_with_the_flag_that_allows_it(
    watched: tuple[SandboxRunner, tuple[str, ...]],
) -> None:
    sandbox, flags = watched
    tree = sandbox.tree
    secret, new = tree.secret, tree.outside / "new"
    script = (
        f"echo started; cat {secret}; cat own.txt; echo x > {new}; mkdir {new}.d; "
        f"rm {secret}; "
        f"echo {tree.outside}/*"
    )
    done = sandbox.inside(["/bin/sh", "-c", script], *flags)
    assert done.started
    assert secret.exists()
    assert not new.exists()
    shell, cat, mkdir, rm = (
        os.path.realpath(f"/bin/{name}") for name in ("sh", "cat", "mkdir", "rm")
    )
    subtree = f"{tree.outside}/**"
    reported = refused(sandbox)
    for one in [
        ("read", str(secret), cat, f"--read {secret}"),
        ("write", str(new), shell, f"--allow '{subtree}'"),
        ("make", f"{new}.d", mkdir, f"--allow '{subtree}'"),
        ("remove", str(secret), rm, f"--allow '{subtree}'"),
        ("read", str(tree.outside), shell, f"--read '{subtree}'"),
    ]:
        assert one in reported, reported
    assert all(str(path).startswith(str(tree.outside)) for _, path, _, _ in reported), reported
    assert (
        f"paddock: refused: read {secret} by {cat}: outside every grant; to allow it: "
        f"--read {secret}"
    ) in done.stderr
    # The control: without the sandbox each act succeeds, and the reported flag allows it.
    assert sandbox.inside(["cat", secret], "--read", secret).stdout == "the-secret-outside\n"
    assert sandbox.outside(["/bin/sh", "-c", script]).exit_code == 0
    assert (new.exists(), secret.exists()) == (True, False)


def test_a_call_with_the_same_result_outside_is_not_reported(
    watched: tuple[SandboxRunner, tuple[str, ...]],
) -> None:
    sandbox, flags = watched
    sandbox.tree.put(sandbox.tree.project / "shut", "x", mode=0o000)
    work = "cat own.txt; echo x > new; mkdir -p a/b; mv new a; rm -r a"
    script = f"echo started; {work}; cat /nowhere none shut; mkdir own.txt; mkdir -p /usr"
    done = sandbox.inside(["sh", "-c", script], *flags)
    assert done.started
    assert "mine\n" in done.stdout
    assert refused(sandbox) == []
    assert "refused" not in done.stderr


def test_a_closed_name_is_reported_without_a_useless_flag(full: SandboxRunner) -> None:
    project = full.tree.project
    full.tree.put(project / ".env", "secret\n")
    full.tree.put(project / ".envrc", "as it was\n")
    done = full.inside(
        ["sh", "-c", "echo started; cat .env; echo x > .envrc; chmod 777 .envrc; rm .envrc"],
        "--observe",
    )
    assert done.started
    reported = {(op, path, allow) for op, path, _, allow in refused(full)}
    assert ("read", str(project / ".env"), None) in reported
    assert {(op, str(project / ".envrc"), None) for op in ("write", "change", "remove")} <= reported
    assert (project / ".envrc").read_text() == "as it was\n"


def test_a_name_that_init_refuses_is_reported_once(sandbox: SandboxRunner) -> None:
    """In the landlock tier init reports it, with and without --observe."""
    project = sandbox.tree.project
    sandbox.tree.put(project / ".env", "secret\n")
    envrc = sandbox.tree.put(project / ".envrc", "as it was\n")
    script = "echo started; cat .env; echo x > .envrc; chmod 777 .envrc; rm .envrc"
    done = sandbox.inside(["/bin/sh", "-c", script], "--observe")
    assert done.started
    assert "secret\n" in done.stdout, "reading is not denied by name"
    reported = [(path, allow) for _, path, _, allow in refused(sandbox)]
    assert reported == [(str(envrc), None)] * 3
    assert (envrc.read_text(), envrc.stat().st_mode & 0o777) == ("as it was\n", 0o644)
    # The control: outside each act succeeds.
    assert sandbox.outside(["/bin/sh", "-c", script]).exit_code == 0
    assert not envrc.exists()


def test_a_refused_change_of_metadata_is_reported(
    watched: tuple[SandboxRunner, tuple[str, ...]],
) -> None:
    """A change that fails without the sandbox too is not: /usr is another user's."""
    sandbox, flags = watched
    sandbox.tree.put(sandbox.tree.project / "own.txt", "mine\n")
    readable = sandbox.tree.secret
    script = f"echo started; chmod 600 own.txt; chmod 666 {readable}; chmod 0 /usr"
    before = readable.stat().st_mode
    done = sandbox.inside(["/bin/sh", "-c", script], *flags, "--read", readable)
    assert done.started
    assert readable.stat().st_mode == before
    program = os.path.realpath("/bin/chmod")
    assert refused(sandbox) == [("change", str(readable), program, f"--allow {readable}")]
    sandbox.outside(["/bin/sh", "-c", script])
    assert readable.stat().st_mode != before


def test_nothing_is_reported_without_observe(sandbox: SandboxRunner) -> None:
    done = sandbox.inside(["cat", sandbox.tree.secret])
    assert (done.exit_code, refused(sandbox)) == (1, [])


def test_with_quiet_denials_are_only_journaled(sandbox: SandboxRunner) -> None:
    done = sandbox.inside(["cat", sandbox.tree.secret], "--observe", "--quiet")
    assert "refused" not in done.stderr
    assert [op for op, *_ in refused(sandbox)] == ["read"]


def test_the_gate_and_the_observer_see_the_same_calls(
    watched: tuple[SandboxRunner, tuple[str, ...]],
) -> None:
    sandbox, flags = watched
    policy = sandbox.tree.put(
        sandbox.tree.root / "rules.toml",
        '[meta]\nversion = 1\ninherit = "ai-agent"\ndefault_action = "allow"\n'
        '[[rule]]\nid = "no-id"\naction = "deny"\nexe_basename = "id"\n',
    )
    script = f"echo started; id; cat {sandbox.tree.secret}; mkdir one; mv one two; cat own.txt"
    done = sandbox.inside(["sh", "-c", script], *flags, "--policy", policy)
    assert done.started
    assert "mine\n" in done.stdout
    assert "uid=" not in done.stdout
    assert [op for op, path, *_ in refused(sandbox) if path == str(sandbox.tree.secret)] == ["read"]
    assert any(event["event"] == "exec" and event["action"] == "deny" for event in sandbox.events())


def python(sandbox: SandboxRunner, script: str, *flags: str) -> str:
    """Runs the script inside. Returns its output after the start marker."""
    interpreter = reachable_interpreter(sandbox.tester)[0]
    done = sandbox.inside(
        [interpreter, "-I", "-c", f"import os, ctypes\nprint('started', flush=True)\n{script}"],
        "--observe",
        *flags,
    )
    assert done.started, done
    assert done.exit_code == 0, done
    return done.stdout


def test_bad_pointers_and_odd_names_do_not_end_the_observer(
    watched: tuple[SandboxRunner, tuple[str, ...]],
) -> None:
    sandbox, flags = watched
    secret = sandbox.tree.secret
    script = f"""
libc = ctypes.CDLL(None, use_errno=True)
for address in (0, 1, 8, 2**47, 2**64 - 1):
    for name in ("open", "mkdir", "rename", "unlink", "execve"):
        getattr(libc, name)(ctypes.c_void_p(address), ctypes.c_void_p(address), 0)
for path in (b"/" + b"x" * 5000, b"/" + b"a/" * 2040, b"\\xff\\xfe/\\x1b[2J\\n", b"x" * 255 + \
b"/y", b"../" * 600):
    for how in (os.O_RDONLY, os.O_RDWR | os.O_CREAT):
        try:
            os.open(path, how)
        except OSError:
            pass
for _ in range(20):
    if os.fork() == 0:
        try:
            if os.fork() == 0:
                os.kill(os.getppid(), 9)
            open("{secret}")
        finally:
            os._exit(1)
os.chdir("/")
odd = os.fsencode("{sandbox.tree.outside}") + b"/\\xff\\x1b[2J"
try:
    os.mkdir(odd)
except OSError:
    pass
print("done", libc.open(ctypes.c_char_p(b"{sandbox.tree.project}/own.txt"), 0) > 2)
"""
    assert python(sandbox, script, *flags[1:]).endswith("done True\n")
    reported = refused(sandbox)
    assert ("read", str(secret)) in [(op, path) for op, path, *_ in reported]
    assert [path for op, path, *_ in reported if op == "make"] == [
        f"{sandbox.tree.outside}/\\xff\x1b[2J"
    ]


def test_a_flood_of_denials_is_counted_and_delays_no_command(full: SandboxRunner) -> None:
    """Every path is different. The command is not delayed, protected names are refused, and the
    first denial is reported.
    """
    secret, project = full.tree.secret, full.tree.project
    script = f"""
def tried(path):
    try:
        open(path)
    except OSError:
        pass
tried("{secret}")
for number in range({FLOOD}):
    tried("{full.tree.outside}/" + str(number))
try:
    open("{project}/.mcp.json", "w")
except PermissionError:
    print("done")
"""
    interpreter = reachable_interpreter(full.tester)[0]
    argv = full.command([interpreter, "-I", "-c", script], "--observe")
    done = full.tester.run(argv, cwd=project)
    assert done.stdout == "done\n", done
    assert "more calls were not checked; the limit is 16384 different calls" in done.stderr
    assert [op for op, path, *_ in refused(full) if path == str(secret)] == ["read"]
    assert not (project / ".mcp.json").exists()


def test_threads_that_change_the_path_open_no_denied_file(
    watched: tuple[SandboxRunner, tuple[str, ...]],
) -> None:
    """The observer is not trusted: whatever it read, the kernel judges the path that it reads
    itself.
    """
    sandbox, flags = watched
    script = f"""
import sys, threading, time
sys.setswitchinterval(1e-5)  # else each call waits for the other thread's turn to end
libc = ctypes.CDLL(None)
name = ctypes.create_string_buffer(4096)
allowed, denied = b"{sandbox.tree.project}/own.txt", b"{sandbox.tree.secret}"
over = False
def swap():
    while not over:
        name.value = denied
        name.value = allowed
swapping = threading.Thread(target=swap)
swapping.start()
got = set()
until = time.monotonic() + 2
for _ in range(2000):
    if time.monotonic() > until:
        break
    fd = libc.open(name, 0)
    if fd >= 0:
        got.add(os.read(fd, 64))
        os.close(fd)
over = True
swapping.join()
print(sorted(got - {{b""}}))
"""
    assert python(sandbox, script, *flags[1:]).splitlines()[-1] in ("[b'mine\\n']", "[]")


def test_a_broken_observer_is_reported_and_the_command_continues(
    sandbox: SandboxRunner, host: dict[str, Any]
) -> None:
    """The observer process is broken. The sandbox holds as before."""
    place = sandbox.tree.make(sandbox.tree.root / "broken")
    shutil.copy(sandbox.installation.core, place)
    sandbox.tree.put(
        place / "paddock-python", "#!/usr/bin/python3\nraise SystemExit(1)\n", mode=0o755
    )
    plan = core.plan_for(
        sandbox.tester,
        sandbox.tree.project,
        landlock_abi=host["landlock_abi"],
        read=[sandbox.tree.project],
    )
    words: list[Word] = ["cat", sandbox.tree.secret, "own.txt"]
    done = core.run_core(
        sandbox.tester, place / "paddock-core", core.changed(plan, observe=True), words
    )
    assert done.stdout == "mine\n", done
    assert "the observer has ended" in done.stderr
    (place / "paddock-python").unlink()
    done = core.run_core(
        sandbox.tester, place / "paddock-core", core.changed(plan, observe=True), words
    )
    assert (done.exit_code, done.stdout) == (125, ""), done


def test_observe_is_refused_without_file_rules(sandbox: SandboxRunner) -> None:
    done = sandbox.inside(["true"], "--observe", "--off", "landlock")
    assert done.exit_code == 125
    assert "files are not restricted" in done.stderr
