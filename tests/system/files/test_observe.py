"""--observe: what the fence refuses is told, with what would allow it; what succeeds, or fails
without the fence too, is not; and nothing that a command does keeps the supervisor from its work.
"""

from __future__ import annotations

import os
import shutil
from typing import Any

import pytest

from tests.support import core
from tests.support.fence import Fence, Word
from tests.support.installation import reachable_interpreter

TIERS = ["landlock", "full", "cow"]
FLOOD = 100_000


@pytest.fixture(name="watched", params=TIERS)
def _watched(request: pytest.FixtureRequest) -> tuple[Fence, tuple[str, ...]]:
    how = str(request.param)
    chosen: Fence = request.getfixturevalue("fence" if how == "landlock" else "full")
    return chosen, ("--observe", "--cow") if how == "cow" else ("--observe",)


def refused(fence: Fence) -> list[tuple[object, object, object, object]]:
    events = [event for event in fence.events() if event["event"] == "file.refused"]
    return [(event["op"], event["path"], event["program"], event["allow"]) for event in events]


def test_a_denial_is_reported_with_the_flag_that_allows_it(
    watched: tuple[Fence, tuple[str, ...]],
) -> None:
    fence, flags = watched
    ground = fence.ground
    secret, new = ground.secret, ground.outside / "new"
    script = (
        f"echo started; cat {secret}; cat own.txt; echo x > {new}; mkdir {new}.d; "
        f"rm {secret}; "
        f"echo {ground.outside}/*"
    )
    done = fence.inside(["/bin/sh", "-c", script], *flags)
    assert done.started
    assert secret.exists()
    assert not new.exists()
    shell, cat, mkdir, rm = (
        os.path.realpath(f"/bin/{name}") for name in ("sh", "cat", "mkdir", "rm")
    )
    tree = f"{ground.outside}/**"
    told = refused(fence)
    for one in [
        ("read", str(secret), cat, f"--read {secret}"),
        ("write", str(new), shell, f"--allow '{tree}'"),
        ("make", f"{new}.d", mkdir, f"--allow '{tree}'"),
        ("remove", str(secret), rm, f"--allow '{tree}'"),
        ("read", str(ground.outside), shell, f"--read '{tree}'"),
    ]:
        assert one in told, told
    assert all(str(path).startswith(str(ground.outside)) for _, path, _, _ in told), told
    assert (
        f"paddock: refused: read {secret} by {cat}: outside every grant; to allow it: "
        f"--read {secret}"
    ) in done.stderr
    # The control: without the fence each of them is done, and what it says would allow it does.
    assert fence.inside(["cat", secret], "--read", secret).stdout == "the-secret-outside\n"
    assert fence.outside(["/bin/sh", "-c", script]).exit_code == 0
    assert (new.exists(), secret.exists()) == (True, False)


def test_a_call_with_the_same_result_outside_is_not_reported(
    watched: tuple[Fence, tuple[str, ...]],
) -> None:
    fence, flags = watched
    fence.ground.put(fence.ground.project / "shut", "x", mode=0o000)
    work = "cat own.txt; echo x > new; mkdir -p a/b; mv new a; rm -r a"
    script = f"echo started; {work}; cat /nowhere none shut; mkdir own.txt; mkdir -p /usr"
    done = fence.inside(["sh", "-c", script], *flags)
    assert done.started
    assert "mine\n" in done.stdout
    assert refused(fence) == []
    assert "refused" not in done.stderr


def test_closed_names_are_told_without_an_option_that_would_not_help(full: Fence) -> None:
    project = full.ground.project
    full.ground.put(project / ".env", "secret\n")
    full.ground.put(project / ".envrc", "as it was\n")
    done = full.inside(
        ["sh", "-c", "echo started; cat .env; echo x > .envrc; chmod 777 .envrc; rm .envrc"],
        "--observe",
    )
    assert done.started
    told = {(op, path, allow) for op, path, _, allow in refused(full)}
    assert ("read", str(project / ".env"), None) in told
    assert {(op, str(project / ".envrc"), None) for op in ("write", "change", "remove")} <= told
    assert (project / ".envrc").read_text() == "as it was\n"


def test_nothing_is_told_unless_it_is_asked_for(fence: Fence) -> None:
    done = fence.inside(["cat", fence.ground.secret])
    assert (done.exit_code, refused(fence)) == (1, [])


def test_quiet_leaves_it_to_the_journal(fence: Fence) -> None:
    done = fence.inside(["cat", fence.ground.secret], "--observe", "--quiet")
    assert "refused" not in done.stderr
    assert [op for op, *_ in refused(fence)] == ["read"]


def test_the_gate_and_the_observer_see_the_same_calls(
    watched: tuple[Fence, tuple[str, ...]],
) -> None:
    fence, flags = watched
    policy = fence.ground.put(
        fence.ground.root / "rules.toml",
        '[meta]\nversion = 1\ninherit = "ai-agent"\ndefault_action = "allow"\n'
        '[[rule]]\nid = "no-id"\naction = "deny"\nexe_basename = "id"\n',
    )
    script = f"echo started; id; cat {fence.ground.secret}; mkdir one; mv one two; cat own.txt"
    done = fence.inside(["sh", "-c", script], *flags, "--policy", policy)
    assert done.started
    assert "mine\n" in done.stdout
    assert "uid=" not in done.stdout
    assert [op for op, path, *_ in refused(fence) if path == str(fence.ground.secret)] == ["read"]
    assert any(event["event"] == "exec" and event["action"] == "deny" for event in fence.events())


def python(fence: Fence, script: str, *flags: str) -> str:
    """Runs it inside; what it printed after its start marker."""
    interpreter = reachable_interpreter(fence.tester)[0]
    done = fence.inside(
        [interpreter, "-I", "-c", f"import os, ctypes\nprint('started', flush=True)\n{script}"],
        "--observe",
        *flags,
    )
    assert done.started, done
    assert done.exit_code == 0, done
    return done.stdout


def test_bad_pointers_long_and_odd_names_are_survived(
    watched: tuple[Fence, tuple[str, ...]],
) -> None:
    fence, flags = watched
    secret = fence.ground.secret
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
odd = os.fsencode("{fence.ground.outside}") + b"/\\xff\\x1b[2J"
try:
    os.mkdir(odd)
except OSError:
    pass
print("done", libc.open(ctypes.c_char_p(b"{fence.ground.project}/own.txt"), 0) > 2)
"""
    assert python(fence, script, *flags[1:]).endswith("done True\n")
    told = refused(fence)
    assert ("read", str(secret)) in [(op, path) for op, path, *_ in told]
    assert [path for op, path, *_ in told if op == "make"] == [
        f"{fence.ground.outside}/\\xff\x1b[2J"
    ]


def test_a_flood_is_counted_and_stalls_nothing(full: Fence) -> None:
    """Every path is another one. The command is not held up, the guard takes away what it has to,
    and the first refusal is told.
    """
    secret, project = full.ground.secret, full.ground.project
    script = f"""
def tried(path):
    try:
        open(path)
    except OSError:
        pass
tried("{secret}")
for number in range({FLOOD}):
    tried("{full.ground.outside}/" + str(number))
open("{project}/.mcp.json", "w")
print("done")
"""
    interpreter = reachable_interpreter(full.tester)[0]
    argv = full.command([interpreter, "-I", "-c", script], "--observe")
    done = full.tester.run(argv, cwd=project)
    assert done.stdout == "done\n", done
    assert "more calls were not checked; the limit is 16384 different calls" in done.stderr
    assert [op for op, path, *_ in refused(full) if path == str(secret)] == ["read"]
    assert not (project / ".mcp.json").exists()


def test_threads_that_change_the_path_are_let_go_on_and_open_nothing(
    watched: tuple[Fence, tuple[str, ...]],
) -> None:
    """What is observed is never what is trusted: whatever was read, the kernel judges what it reads
    itself.
    """
    fence, flags = watched
    script = f"""
import sys, threading, time
sys.setswitchinterval(1e-5)  # else each call waits for the other thread's turn to end
libc = ctypes.CDLL(None)
name = ctypes.create_string_buffer(4096)
allowed, denied = b"{fence.ground.project}/own.txt", b"{fence.ground.secret}"
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
    assert python(fence, script, *flags[1:]).splitlines()[-1] in ("[b'mine\\n']", "[]")


def test_without_the_judge_the_command_goes_on_and_it_is_told(
    fence: Fence, host: dict[str, Any]
) -> None:
    """The half that judges is broken: the run is as fenced as ever."""
    place = fence.ground.make(fence.ground.root / "broken")
    shutil.copy(fence.installation.core, place)
    fence.ground.put(
        place / "paddock-python", "#!/usr/bin/python3\nraise SystemExit(1)\n", mode=0o755
    )
    plan = core.plan_for(
        fence.tester,
        fence.ground.project,
        landlock_abi=host["landlock_abi"],
        read=[fence.ground.project],
    )
    words: list[Word] = ["cat", fence.ground.secret, "own.txt"]
    done = core.run_core(
        fence.tester, place / "paddock-core", core.changed(plan, observe=True), words
    )
    assert done.stdout == "mine\n", done
    assert "the observer has ended" in done.stderr
    (place / "paddock-python").unlink()
    done = core.run_core(
        fence.tester, place / "paddock-core", core.changed(plan, observe=True), words
    )
    assert (done.exit_code, done.stdout) == (125, ""), done


def test_it_needs_a_fence_to_look_at(fence: Fence) -> None:
    done = fence.inside(["true"], "--observe", "--off", "landlock")
    assert done.exit_code == 125
    assert "files are not restricted" in done.stderr
