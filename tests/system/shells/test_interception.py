"""Shells of a run have one more layer. It denies acts that the agent itself may do.

The agent is a Python program, not a shell. Its own acts are one control. The same run without
interception is the other.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from tests.support.network import MESSAGE, Server, serving
from tests.support.outside_targets import alive
from tests.support.sandbox import SandboxRunner, Word
from tests.support.tester import Outcome
from tests.support.waiting import wait_for

PYTHON = "/usr/bin/python3"
RUN = "import subprocess, sys; sys.exit(subprocess.run(sys.argv[1:]).returncode)"
SYSTEM = (
    "import os, shlex, sys; "
    "sys.exit(os.waitstatus_to_exitcode(os.system(shlex.join(sys.argv[1:]))))"
)
CALL = (
    "import socket, sys; socket.create_connection(('127.0.0.1', "
    "int(sys.argv[1]))).send(b'from a client')"
)
# The path of a real shell inside.
KEPT = "os.path.join('/dev', os.readlink('/dev/.paddock-shell')) + '/usr/bin/bash'"
FILTERS = "grep Seccomp_filters: /proc/self/status"


def agent(*words: Word) -> list[Word]:
    return [PYTHON, "-c", RUN, *words]


def intercepted(full: SandboxRunner, *words: Word) -> Outcome:
    return full.inside(agent(*words), "--intercept-shells")


def policy(full: SandboxRunner, shell: str, more: str = "") -> tuple[Word, ...]:
    text = f'[meta]\ninherit = "ai-agent"\n[shell]\n{shell}\n{more}\n'
    return ("--policy", full.tree.put(full.tree.root / "shell.toml", text))


def ways(full: SandboxRunner, command: list[str]) -> dict[str, list[Word]]:
    quoted = shlex.join(command)
    script = full.tree.put(full.tree.project / "script.sh", f"#!/bin/bash\n{quoted}\n", mode=0o755)
    return {
        "name": agent("bash", "-c", quoted),
        "path": agent("/bin/bash", "-c", quoted),
        "sh": agent("sh", "-c", quoted),
        "dash": agent("/usr/bin/dash", "-c", quoted),
        "script": agent(script),
        "system": [PYTHON, "-c", SYSTEM, *command],
        "below another": agent("sh", "-c", shlex.join(["bash", "-c", quoted])),
        "the command itself": ["/bin/sh", "-c", quoted],
    }


def calling(server: Server) -> list[str]:
    return [PYTHON, "-c", CALL, str(server.port)]


def test_an_agent_reaches_the_network_and_its_shells_do_not(full: SandboxRunner) -> None:
    """C-111, C-112."""
    with serving("127.0.0.1", socket.SOCK_STREAM) as server:
        called = calling(server)
        control = full.inside(agent(*called), "--intercept-shells")
        assert (control.exit_code, server.received()) == (0, [MESSAGE]), str(control)
        for way, words in ways(full, called).items():
            control = full.inside(words)
            assert (control.exit_code, server.received()) == (0, [MESSAGE]), f"{way}: {control}"
            outcome = full.inside(words, "--intercept-shells")
            assert outcome.exit_code == 1, f"{way}: {outcome}"
            assert "Address family not supported" in outcome.stderr, f"{way}: {outcome}"
            assert server.received() == [], way


def test_forty_shells_below_each_other_have_one_layer(full: SandboxRunner) -> None:
    """C-108."""
    deeper = (
        'n() { if [ $1 -gt 0 ]; then bash -c "$(declare -f n); n $(($1-1))"; else '
        + FILTERS
        + "; fi; }; n 40"
    )
    once = intercepted(full, "bash", "-c", FILTERS)
    assert re.fullmatch(r"Seccomp_filters:\t\d+\n", once.stdout), str(once)
    assert intercepted(full, "bash", "-c", deeper).stdout == once.stdout
    assert full.inside(agent("bash", "-c", FILTERS)).stdout != once.stdout


@pytest.mark.parametrize(
    ("words", "stdin", "code", "stdout"),
    [
        (["bash", "-c", "exit 9"], None, 9, ""),
        (["bash", "-c", "kill -TERM $$"], None, 241, ""),
        (["bash", "-s"], "echo hi", 0, "hi\n"),
        (["sh", "-c", 'printf "%s|" "$@"', "name", "a b", "", "ü"], None, 0, "a b||ü|"),
        (
            ["bash", "-c", "exec -a -bash bash -c 'echo $0; shopt login_shell | cut -f2'"],
            None,
            0,
            "-bash\non\n",
        ),
        (["bash", "-c", "exec -a other bash -c 'echo $0'"], None, 0, "other\n"),
        (["bash", "-c", "X=1 bash -c 'echo $X'; cd /tmp && sh -c pwd"], None, 0, "1\n/tmp\n"),
        (["bash", "-c", "cat < <(echo substituted)"], None, 0, "substituted\n"),
    ],
)
def test_everything_that_a_shell_is_given_passes_through(
    full: SandboxRunner, words: list[Word], stdin: str | None, code: int, stdout: str
) -> None:
    """C-100."""
    flags = ("--intercept-shells",)
    for outcome in (
        full.inside(agent(*words), stdin=stdin),
        full.inside(agent(*words), *flags, stdin=stdin),
    ):
        assert (outcome.exit_code, outcome.stdout) == (code, stdout), str(outcome)


@pytest.mark.parametrize("through_a_shell", [False, True])
def test_files_calls_and_variables_can_be_kept_from_shells(
    full: SandboxRunner, through_a_shell: bool
) -> None:
    project = full.tree.project
    full.tree.make(project / "out")
    full.tree.put(project / "token" / "key", "secret\n")
    narrow = (
        f'write_globs = ["{project}/out/**", "/tmp/**"]\ndeny_globs = ["{project}/token/**"]\n'
        'block = ["mkdir", "mkdirat"]\n[shell.env]\ndeny = ["AGENT_*"]'
    )
    flags = policy(full, narrow, '[env]\npass = ["AGENT_KEY"]')
    script = (
        "echo x > out/new; echo x > new; mkdir out/made; echo x > /tmp/new && "
        "cat /tmp/new own.txt token/key; "
        "echo key ${AGENT_KEY-none}"
    )
    past = [PYTHON, "-c", f"import os; os.execv({KEPT}, ['bash', '-c', {script!r}])"]
    words = agent("bash", "-c", script) if through_a_shell else past
    outcome = full.inside(words, *flags, env={"AGENT_KEY": "k"})
    made = [name for name in ("new", "out/made", "out/new") if (project / name).exists()]
    if through_a_shell:
        assert (made, outcome.stdout) == (["out/new"], "x\nmine\nkey none\n"), str(outcome)
    else:
        assert (made, outcome.stdout) == (
            ["new", "out/made", "out/new"],
            "x\nmine\nsecret\nkey k\n",
        ), str(outcome)


def test_real_shells_have_a_new_path_in_every_run_and_keep_the_sandbox(
    full: SandboxRunner,
) -> None:
    """C-104. A real shell that is found is an ordinary program: without the layer, in the
    sandbox.
    """
    secret = full.tree.secret
    script = (
        f"import os; p = {KEPT}; print(p, flush=True); os.execv(p, ['bash', '-c', "
        f"'{FILTERS}; "
        f"cat {secret}'])"
    )
    seen = [full.inside([PYTHON, "-c", script], "--intercept-shells") for _ in range(2)]
    places = [
        re.match(r"/dev/\.shells_[0-9a-f]{12}/usr/bin/bash\n", outcome.stdout) for outcome in seen
    ]
    assert len({place[0] for place in places if place}) == 2, str(seen)
    # One filter has the listener of judged writes, and one refuses calls.
    plain = "Seccomp_filters:\t2\n"
    assert all(outcome.stdout.endswith(plain) and outcome.exit_code == 1 for outcome in seen), str(
        seen
    )
    assert full.outside(["cat", secret]).exit_code == 0


@pytest.mark.parametrize("shell", ["$real", "./copy", "env -i /bin/bash", "setsid sh"])
def test_no_other_shell_leads_out_of_the_layer(full: SandboxRunner, shell: str) -> None:
    with serving("127.0.0.1", socket.SOCK_STREAM) as server:
        called = shlex.join(["-c", shlex.join(calling(server))])
        script = (
            f"real=$(readlink -f /dev/.paddock-shell)/usr/bin/bash; cp $real copy; {shell} {called}"
        )
        if shell in (
            "$real",
            "./copy",
        ):  # the same act by the agent itself, which has no layer
            past = [PYTHON, "-c", f"import os; os.execv({KEPT}, ['bash', '-c', {script!r}])"]
            control = full.inside(past, "--intercept-shells")
            assert (control.exit_code, server.received()) == (0, [MESSAGE]), str(control)
        outcome = intercepted(full, "bash", "-c", script)
        assert (outcome.exit_code, server.received()) == (1, []), str(outcome)
        assert "Address family not supported" in outcome.stderr


@pytest.mark.parametrize("inside", [False, True], ids=["by the agent", "by a shell"])
def test_variables_and_names_do_not_choose_another_shell(full: SandboxRunner, inside: bool) -> None:
    """C-103."""
    evil = full.tree.put(full.tree.project / "evil" / "bash", "#!/bin/cat\n", mode=0o755)
    for place in (evil.parent, Path("/usr/bin")):
        full.tree.put(evil.parent / "usr" / "bin" / "bash", "#!/bin/cat\n", mode=0o755)
        env = f"PADDOCK_SHELL_DIR={place}"
        words = ["/usr/bin/env", env, "/bin/bash", "-c", FILTERS]
        outcome = intercepted(full, *(["sh", "-c", shlex.join(words)] if inside else words))
        assert outcome.stdout == intercepted(full, "bash", "-c", FILTERS).stdout, str(outcome)


@pytest.mark.parametrize("act", ["rm", "write", "mv", "mask", "umount"])
def test_no_command_changes_the_layer_of_shells(full: SandboxRunner, act: str) -> None:
    place = "$(readlink -f /dev/.paddock-shell)"
    tries = {
        "rm": f"rm -f {place}/plan.json /dev/.paddock-shell {place}/usr/bin/bash",
        "write": (
            f"echo x > {place}/plan.json; chmod u+w {place}/plan.json; "
            f"cp /bin/true {place}/usr/bin/bash"
        ),
        "mv": f"mv {place} /dev/x; mv /dev/.paddock-shell /dev/x; ln -sfn /tmp /dev/.paddock-shell",
        "mask": f"mkdir -p /tmp/x; mount --bind /tmp/x {place}; mount -t tmpfs none /dev",
        "umount": "umount /usr/bin/bash; umount -l /usr/bin/bash; unshare -rm umount /usr/bin/bash",
    }
    # The same act by the agent itself, which has no layer.
    script = f"{tries[act]}\nexec /bin/bash -c '{FILTERS}'"
    start = f"import os; os.execv({KEPT}, ['bash', '-c', {script!r}])"
    outcome = full.inside([PYTHON, "-c", start], "--intercept-shells")
    assert outcome.stderr, str(outcome)
    assert outcome.stdout == intercepted(full, "bash", "-c", FILTERS).stdout, str(outcome)


LAYERS = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
print("started", flush=True)
libc.prctl(38, 1, 0, 0, 0)
for _ in range(int(sys.argv[1])):
    scopes = (ctypes.c_uint64 * 3)(0, 0, 1)
    rules = libc.syscall(444, scopes, 24, 0)
    assert rules >= 0 and libc.syscall(446, rules, 0) == 0, ctypes.get_errno()
    os.close(rules)
os.execv("/bin/bash", sys.argv[2:])
"""


@pytest.mark.parametrize(
    ("layers", "on_failure", "name", "code"),
    [
        (3, "closed", "bash", 0),
        (14, "closed", "bash", 126),
        (14, "closed", "-bash", 126),
        (14, "open", "bash", 126),
        (14, "open", "-bash", 0),
    ],
)  # fmt: skip
def test_a_shell_that_cannot_be_closed_in_is_not_started(
    full: SandboxRunner, layers: int, on_failure: str, name: str, code: int
) -> None:
    """C-105. The kernel allows 16 Landlock layers. The sandbox uses two, and the caller of the
    shell uses the rest.
    """
    mark = full.tree.project / "mark"
    words = [PYTHON, "-c", LAYERS, str(layers), name, "-c", f"echo > {mark}"]
    outcome = full.inside(words, *policy(full, f'network = "none"\non_failure = "{on_failure}"'))
    assert outcome.started, str(outcome)
    assert (outcome.exit_code, mark.exists()) == (code, code == 0), str(outcome)
    assert ("paddock:" in outcome.stderr) == (layers == 14), str(outcome)


def test_sockets_and_files_are_not_inherited_by_an_intercepted_shell(full: SandboxRunner) -> None:
    script = (
        "import os, socket, subprocess, sys\n"
        "s, (r, w), f = socket.socket(), os.pipe(), os.open('own.txt', os.O_RDONLY)\n"
        "os.write(w, b'piped\\n'); os.close(w)\n"
        "line = f'cat <&{r}; cat <&{f} || echo closed; ls /proc/self/fd/{s.fileno()} || "
        "echo closed'\n"
        "sys.exit(subprocess.run(['bash', '-c', line], pass_fds=[s.fileno(), r, f]).returncode)"
    )
    control = full.inside([PYTHON, "-c", script])
    assert control.stdout.startswith("piped\nmine\n/proc"), str(control)
    outcome = full.inside([PYTHON, "-c", script], "--intercept-shells")
    assert outcome.stdout == "piped\nclosed\nclosed\n", str(outcome)


def test_an_internet_socket_is_refused_as_stdin(full: SandboxRunner) -> None:
    script = (
        "import socket, subprocess, sys\n"
        "s = socket.socket()\n"
        "sys.exit(subprocess.run(['bash', '-c', 'echo ran'], stdin=s).returncode)"
    )
    assert full.inside([PYTHON, "-c", script]).stdout == "ran\n"
    outcome = full.inside([PYTHON, "-c", script], "--intercept-shells")
    assert (outcome.exit_code, outcome.stdout) == (126, ""), str(outcome)


def test_a_process_in_the_layer_does_not_reach_processes_outside_it(full: SandboxRunner) -> None:
    """Memory and environment of other processes. The whole run shares one /proc."""
    script = (
        "import subprocess, sys; sys.exit(subprocess.run(['bash', '-c', "
        "'cat /proc/$PPID/environ | wc -c']).returncode)"
    )
    control = full.inside([PYTHON, "-c", script])
    assert int(control.stdout) > 0, str(control)
    outcome = full.inside([PYTHON, "-c", script], "--intercept-shells")
    assert outcome.stdout == "0\n", str(outcome)
    assert "Permission denied" in outcome.stderr


def test_rules_see_a_shell_by_its_own_path(full: SandboxRunner) -> None:
    rules = (
        '[[rule]]\nid = "no-zap"\naction = "deny"\nexe = "/bin/bash"\nargv_contains = "zap"\n'
        '[[rule]]\nid = "no-id"\naction = "deny"\nexe_basename = "id"\nparent_exe = "/bin/bash"\n'
        '[[rule]]\nid = "others"\naction = "allow"\nexe_glob = "/usr/**"\n'
    )
    flags = policy(full, 'network = "none"', rules)
    outcome = full.inside(
        agent("/bin/bash", "-c", "bash -c 'echo ran' zap; bash -c 'echo passed'; id || echo no"),
        *flags,
    )
    assert outcome.stdout == "passed\nno\n", str(outcome)
    direct = full.inside(
        [PYTHON, "-c", f"import os; os.execv({KEPT}, ['bash', '-c', 'echo past'])"], *flags
    )
    assert "past" not in direct.stdout, str(direct)
    assert "PermissionError" in direct.stderr
    reported = [event for event in full.events() if event["event"] == "exec"]
    assert {event["exe"] for event in reported if event["rule_id"] == "no-zap"} == {"/usr/bin/bash"}
    assert any(
        "only the intercepted shell may start the real shell" in str(event["reason"])
        for event in reported
    ), str(reported)


ASKING = """
import sys
from paddock import run_sync
from paddock.approve import Verdict
asked = []
def answer(question):
    asked.append(question)
    return Verdict.ONCE
done = run_sync([sys.argv[2], "-c", sys.argv[3], "/bin/bash", "-c", "echo ran"], \
policy=sys.argv[1], approver=answer)
print(done.stdout + str(done.exit_code), len(asked))
"""


def test_a_person_is_asked_once_about_one_shell(full: SandboxRunner) -> None:
    rules = (
        '[[rule]]\nid = "ask"\naction = "ask"\nexe = "/bin/bash"\n'
        '[[rule]]\nid = "others"\naction = "allow"\nexe_glob = "/usr/**"\n'
    )
    path = policy(full, 'network = "none"', rules)[1]
    python = full.installation.paddock.with_name("python")
    outcome = full.tester.run([python, "-c", ASKING, path, PYTHON, RUN], cwd=full.tree.project)
    assert outcome.stdout == "ran\n0 1\n", str(outcome)


def test_a_missing_grant_for_shells_refuses_the_run(full: SandboxRunner) -> None:
    mark = full.tree.project / "mark"
    words = [PYTHON, "-c", f"open('{mark}', 'w')"]
    outcome = full.inside(words, *policy(full, 'write_globs = ["<cwd>/absent/**"]'))
    assert (outcome.exit_code, mark.exists()) == (125, False), str(outcome)
    assert "shell.toml:4: " in outcome.stderr
    assert full.inside(words, *policy(full, 'write_globs = ["<cwd>/absent/**?"]')).exit_code == 0


def test_dry_run_lists_the_limits_of_shells(full: SandboxRunner) -> None:
    outcome = full.inside(
        ["true"], "--dry-run", *policy(full, 'network = "none"\nblock = ["ptrace"]')
    )
    assert re.search(
        r"^shells +no network\n +blocked: ptrace\n +Paddock does not start a shell",
        outcome.stdout,
        re.M,
    ), str(outcome)


def test_interception_is_refused_without_namespaces(sandbox: SandboxRunner) -> None:
    """C-115."""
    mark = sandbox.tree.project / "mark"
    for flags in (("--intercept-shells",), policy(sandbox, 'network = "none"')):
        outcome = sandbox.inside([PYTHON, "-c", f"open('{mark}', 'w')"], *flags)
        assert (outcome.exit_code, mark.exists()) == (125, False), str(outcome)
        assert "the landlock tier cannot intercept shells" in outcome.stderr
    assert sandbox.inside([PYTHON, "-c", f"open('{mark}', 'w')"]).exit_code == 0


def test_a_killed_run_leaves_no_mount_on_the_host(full: SandboxRunner) -> None:
    """C-117."""
    shells = [Path("/bin/bash"), Path("/bin/sh")]
    before = [hashlib.sha256(shell.read_bytes()).digest() for shell in shells]

    def mounts() -> list[str]:
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
        return [line for line in lines if "/bin/bash" in line or ".shells_" in line]

    words = agent("/bin/bash", "-c", "echo up; cat; true")
    with full.starting(words, "--intercept-shells", stdin=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        inner = _descendants(process.pid)
        assert any(_is_shell(pid) for pid in inner), inner
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        wait_for(lambda: not any(alive(pid) for pid in inner), "the end of everything")
    assert mounts() == []
    assert [hashlib.sha256(shell.read_bytes()).digest() for shell in shells] == before


def _descendants(pid: int) -> list[int]:
    found: list[int] = []
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        found += [int(child), *_descendants(int(child))]
    return found


def _is_shell(pid: int) -> bool:
    try:
        return ".shells_" in os.readlink(f"/proc/{pid}/exe")
    except OSError:
        return False


@pytest.mark.parametrize("profile", ["strict", "read-only", "dev"])
def test_interception_works_with_every_profile(full: SandboxRunner, profile: str) -> None:
    outcome = full.inside(agent("bash", "-c", "echo up"), "--intercept-shells", profile=profile)
    assert (outcome.exit_code, outcome.stdout) == (0, "up\n"), str(outcome)


@pytest.mark.parametrize(
    "flags", [("--block-net",), ("--cow",), ("--allow-domain", "example.org"), ("-r", "/**")]
)
def test_interception_works_with_other_layers(full: SandboxRunner, flags: tuple[str, ...]) -> None:
    words = agent("bash", "-c", f"{FILTERS}; sh -c 'echo up'")
    outcome = full.inside_of_everything(words, "--intercept-shells", *flags)
    assert (outcome.exit_code, outcome.stdout.splitlines()[-1:]) == (0, ["up"]), str(outcome)
