"""Exit status, signals, descendants: the run behaves like the command. Its end ends every process
in it.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support import core, outside_targets
from tests.support.sandbox import SandboxRunner, Word
from tests.support.tester import Tester
from tests.support.waiting import wait_for


@pytest.mark.parametrize("status", [0, 1, 7, 125, 126, 127, 255])
def test_the_exit_status_is_the_commands_own(sandbox: SandboxRunner, status: int) -> None:
    """C-005."""
    outcome = sandbox.inside(["sh", "-c", f"echo started; exit {status}"])
    assert outcome.started, str(outcome)
    assert outcome.exit_code == status, str(outcome)


@pytest.mark.parametrize(
    "number", [signal.SIGHUP, signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM, signal.SIGUSR1]
)
def test_death_by_a_signal_is_reported_as_128_plus_its_number(
    sandbox: SandboxRunner, number: signal.Signals
) -> None:
    outcome = sandbox.inside(sandbox.probe("die-by", str(int(number))))
    assert outcome.started, str(outcome)
    assert outcome.exit_code == 128 + number, str(outcome)


def test_a_command_that_does_not_exist_is_127(sandbox: SandboxRunner) -> None:
    outcome = sandbox.inside(["no-such-command-anywhere"])
    assert outcome.exit_code == 127, str(outcome)
    assert outcome.stdout == "", str(outcome)
    assert "paddock:" in outcome.stderr
    assert "no-such-command-anywhere" in outcome.stderr


def test_a_command_that_is_not_executable_is_126(sandbox: SandboxRunner) -> None:
    sandbox.tree.put(sandbox.tree.project / "plain", "text\n")
    sandbox.tree.put(sandbox.tree.outside / "tool", "#!/bin/sh\necho started\n", mode=0o755)
    for command in ("./plain", str(sandbox.tree.project), str(sandbox.tree.outside / "tool")):
        outcome = sandbox.inside([command])
        assert outcome.exit_code == 126, str(outcome)
        assert outcome.stdout == "", str(outcome)
    assert sandbox.outside([sandbox.tree.outside / "tool"]).stdout == "started\n"


def test_a_script_without_an_interpreter_line_runs_as_a_shell_would_run_it(
    sandbox: SandboxRunner,
) -> None:
    sandbox.tree.put(sandbox.tree.project / "script", "echo started\nexit 3\n", mode=0o755)
    outcome = sandbox.inside(["./script"])
    assert outcome.started, str(outcome)
    assert outcome.exit_code == 3, str(outcome)


def test_arguments_reach_the_command_untouched(sandbox: SandboxRunner) -> None:
    """C-006, and bytes that are not UTF-8, and a newline."""
    words: list[Word] = ["--profile", "-x", "--", b"\xff\xfe", "a\nb", "", "é"]
    outcome = sandbox.inside(["printf", "<%s>", *words])
    assert (
        outcome.stdout.encode("utf-8", "surrogateescape")
        == b"<--profile><-x><-->" + b"<\xff\xfe>" + "<a\nb><><é>".encode()
    )


def test_a_megabyte_of_arguments_arrives(sandbox: SandboxRunner) -> None:
    words = ["x" * 100_000] * 10
    outcome = sandbox.inside(
        ["sh", "-c", 'echo started; echo $#; printf %s "$@" | wc -c', "sh", *words]
    )
    assert outcome.stdout.split() == ["started", "10", "1000000"], str(outcome)


def test_an_empty_command_is_refused(sandbox: SandboxRunner) -> None:
    for words in ([], [""]):
        outcome = sandbox.inside(words)
        assert outcome.exit_code in (125, 127), str(outcome)
        assert "paddock:" in outcome.stderr, str(outcome)


def test_output_is_the_commands_alone(sandbox: SandboxRunner) -> None:
    outcome = sandbox.inside(["sh", "-c", "echo out; echo err >&2"])
    assert outcome.stdout == "out\n"
    assert [
        line for line in outcome.stderr.splitlines() if not line.startswith(("paddock:", "hint:"))
    ] == ["err"]


def test_standard_input_is_passed_through(sandbox: SandboxRunner) -> None:
    assert sandbox.inside(["cat"], stdin="line one\nline two").stdout == "line one\nline two"


def test_no_core_dump_is_written(sandbox: SandboxRunner) -> None:
    """The host's handler writes a dump outside the sandbox, with the command's memory in it."""
    assert (
        sandbox.inside(["sh", "-c", "echo started; ulimit -c; ulimit -Hc"]).stdout
        == "started\n0\n0\n"
    )


# ---- signals


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2])
def test_a_signal_to_paddock_reaches_the_command(
    sandbox: SandboxRunner, number: signal.Signals
) -> None:
    with sandbox.starting(sandbox.probe("await-signal")) as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == ["started\n", "ready\n"]
        process.send_signal(number)
        stdout, stderr = process.communicate(timeout=120)
    assert stdout == f"ok {int(number)}\n", str(stderr)
    assert process.returncode == 0


def test_an_interrupt_typed_at_the_terminal_is_the_commands_to_handle(
    sandbox: SandboxRunner,
) -> None:
    """The terminal signals the whole group. Paddock has to survive it and report the command's
    status.
    """
    with sandbox.starting(sandbox.probe("await-signal")) as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == ["started\n", "ready\n"]
        os.killpg(process.pid, signal.SIGINT)
        stdout, stderr = process.communicate(timeout=120)
    assert stdout == f"ok {int(signal.SIGINT)}\n", str(stderr)
    assert process.returncode == 0


# The child continues it. The child has its own session and is not stopped.
STOPPED = """
import os, signal, sys, time
print("started", flush=True)
me = os.getpid()
if os.fork() == 0:
    os.setsid()
    os.kill(me, signal.SIGSTOP)
    while not os.path.exists("go"): time.sleep(0.01)
    os.kill(me, int(sys.argv[1]))
    os._exit(0)
while not os.path.exists("go"): time.sleep(0.01)
sys.exit(7)
"""


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGCONT, 7), (signal.SIGKILL, 128 + signal.SIGKILL)]
)
@pytest.mark.parametrize("tier", ["sandbox", "full"])
def test_a_stopped_command_may_continue_or_end(
    request: pytest.FixtureRequest, tier: str, number: signal.Signals, status: int
) -> None:
    sandbox: SandboxRunner = request.getfixturevalue(tier)
    with sandbox.starting(["python3", "-c", STOPPED, str(int(number))]) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        wait_for(lambda: outside_targets.state(process.pid) == "T", "it stops as the command does")
        sandbox.tree.put(sandbox.tree.project / "go", "")
        assert process.wait(timeout=120) == status, "no process outside continues it"


# ---- descendants


def left_behind(sandbox: SandboxRunner) -> int:
    return int((sandbox.tree.project / "left").read_text())


def test_a_process_that_hides_ends_with_the_run(sandbox: SandboxRunner) -> None:
    """Double fork, new session, and every signal ignored that can be ignored."""
    outcome = sandbox.inside(sandbox.probe("linger", "left"))
    assert outcome.answer == "ok left", str(outcome)
    assert not outside_targets.alive(left_behind(sandbox))

    control = sandbox.outside(sandbox.probe("linger", "left"))
    assert control.answer == "ok left"
    pid = left_behind(sandbox)
    try:
        assert outside_targets.alive(pid), "without the sandbox it lives on"
    finally:
        os.kill(pid, signal.SIGKILL)


def test_many_background_processes_end_with_the_run(sandbox: SandboxRunner) -> None:
    script = (
        "echo started; for i in 1 2 3 4 5 6 7 8; "
        "do (setsid sleep 60 & echo $! >> left) >/dev/null; done; exit 5"
    )
    outcome = sandbox.inside(["sh", "-c", script])
    assert outcome.started, str(outcome)
    assert outcome.exit_code == 5, str(outcome)
    pids = [int(line) for line in (sandbox.tree.project / "left").read_text().split()]
    assert len(pids) == 8
    assert not any(map(outside_targets.alive, pids))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_end_of_paddock_is_the_end_of_the_command(
    sandbox: SandboxRunner, number: signal.Signals
) -> None:
    with sandbox.starting(
        ["sh", "-c", "echo started; echo $$; echo $TMPDIR; exec sleep 60"]
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        command = int(process.stdout.readline())
        temp = Path(process.stdout.readline().strip())
        assert outside_targets.alive(command)
        process.send_signal(number)
        process.wait(timeout=120)
        wait_for(lambda: not outside_targets.alive(command), "the command ended with paddock")
    assert temp.exists() == (number == signal.SIGKILL)
    if temp.exists():
        temp.rmdir()  # no process can clean up after SIGKILL


def test_command_cannot_signal_the_supervisor(sandbox: SandboxRunner) -> None:
    """The command cannot end or stop its supervisor."""
    script = "echo started; kill -9 $PPID && echo killed; kill -STOP $PPID && echo stopped; exit 9"
    outcome = sandbox.inside(["sh", "-c", script])
    assert outcome.stdout == "started\n", str(outcome)
    assert outcome.exit_code == 9, str(outcome)


# ---- other processes


@pytest.mark.parametrize("act", ["signal", "pidfd-signal"])
def test_a_process_outside_cannot_be_signalled(
    sandbox: SandboxRunner, tester: Tester, act: str
) -> None:
    """Landlock scope (C-028)."""
    with outside_targets.bystander(tester) as pid:
        denied = sandbox.inside(sandbox.probe(act, str(pid)))
        assert denied.answer == "EPERM", str(denied)
        assert outside_targets.alive(pid)
        assert sandbox.outside(sandbox.probe(act, str(pid))).answer == "ok"
        wait_for(lambda: not outside_targets.alive(pid), "the control ended it")


def test_processes_inside_can_signal_each_other(sandbox: SandboxRunner) -> None:
    outcome = sandbox.inside(["sh", "-c", "echo started; sleep 60 & kill $! && wait $!; echo $?"])
    assert outcome.answer == "143", str(outcome)


@pytest.mark.parametrize(
    "act", [("trace",), ("vm-read", "0x400000")], ids=["ptrace", "process_vm_readv"]
)
def test_a_process_outside_cannot_be_traced(
    sandbox: SandboxRunner, tester: Tester, act: tuple[str, ...]
) -> None:
    """C-032, and again with the filter off: the Landlock domain alone forbids it."""
    with outside_targets.bystander(tester) as pid:
        words = sandbox.probe(act[0], str(pid), *act[1:])
        assert sandbox.inside(words).answer == "EPERM"
        assert sandbox.inside(words, "--off", "seccomp").answer == "EPERM"
        control = sandbox.outside(words)
        assert control.answer in ("ok", "EFAULT"), str(control)


# ---- unix sockets (C-028)

UNIX = ("--socket", "unix")


def test_unix_sockets_cannot_be_made_unless_asked_for(sandbox: SandboxRunner) -> None:
    """One socket of the user (D-Bus, docker, tmux) is as powerful as a shell outside."""
    address = str(sandbox.tree.outside / "socket")
    with outside_targets.listening(address) as listener:
        denied = sandbox.inside(sandbox.probe("pathname", address))
        assert denied.answer == "EAFNOSUPPORT", str(denied)
        assert listener.received == []
        opened = sandbox.inside(sandbox.probe("pathname", address), *UNIX)
        assert opened.answer == "ok", str(opened)
        assert "unix" in opened.stderr, "an opened socket family gives a warning"
        wait_for(lambda: listener.received == [b"probe"], "with the flag the message arrived")


@pytest.mark.parametrize("act", ["pair-send", "pair-connect"])
@pytest.mark.parametrize(
    "kind",
    [socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET],
    ids=lambda kind: kind.name,
)
def test_a_pair_of_sockets_cannot_be_turned_to_a_socket_outside(
    sandbox: SandboxRunner, act: str, kind: socket.SocketKind
) -> None:
    """socketpair needs no socket(2), and a datagram end takes any address."""
    address = str(sandbox.tree.outside / "socket")
    with outside_targets.listening(address, kind) as listener:
        words = sandbox.probe(act, str(int(kind)), address)
        tried = sandbox.inside(words)
        # on connected pairs of the other types a message goes to the other end and ignores its
        # address
        assert tried.answer != "ok" or (act, kind) == ("pair-send", socket.SOCK_SEQPACKET), str(
            tried
        )
        assert listener.received == []
        if kind == socket.SOCK_DGRAM:
            assert sandbox.outside(words).answer == "ok"
            wait_for(lambda: listener.received == [b"probe"], "the control message arrived")


def test_pairs_of_sockets_work(sandbox: SandboxRunner) -> None:
    """Runtimes use these to talk to their children."""
    script = (
        "import socket as s; print('started'); a, b = s.socketpair(); a.send(b'met'); "
        "print(b.recv(9).decode())"
    )
    assert sandbox.inside(["python3", "-c", script]).answer == "met"


@pytest.mark.parametrize("flags", [(), UNIX], ids=["default", "unix-open"])
@pytest.mark.parametrize(
    "kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM], ids=["stream", "datagram"]
)
def test_an_abstract_socket_outside_cannot_be_reached(
    sandbox: SandboxRunner, kind: socket.SocketKind, flags: tuple[str, ...]
) -> None:
    """The Landlock scope holds if the family is open."""
    name = f"paddock-test-{os.getpid()}-{kind}"
    words = sandbox.probe("abstract", name, "datagram" if kind == socket.SOCK_DGRAM else "stream")
    with outside_targets.listening("\0" + name, kind) as listener:
        denied = sandbox.inside(words, *flags)
        assert denied.answer == ("EPERM" if flags else "EAFNOSUPPORT"), str(denied)
        assert listener.received == []
        assert sandbox.outside(words).answer == "ok"
        wait_for(lambda: listener.received == [b"probe"], "the control message arrived")


def test_an_abstract_socket_made_inside_works(sandbox: SandboxRunner) -> None:
    script = (
        "import socket as s; print('started'); a=s.socket(s.AF_UNIX); a.bind('\\0inner'); "
        "a.listen();"
        "b=s.socket(s.AF_UNIX); b.connect('\\0inner'); print('met')"
    )
    assert sandbox.inside(["python3", "-c", script], *UNIX).answer == "met"


# ---- nothing resident


def test_command_replaces_paddock_if_there_is_nothing_to_supervise(
    sandbox: SandboxRunner, tester: Tester, host: dict[str, Any]
) -> None:
    """C-002: the process of paddock-core becomes the command, and no other process stays."""
    project = sandbox.tree.project
    plan = core.plan_for(tester, project, landlock_abi=host["landlock_abi"], allow=[project])
    with core.sealed(core.canonical(plan)) as fd:
        argv: list[Word] = [
            sandbox.installation.core,
            "run",
            "--plan-fd",
            str(fd),
            "--",
            "sh",
            "-c",
            "echo started; exec sleep 60",
        ]
        with tester.starting(argv, cwd=sandbox.tree.project, pass_fds=[fd]) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "started\n"
            wait_for(
                lambda: Path(f"/proc/{process.pid}/comm").read_text() == "sleep\n",
                "the command runs in place",
            )
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
            assert children == ""
            assert "NoNewPrivs:\t1" in Path(f"/proc/{process.pid}/status").read_text()


def test_no_python_stays_while_the_command_runs(sandbox: SandboxRunner) -> None:
    """Python replaces itself by the core, so at most one small process stays beside the command."""
    with sandbox.starting(["sh", "-c", "echo started; exec sleep 60"]) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        assert Path(f"/proc/{process.pid}/comm").read_text().strip() == "paddock-core"


def test_installation_has_no_set_user_id_program(sandbox: SandboxRunner) -> None:
    """C-002."""
    root = sandbox.installation.root
    found = subprocess.run(
        ["find", root, "-perm", "/6000"], capture_output=True, text=True, check=True
    )
    assert found.stdout == ""
