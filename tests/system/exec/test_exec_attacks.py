"""Attacks that were found with knowledge of the documents only."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.features import need_program
from tests.support.gate import Gate, rule
from tests.support.programs import loader_of
from tests.support.sandbox import Word

CALL = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
answer = libc.syscall({call})
if answer == 0:
    os._exit(0)
print("ok" if answer > 0 else os.strerror(ctypes.get_errno()))
"""
# SIGCHLD, alone and with CLONE_FS, which would share the directory. (The numbers are those of
# x86_64.)
FORK, SHARING_FORK = "56, 17, 0, 0, 0, 0", "56, 0x200 | 17, 0, 0, 0, 0"
# SECCOMP_SET_MODE_FILTER with NEW_LISTENER and no program.
LISTEN = "317, 1, 8, None"


@pytest.mark.parametrize(
    ("call", "without", "under_rules"),
    [
        (FORK, "ok", "ok"),
        (SHARING_FORK, "ok", "Operation not permitted"),
        (LISTEN, "Bad address", "Device or resource busy"),
    ],
)
def test_no_process_shares_its_directory_and_no_other_process_listens(
    gate: Gate, call: str, without: str, under_rules: str
) -> None:
    """A process that shares the directory could change it after the check. The newest listener
    would answer.
    """
    words = ["python3", "-c", CALL.format(call=call)]
    # Init listens also without rules: it judges writes.
    listens = call == LISTEN
    assert gate.without(words).stdout.strip() == (under_rules if listens else without)
    outcome = gate.inside(words, gate.forbidding)
    assert outcome.stdout.strip() == under_rules, str(outcome)


def test_a_script_behind_a_changeable_path_is_denied(gate: Gate) -> None:
    """The interpreter follows the link again, and it may lead to another script then. (ldd is a
    script.)
    """
    (gate.project / "link").symlink_to("/usr/bin")
    allowed = [rule("ldd", "allow", exe="/usr/bin/ldd"), rule("all", "allow", exe_glob="/**")]
    assert gate.without(["link/ldd", "--version"]).exit_code == 0
    gate.sandbox.tree.make(gate.project / "dir")
    up = "../" * (len(gate.project.parts) - 1)
    # A directory before `..` can become a link too, and a working directory can be moved.
    for way in (
        "link/ldd",
        f"{gate.project}/link/ldd",
        f"{gate.project}/dir/../{up}usr/bin/ldd",
        f"{up}usr/bin/ldd",
    ):
        assert gate.without(["sh", "-c", f"{way} --version"]).exit_code == 0
        outcome = gate.inside(["sh", "-c", f"{way} --version"], *allowed, default="deny")
        assert outcome.exit_code == 126, str(outcome)
        assert "through a path that the command can change" in outcome.stderr
    # Allowed: by its own path, from its own directory, and through links that no command can
    # create.
    for way in (
        "/usr/bin/ldd",
        "cd /usr/bin && ./ldd",
        "/bin/ldd",
        "/usr/lib/../bin/ldd",
        "cd /usr/lib && ../bin/ldd",
    ):
        outcome = gate.inside(["sh", "-c", f"{way} --version"], *allowed, default="deny")
        assert outcome.exit_code == 0, str(outcome)


def test_a_program_is_not_started_as_the_loader_of_another(gate: Gate) -> None:
    """The kernel starts the program that PT_INTERP names, without another exec call."""
    gcc, tree, project = need_program("gcc"), gate.sandbox.tree, gate.project
    host = tree.put(tree.root / "host.c", "int main(void) { return 0; }\n")
    loader = loader_of(Path("/bin/true"))
    denied, copied = project / "denied", tree.make(project / "lib") / "ld-own.so"
    shutil.copy(gate.sandbox.programs.posing, denied)
    shutil.copy(loader, copied)
    loaders = {
        "own": loader,
        "by-denied": denied,
        "by-copied": copied,
        "by-relative": "lib/ld-own.so",
    }
    for name, named in loaders.items():
        subprocess.run(
            [gcc, "-o", project / name, f"-Wl,--dynamic-linker={named}", host], check=True
        )
    gate.sandbox.tester.give(project)
    policy = tree.put(
        tree.root / "loaders.toml",
        '[meta]\ninherit = "ai-agent"\ndefault_action = "allow"\n'
        f'[filesystem]\nexec_globs = ["{project}/**"]\n{rule("no-d", "deny", exe=str(denied))}',
    )
    for name in (*loaders, "denied"):
        assert gate.without([f"./{name}"]).exit_code == 0
        assert bool(gate.ran()) == ("denied" in name), "the control"
        outcome = gate.sandbox.tester.run(gate.command([f"./{name}"], policy), cwd=project)
        assert outcome.exit_code == (0 if name == "own" else 126), str(outcome)
        assert not gate.ran()
        why: list[Word] = [
            gate.sandbox.installation.paddock,
            "why",
            "--tier",
            gate.sandbox.tier,
            "--policy",
            policy,
        ]
        assert gate.sandbox.tester.run([*why, "--exec", f"./{name}"], cwd=project).exit_code == (
            name != "own"
        )


def test_a_first_line_that_the_kernel_would_cut_is_denied(gate: Gate) -> None:
    """A shell would not read it as text either."""
    script = gate.sandbox.tree.put(
        gate.project / "long", f"#!/bin/echo {'x' * 300}\ntouch ran\n", mode=0o755
    )
    control = gate.without([script])
    assert (control.exit_code, control.stdout.startswith("xxx")) == (0, True)
    outcome = gate.inside(
        ["sh", "-c", "./long"], rule("all", "allow", exe_glob="/**"), default="deny"
    )
    assert outcome.exit_code == 126, str(outcome)
    assert "longer than the kernel accepts" in outcome.stderr
    assert not (gate.project / "ran").exists()


def test_a_path_search_continues_after_a_denied_program(gate: Gate) -> None:
    """execvp(3) continues the PATH search after EACCES."""
    first = gate.sandbox.tree.make(gate.project / "first")
    gate.sandbox.tree.put(first / "true", "#!/bin/false\n", mode=0o755)
    policy = gate.policy(rule("usr", "allow", exe_glob="/usr/**"), default="deny")
    path = f"PATH={first}:/usr/bin"
    run = gate.sandbox.tester.run(gate.command(["true"], policy, "--env", path), cwd=gate.project)
    assert run.exit_code == 0, str(run)
    dry = gate.sandbox.tester.run(
        gate.command(["true"], policy, "--env", path, "--dry-run"), cwd=gate.project
    )
    assert dry.exit_code == 0, str(dry)
    why: list[Word] = [
        gate.sandbox.installation.paddock,
        "why",
        "--tier",
        gate.sandbox.tier,
        "--policy",
        policy,
    ]
    answered = gate.sandbox.tester.run([*why, "--env", path, "--exec", "true"], cwd=gate.project)
    assert (answered.exit_code, "allowed: true (/usr/bin/true)" in answered.stdout) == (0, True), (
        str(answered)
    )


def test_a_nested_busybox_call_is_judged_by_its_applet(gate: Gate) -> None:
    denied = rule("no-id", "deny", exe_basename="id")
    assert gate.without(["busybox", "busybox", "id", "-u"]).exit_code == 0
    for words in (
        ["busybox", "id"],
        ["busybox", "busybox", "id"],
        ["busybox", "busybox", "busybox", "id"],
    ):
        assert gate.inside(words, denied).exit_code == 126
    assert gate.inside(["busybox", "busybox", "true"], denied).exit_code == 0


def test_a_limit_that_many_exec_calls_meet_ends_the_run(gate: Gate) -> None:
    """The processes are stopped before they are ended. The supervisor does not stop with them."""
    hog = "import os, time; x = os.urandom(60 << 20); time.sleep(20)"
    busy = "i=0; while [ $i -lt 3000 ]; do /bin/true; i=$((i+1)); done"
    script = f"for n in 1 2 3 4; do ({busy}) & python3 -c '{hog}' & done; wait"
    for _ in range(3):
        outcome = gate.inside(
            ["sh", "-c", script], gate.forbidding, more="[limits]\nmemory_mb = 120\n"
        )
        assert outcome.exit_code != 0, str(outcome)
        events = [event["event"] for event in gate.sandbox.events()]
        assert events[-1] == "session.end", str(outcome)
        assert "limit.exceeded" in events, str(outcome)


def test_a_run_ends_while_exec_calls_wait_in_the_gate(gate: Gate) -> None:
    busy = "i=0; while [ $i -lt 2000 ]; do /bin/true; i=$((i+1)); done"
    for number in range(8):
        words = ["sh", "-c", f"({busy}) & ({busy}) & sleep 0.0{number}"]
        assert gate.inside(words, gate.forbidding).exit_code == 0
    assert not any(
        name.isdigit() and _runs_true(name, gate.sandbox.tester.uid) for name in os.listdir("/proc")
    )


def _runs_true(pid: str, uid: int) -> bool:
    try:
        return os.stat(f"/proc/{pid}").st_uid == uid and os.readlink(f"/proc/{pid}/exe").endswith(
            "/true"
        )
    except OSError:
        return False


# Popen returns when the exec closes its pipe, just before the gate checks the new program.
KILLS = """
import subprocess
for number in range(400):
    process = subprocess.Popen(["/bin/sleep", "60"])
    process.kill()
    try:
        process.wait(timeout=120)
    except subprocess.TimeoutExpired:
        print("not reaped:", open(f"/proc/{process.pid}/status").read().splitlines()[2])
        break
else:
    print("all are dead")
"""


def test_a_program_killed_during_its_start_is_reaped(gate: Gate) -> None:
    """The tracer has to wait for the process before its parent can. Its death is neither an attack
    nor a denial.
    """
    words = ["python3", "-c", KILLS]
    assert gate.without(words).stdout == "all are dead\n"
    for _ in range(3):
        outcome = gate.inside(words, gate.forbidding)
        assert outcome.stdout == "all are dead\n", str(outcome)
        assert outcome.stderr == "", str(outcome)
        assert all(event["event"] == "exec" and event["action"] != "deny" for event in gate.execs())


def test_rules_are_refused_if_commands_can_write_process_memory(gate: Gate) -> None:
    """The arguments could be changed after the check and before the first instruction of the
    program.
    """
    for more in ('write_globs = ["/proc/**"]\n', 'allow_globs = ["/proc/**"]\n'):
        outcome = gate.inside(["true"], gate.forbidding, more=more)
        assert outcome.exit_code == 125, str(outcome)
        assert "could change a program after the check" in outcome.stderr
    # A write grant for process memory is refused. A read grant is not.
    assert gate.inside(["true"], gate.forbidding, more='read_globs = ["/proc/**"]\n').exit_code == 0


def test_a_directory_name_may_end_like_a_deleted_one(gate: Gate) -> None:
    gone = gate.sandbox.tree.make(gate.project / "it (deleted)")
    assert gate.inside(["true"], gate.forbidding, cwd=gone).exit_code == 0
    assert [event["cwd"] for event in gate.execs()] == [str(gone)]
    script = f"mkdir gone && cd gone && rmdir {gate.project}/gone && exec /bin/true"
    assert gate.inside(["sh", "-c", script], gate.forbidding).exit_code == 0
    assert gate.execs()[-1]["cwd"] == ""
