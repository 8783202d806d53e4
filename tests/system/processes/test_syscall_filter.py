"""The system call filter, tested call by call on the real kernel."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.features import need, need_program, need_root
from tests.support.sandbox import SandboxRunner
from tests.support.syscalls import AI_AGENT_FLOOR, CALLS, STRICT_ADDS, Call, numbers
from tests.support.tester import Outcome, Tester
from tests.support.tree import ProjectTree, project_tree

NUMBERS = numbers()
HERE = [call for call in CALLS if call.name in NUMBERS]
CLONE_NEW = {
    "NEWTIME": 0x80,
    "NEWNS": 0x20000,
    "NEWCGROUP": 0x2000000,
    "NEWUTS": 0x4000000,
    "NEWIPC": 0x8000000,
    "NEWUSER": 0x10000000,
    "NEWPID": 0x20000000,
    "NEWNET": 0x40000000,
}
TIOCSTI, TIOCLINUX, TIOCGWINSZ = 0x5412, 0x541C, 0x5413


@pytest.fixture(scope="module", name="tree")
def _tree(tester: Tester) -> Iterator[ProjectTree]:
    """One for all: these tests ask about calls, and a plan is compiled once for each program."""
    with project_tree(tester) as tree:
        yield tree


def ask_each(
    sandbox: SandboxRunner,
    calls: list[Call],
    *,
    inside: bool,
    as_root: bool,
    profile: str = "strict",
) -> dict[str, str]:
    """The errno of every call, from one run: NAME started ANSWER …"""
    lines = [
        (
            f"echo {call.name} $({sandbox.programs.probe} syscall {NUMBERS[call.name]} "
            f"{' '.join(call.arguments)})"
        )
        for call in calls
    ]
    words = ["sh", "-c", "\n".join(lines)]
    if inside:
        # without a journal: root must not write the tester's journal, and only the filter is tested
        flags = ("--off", "audit") if as_root else ()
        outcome = sandbox.inside(
            words, *flags, profile=profile, as_root=as_root, journal=not as_root
        )
    else:
        outcome = sandbox.outside(words, as_root=as_root)
    answers = [line.split() for line in outcome.stdout.splitlines()]
    assert [answer[0] for answer in answers] == [call.name for call in calls], str(outcome)
    assert all(answer[1] == "started" for answer in answers), str(outcome)
    return {answer[0]: answer[2] for answer in answers}


@pytest.mark.parametrize("by_root", [False, True], ids=["user", "root"])
def test_every_blocked_call_is_refused_by_the_filter(sandbox: SandboxRunner, by_root: bool) -> None:
    """C-031 to C-041: the filter answers EPERM (io_uring: ENOSYS). The kernel answers something
    else.
    """
    if by_root:
        need_root()
    calls = [call for call in HERE if call.by_root == by_root]
    control = ask_each(sandbox, calls, inside=False, as_root=by_root)
    answers = ask_each(sandbox, calls, inside=True, as_root=by_root)
    # lookup_dcookie and friends: no kernel code left, ENOSYS outside; the filter still answers
    # first
    assert {call.name: answers[call.name] for call in calls} == {
        call.name: call.errno for call in calls
    }
    indistinct = {
        call.name: control[call.name] for call in calls if control[call.name] == call.errno
    }
    assert not indistinct, "the kernel answers like the filter, so these tests prove nothing"


def test_every_blocked_call_is_refused_for_an_ordinary_user(sandbox: SandboxRunner) -> None:
    """C-032 to C-041 as an ordinary user."""
    answers = ask_each(sandbox, HERE, inside=True, as_root=False)
    assert answers == {call.name: call.errno for call in HERE}


def test_ai_agent_blocks_the_classic_list_and_strict_adds_six(sandbox: SandboxRunner) -> None:
    """C-031 to C-039; the six are open in ai-agent."""
    floor = [call for call in HERE if call.name in AI_AGENT_FLOOR]
    added = [call for call in HERE if call.name in STRICT_ADDS and not call.by_root]
    assert set(
        ask_each(sandbox, floor, inside=True, as_root=False, profile="ai-agent").values()
    ) == {"EPERM"}
    open_there = ask_each(sandbox, added, inside=True, as_root=False, profile="ai-agent")
    assert "EPERM" not in open_there.values(), str(open_there)
    assert {call.name for call in HERE} >= (AI_AGENT_FLOOR | STRICT_ADDS) & set(NUMBERS)


def test_every_name_the_profiles_block_has_a_probe_here(sandbox: SandboxRunner) -> None:
    """A call without arguments in support/syscalls.py would not be tested."""
    for profile in ("ai-agent", "strict"):
        shown = sandbox.inside(["true"], "--dry-run", "--json", profile=profile)
        assert shown.exit_code == 0, str(shown)
        blocked = _blocked(shown.stdout)
        assert blocked >= AI_AGENT_FLOOR
        assert blocked - {call.name for call in CALLS} == set(), str(profile)


def _blocked(text: str) -> set[str]:
    return set(json.loads(text)["plan"]["seccomp"]["syscalls"])


def test_a_blocked_call_is_an_error_and_the_program_goes_on(sandbox: SandboxRunner) -> None:
    """C-043, C-014."""
    alive = sandbox.inside(["sh", "-c", "echo started; pwd -P; echo alive"], "--block", "getcwd")
    assert alive.answer == "alive", str(alive)
    flags = ("--block", "mkdir", "--block", "mkdirat")
    denied = sandbox.inside(sandbox.probe("mkdir", "made"), *flags)
    assert denied.answer == "EPERM", str(denied)
    assert not (sandbox.tree.project / "made").exists()
    assert sandbox.inside(sandbox.probe("mkdir", "made")).answer == "ok"


def test_an_unknown_call_is_refused_before_anything_runs(sandbox: SandboxRunner) -> None:
    """C-014, C-044."""
    refused = sandbox.inside(sandbox.probe("mkdir", "other"), "--block", "ptrce")
    assert refused.exit_code == 125, str(refused)
    assert "ptrace" in refused.stderr, str(refused)
    assert not (sandbox.tree.project / "other").exists()
    assert (
        sandbox.inside(sandbox.probe("mkdir", "other"), "--block", "lookup_dcookie").answer == "ok"
    )


# ---- foreign ABIs (C-042)


@pytest.mark.parametrize(
    "act", [("int80", "20"), ("x32", "39"), ("x32", "101"), ("int80", "26")], ids=str
)
def test_a_foreign_abi_is_killed(sandbox: SandboxRunner, act: tuple[str, str]) -> None:
    need("x86_64", platform.machine() == "x86_64", "only x86_64 has x32 and i386 entries")
    killed = sandbox.inside(sandbox.probe(*act))
    assert killed.started, str(killed)
    assert killed.exit_code == 128 + 31, str(killed)
    control = sandbox.outside(sandbox.probe(*act))
    assert control.exit_code >= 0, "without the sandbox the program lives"
    native = sandbox.inside(sandbox.probe("syscall", str(NUMBERS["getpid"])))
    assert native.answer == "ok"


# ---- namespaces (C-034)


@pytest.mark.parametrize("name", CLONE_NEW)
def test_no_namespace_through_clone_or_clone3(sandbox: SandboxRunner, name: str) -> None:
    flag = hex(CLONE_NEW[name])
    if name != "NEWTIME":  # clone has no room for it: the bits are the exit signal
        assert sandbox.inside(sandbox.probe("clone", flag)).answer == "EPERM"
    assert sandbox.inside(sandbox.probe("clone3", flag)).answer == "ENOSYS"
    if name == "NEWUSER":
        assert sandbox.outside(sandbox.probe("clone", flag)).answer in ("ok", "ENOSPC")
        assert sandbox.outside(sandbox.probe("clone3", flag)).answer in ("ok", "ENOSPC")


def test_unshare_by_program_fails(sandbox: SandboxRunner) -> None:
    control = sandbox.outside(["unshare", "-U", "true"])
    assert sandbox.inside(["unshare", "-U", "true"]).exit_code != 0
    need("userns", control.exit_code == 0, "user namespaces are closed on this machine: no control")


# ---- terminals

PTY = "dev"  # the probe makes a terminal, which the default profile does not grant


@pytest.mark.parametrize(
    "command", [TIOCSTI, TIOCSTI | 1 << 32, TIOCSTI | 0xDEADBEEF << 32], ids=hex
)
def test_nothing_can_be_typed_into_a_terminal(sandbox: SandboxRunner, command: int) -> None:
    """C-041: TIOCSTI. The kernel reads 32 bits of the command, so the filter must too."""
    assert sandbox.inside(sandbox.probe("tiocsti", hex(command)), profile=PTY).answer == "EPERM"
    assert sandbox.outside(sandbox.probe("tiocsti", hex(command))).answer in ("ok typed", "EIO")


@pytest.mark.parametrize("command", [TIOCLINUX, TIOCLINUX | 1 << 32], ids=hex)
def test_tioclinux_is_refused(sandbox: SandboxRunner, command: int) -> None:
    assert sandbox.inside(sandbox.probe("ioctl", hex(command)), profile=PTY).answer == "EPERM"
    assert sandbox.outside(sandbox.probe("ioctl", hex(command))).answer == "ENOTTY"


def test_other_terminal_ioctls_work(sandbox: SandboxRunner) -> None:
    assert sandbox.inside(sandbox.probe("ioctl", hex(TIOCGWINSZ)), profile=PTY).answer == "ok"


# ---- sockets


@pytest.mark.parametrize(
    ("family", "kind"),
    [(2, 1), (2, 2), (10, 1), (10, 2), (16, 3)],
    ids=["tcp", "udp", "tcp6", "udp6", "netlink"],
)
def test_ordinary_socket_families_work(sandbox: SandboxRunner, family: int, kind: int) -> None:
    assert sandbox.inside(sandbox.probe("socket", str(family), str(kind))).answer == "ok"


def test_only_route_netlink_is_open_unless_a_policy_allows_more(
    sandbox: SandboxRunner,
) -> None:
    script = """
import errno, socket
print("started")
for protocol in range(23):
    try:
        socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol).close()
        print(protocol, "ok")
    except OSError as error:
        print(protocol, errno.errorcode[error.errno])
"""

    def made(outcome: Outcome) -> set[int]:
        started, *lines = outcome.stdout.splitlines()
        assert (started, len(lines)) == ("started", 23), outcome
        return {int(line.split()[0]) for line in lines if line.endswith(" ok")}

    words = [need_program("python3"), "-c", script]
    outside = made(sandbox.outside(words))
    assert {0, 4, 12, 16} <= outside, "routes, sock_diag, netfilter, generic"
    assert made(sandbox.inside(words)) == {0}
    assert made(sandbox.inside(words, "--socket", "netlink-all")) == outside


@pytest.mark.parametrize("family", [17, 40, 38, 44, 31, 29, 30, 21, 41, 9], ids=str)
def test_other_socket_families_do_not_exist(sandbox: SandboxRunner, family: int) -> None:
    """packet, vsock, alg, xdp, bluetooth, can, tipc, rds, kcm, x25."""
    words = sandbox.probe("socket", str(family), "3" if family in (17, 44, 31, 29) else "1")
    assert sandbox.inside(words).answer == "EAFNOSUPPORT"
    if family in (17, 40):
        assert sandbox.outside(words).answer in ("ok", "EPERM"), (
            "the bare kernel supports the family"
        )


@pytest.mark.parametrize(
    ("family", "kind"),
    [(2, 1), (10, 2), (16, 3), (17, 3), (40, 1)],
    ids=["tcp", "udp6", "netlink", "packet", "vsock"],
)
def test_no_pair_of_any_family_but_unix(sandbox: SandboxRunner, family: int, kind: int) -> None:
    """The kernel creates both sockets before it finds that the family has no pairs. That code must
    not run.
    """
    words = sandbox.probe("socketpair", str(family), str(kind))
    assert sandbox.inside(words).answer == "EAFNOSUPPORT"
    assert sandbox.inside(words, "--socket", "unix").answer == "EAFNOSUPPORT"
    assert sandbox.outside(words).answer in ("EOPNOTSUPP", "EPERM"), (
        "the bare kernel supports the family"
    )


@pytest.mark.parametrize("kind", [1, 5], ids=["stream", "sequenced"])
def test_connected_pairs_work(sandbox: SandboxRunner, kind: int) -> None:
    assert sandbox.inside(sandbox.probe("socketpair", "1", str(kind))).answer == "ok"


# ---- what must keep working


_PYTHON = {
    "threads": (
        "import threading as t; x = t.Thread(target=print, args=('ran',)); x.start(); x.join()"
    ),
    "subprocess": "import subprocess as s; s.run(['echo', 'ran'], check=True)",
    "fork": "import multiprocessing as m; p = m.get_context('fork').Process(target=print, "
    "args=('ran',)); "
    "p.start(); p.join()",
}


@pytest.mark.parametrize(
    ("act", "answer"),
    [
        (("threads",), "ok eight"),
        (("vfork",), "ok seven"),
        (("posix-spawn", "/bin/true"), "ok spawned"),
        (("clone", "0"), "ok"),
    ],
    ids=["pthreads", "vfork", "posix_spawn", "fork"],
)
def test_threads_and_children_work(
    sandbox: SandboxRunner, act: tuple[str, ...], answer: str
) -> None:
    """C-034: clone3 answers ENOSYS, so the C library falls back to clone."""
    outcome = sandbox.inside(sandbox.probe(*act))
    assert outcome.answer == answer, str(outcome)


@pytest.mark.parametrize("what", _PYTHON)
def test_python_runs_with_its_threads_and_children(sandbox: SandboxRunner, what: str) -> None:
    outcome = sandbox.inside(["python3", "-c", f"print('started', flush=True); {_PYTHON[what]}"])
    assert outcome.answer == "ran", str(outcome)


def test_node_runs_with_its_threads_and_children(sandbox: SandboxRunner) -> None:
    need_program("node")
    script = (
        "console.log('started'); const w = new (require('worker_threads').Worker)('', {eval: "
        "true});"
        "w.on('exit', () => console.log(require('child_process').execFileSync('echo', "
        "['ran']).toString().trim()))"
    )
    outcome = sandbox.inside(["node", "-e", script])
    assert outcome.answer == "ran", str(outcome)


# ---- no way to shed it (C-045)


def test_descendants_carry_the_filter_and_the_file_rules(sandbox: SandboxRunner) -> None:
    probe, secret = sandbox.programs.probe, sandbox.tree.secret
    deep = "sh -c 'sh -c \"{}\"'"
    assert (
        sandbox.inside(["sh", "-c", deep.format(f"{probe} syscall {NUMBERS['unshare']} 0")]).answer
        == "EPERM"
    )
    assert sandbox.inside(["sh", "-c", deep.format(f"{probe} read {secret}")]).answer == "EACCES"
    assert sandbox.outside(["sh", "-c", deep.format(f"{probe} read {secret}")]).answer.startswith(
        "ok"
    )
    setsid = sandbox.inside(["setsid", "--wait", probe, "read", secret])
    assert setsid.answer == "EACCES", str(setsid)


def test_a_program_without_a_path_carries_the_filter_and_the_file_rules(
    sandbox: SandboxRunner,
) -> None:
    """memfd: Landlock does not restrict this exec, but its rules stay on."""
    probe = sandbox.programs.probe
    outcome = sandbox.inside(
        ["python3", "-c", _RUN_FROM_MEMORY, probe, "read", sandbox.tree.secret]
    )
    assert outcome.answer == "EACCES", str(outcome)
    control = sandbox.outside(
        ["python3", "-c", _RUN_FROM_MEMORY, probe, "read", sandbox.tree.secret]
    )
    assert control.answer.startswith("ok")


_RUN_FROM_MEMORY = """
import os, sys
fd = os.memfd_create("copy", 0)
os.write(fd, open(sys.argv[1], "rb").read())
os.execve(fd, sys.argv[1:], os.environ)
"""


def test_the_filter_and_no_new_privs_are_on(sandbox: SandboxRunner) -> None:
    """C-050, C-051."""
    status = sandbox.inside(["cat", "/proc/self/status"]).stdout
    assert "NoNewPrivs:\t1\n" in status
    assert "Seccomp:\t2\n" in status
    control = sandbox.outside(["cat", "/proc/self/status"]).stdout
    assert "NoNewPrivs:\t0\n" in control
    assert "Seccomp:\t0\n" in control


def test_limits_of_a_process_outside_cannot_be_changed(sandbox: SandboxRunner) -> None:
    """A command could end the supervisor by a CPU limit, or stop the journal by a file size
    limit.
    """
    script = (
        "import resource as r, sys; print('started', flush=True)\n"
        "try:\n    r.prlimit(int(sys.argv[1]), r.RLIMIT_NOFILE, (100, 100)); print('ok')\n"
        "except PermissionError: print('EPERM')"
    )
    with sandbox.tester.starting(["sleep", "60"]) as bystander:
        words = ["python3", "-c", script, str(bystander.pid)]
        assert sandbox.inside(words).answer == "EPERM"
        assert _open_files_limit(bystander.pid) != ["100", "100"]
        assert sandbox.outside(words).answer == "ok"
        assert _open_files_limit(bystander.pid) == ["100", "100"]


def test_the_priority_of_a_process_group_cannot_be_changed(sandbox: SandboxRunner) -> None:
    """Supervisor and shell can be in the group of the command."""
    script = (
        "import os, sys; print('started', flush=True)\n"
        "try:\n    os.setpriority(os.PRIO_PGRP, 0, 7); print('ok')\n"
        "except PermissionError: print('EPERM')"
    )
    neighbour = 'sleep 60 >/dev/null 2>&1 & "$@"; echo nice $(cut -d" " -f19 /proc/$!/stat)'
    group = ["setsid", "-w", "sh", "-c", neighbour, "sh"]
    words = ["python3", "-c", script]
    denied = sandbox.inside(words, prefix=group)
    assert denied.stdout.splitlines() == ["started", "EPERM", "nice 0"], str(denied)
    changed = sandbox.outside([*group, *words])
    assert changed.stdout.splitlines() == ["started", "ok", "nice 7"], str(changed)


def _open_files_limit(pid: int) -> list[str]:
    lines = Path(f"/proc/{pid}/limits").read_text().splitlines()
    return next(line.split()[3:5] for line in lines if line.startswith("Max open files"))
