"""A denied program does not run by any bypass. Each bypass works without the gate."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import core
from tests.support.features import need, need_program
from tests.support.gate import Gate, rule, script
from tests.support.installation import Installation
from tests.support.programs import Programs
from tests.support.sandbox import SandboxRunner, Word
from tests.support.saved_state import remove
from tests.support.tester import Tester
from tests.support.tree import ProjectTree, project_tree

Way = Callable[[Gate], list[Word]]


def _probe(act: str, *before: str, linked: bool = False) -> Way:
    def words(gate: Gate) -> list[Word]:
        programs = gate.sandbox.programs
        return gate.sandbox.probe(
            act, *before, programs.linked if linked else programs.forbidden, "x"
        )

    return words


def _shell(text: str) -> Way:
    """``F`` is the denied program, ``L`` the same with a loader, ``D`` their directory."""

    def words(gate: Gate) -> list[Word]:
        programs = gate.sandbox.programs
        names = {"$F": programs.forbidden, "$L": programs.linked, "$D": programs.directory}
        shown = text
        for name, path in names.items():
            shown = shown.replace(name, str(path))
        return ["bash", "-c", shown]

    return words


def _loader() -> Path:
    found = {"x86_64": "/lib64/ld-linux-x86-64.so.2", "aarch64": "/lib/ld-linux-aarch64.so.1"}.get(
        platform.machine()
    )
    need(
        "loader",
        found is not None and Path(found).exists(),
        "no dynamic loader where it is expected",
    )
    return Path(str(found))


def _by_loader(gate: Gate) -> list[Word]:
    return [_loader(), gate.sandbox.programs.linked, "x"]


def _by_loader_itself(gate: Gate) -> list[Word]:
    return [_loader().resolve(), gate.sandbox.programs.linked, "x"]


def _by_loader_link(gate: Gate) -> list[Word]:
    (gate.project / "start").symlink_to(_loader())
    return ["bash", "-c", script("./start", gate.sandbox.programs.linked, "x")]


def _by_loader_copy(gate: Gate) -> list[Word]:
    copy = f"cp {_loader().resolve()} ./start && ./start"
    return ["bash", "-c", f"{copy} {gate.sandbox.programs.linked} x"]


def _script(*lines: str) -> Way:
    """Files s0, s1, …. The first is executed, and each may name the next as its interpreter."""

    def words(gate: Gate) -> list[Word]:
        programs = gate.sandbox.programs
        for index, line in enumerate(lines):
            shown = line.replace("$F", str(programs.forbidden)).replace("$P", str(gate.project))
            shown = shown.replace("$LD", str(_loader())).replace("$L", str(programs.linked))
            gate.sandbox.tree.put(gate.project / f"s{index}", f"#!{shown}\n", mode=0o755)
        return ["bash", "-c", "./s0 x"]

    return words


def _program(name: str, *words: str) -> Way:
    def found(gate: Gate) -> list[Word]:
        need_program(name)
        return [name, *(word.replace("$F", str(gate.sandbox.programs.forbidden)) for word in words)]

    return found


WAYS: dict[str, Way] = {
    "plain": _probe("exec"),
    "static, no environment, raw call": _probe("exec-raw"),
    "vfork": _probe("exec-vfork"),
    "posix_spawn": _probe("exec-spawn"),
    "thread": _probe("exec-thread"),
    "thread, first one gone": _probe("exec-widow"),
    "nine threads": _probe("exec-nine"),
    "memfd": _probe("exec-memfd"),
    "memfd, with a loader": _probe("exec-memfd", linked=True),
    "fexecve": _probe("exec-descriptor"),
    "/proc/self/fd": _probe("exec-link", "/proc/self/fd"),
    "/proc/thread-self/fd": _probe("exec-link", "/proc/thread-self/fd"),
    "/dev/fd": _probe("exec-link", "/dev/fd"),
    "execveat": lambda gate: gate.sandbox.probe(
        "exec-at", gate.sandbox.programs.directory, "mark-f"
    ),
    "no argv": _probe("exec-no-argv"),
    "empty argv": _probe("exec-empty-argv"),
    "another name": lambda gate: gate.sandbox.probe(
        "exec-called", gate.sandbox.programs.forbidden, "harmless"
    ),
    "hidden memory": _probe("exec-undumpable"),
    "from itself": lambda gate: gate.sandbox.probe(
        "exec-self", "exec", gate.sandbox.programs.forbidden, "x"
    ),
    "loader": _by_loader,
    "loader, by its file": _by_loader_itself,
    "loader, by a link": _by_loader_link,
    "loader, a copy": _by_loader_copy,
    "loader as interpreter": _script("$LD $L"),
    "copy in the workspace": _shell("cp $F copy && ./copy x"),
    "copy in a private place": _shell('cp $F "${TMPDIR:-/tmp}/copy" && "${TMPDIR:-/tmp}/copy" x'),
    "link": _shell("ln -s $F link && ./link x"),
    "links": _shell("mkdir d && ln -s $D d/e && ln -s d/e/mark-f link && ./link x"),
    "/proc/self/root": _shell("/proc/self/root$F x"),
    "/proc/self/cwd": _shell(
        "cd $D && cwd=$PWD && cd - > /dev/null && ln -s $F f && /proc/self/cwd/f x"
    ),
    "dots": _shell("$D/../$(basename $D)/./mark-f x"),
    "relative": _shell('here=$PWD; cd $D && exec -a x bash -c "cd $here; exec $D/mark-f x"'),
    "interpreter": _script("$F"),
    "interpreter with an argument": _script("$F  y z"),
    "interpreter, nested": _script("$P/s1", "$P/s2", "$P/s3", "$P/s4", "$F"),
    "interpreter by env": _script("/usr/bin/env $F"),
    "interpreter by env -S": _script("/usr/bin/env -S $F y"),
    "sh -c": _shell("sh -c '$F x'"),
    "exec in a shell": _shell("exec $F x"),
    "subshell in the background": _shell("($F x &) | cat"),
    "env": _shell("env -i $F x"),
    "xargs": _shell("echo x | xargs $F"),
    "find -exec": _shell("find own.txt -exec $F {} ';'"),
    "nohup": _shell("nohup $F x"),
    "setsid": _shell("setsid -w $F x"),
    "timeout": _shell("timeout 9 $F x"),
    "nice": _shell("nice $F x"),
    "text without a first line": _shell("echo '$F x' > plain; chmod +x plain; ./plain"),
    "python": _program("python3", "-c", "import subprocess; subprocess.run(['$F', 'x'])"),
    "python, fork": _program(
        "python3", "-c", "import os; os.fork() or os.execv('$F', ['x'])\nos.wait()"
    ),
    "perl": _program("perl", "-e", "system('$F', 'x')"),
    "node": _program("node", "-e", "require('child_process').spawnSync('$F', ['x'])"),
    "make": _shell("printf 'all:\\n\\t$F x\\n' | make -f -"),
    "git alias": _shell("git -c alias.z='!$F x' z"),
    "awk": _shell("awk 'BEGIN { system(\"$F x\") }'"),
}

# The kernel refuses these before the gate, or the gate denies them before the rules.
ANSWERS = {
    "memfd": "EACCES",
    "plain": "EACCES",
    "/dev/fd": "EACCES",
    "hidden memory": "EACCES",
    "nine threads": "EACCES",
}


@pytest.fixture(scope="module", name="shared_tree")
def _shared_tree(tester: Tester) -> Iterator[ProjectTree]:
    with project_tree(tester) as tree:
        yield tree


@pytest.fixture(params=["landlock", "full"])
def shared_gate(
    request: pytest.FixtureRequest,
    tester: Tester,
    installation: Installation,
    programs: Programs,
    host: dict[str, Any],
    shared_tree: ProjectTree,
) -> Gate:
    """One place for all ways: a plan is compiled once for each tier and program, and not 220 times.
    No way finds what another one left.
    """
    tier = str(request.param)
    need("landlock", host["landlock_abi"] >= 6, "this kernel has not all rights of Landlock")
    need("namespaces", tier != "full" or host["namespaces"]["usable"], "no namespaces here")
    sandbox = SandboxRunner(
        tester=tester,
        installation=installation,
        programs=programs,
        tree=shared_tree,
        tier=tier,
    )
    for directory in (shared_tree.project, sandbox.journal):
        for path in directory.iterdir() if directory.exists() else ():
            remove(path)
    shared_tree.put(shared_tree.project / "own.txt", "mine\n")
    return Gate(sandbox=sandbox)


@pytest.mark.parametrize("way", WAYS)
def test_no_bypass_runs_a_denied_program(shared_gate: Gate, way: str) -> None:
    gate = shared_gate
    words = WAYS[way](gate)
    control = gate.without(words)
    assert any(line.startswith("forbidden") for line in gate.ran()), (
        f"the control did not start the program: {control}"
    )
    for left in ("link", "d", "f", "copy", "plain", "nohup.out"):
        path = gate.project / left
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(
            missing_ok=True
        )
    outcome = gate.inside(words, gate.forbidding)
    assert gate.ran() == [], str(outcome)
    assert "Traceback" not in outcome.stderr or "PermissionError" in outcome.stderr, str(outcome)
    if way in ANSWERS:
        assert outcome.answer == ANSWERS[way], str(outcome)
    # Every denial is in the journal, under any name.
    assert any(event["action"] == "deny" for event in gate.execs()), str(outcome)


def test_a_denial_before_the_rules_has_all_event_fields(gate: Gate) -> None:
    words = _by_loader(gate)
    gate.inside(words, gate.forbidding)
    (event,) = (event for event in gate.execs() if event["action"] == "deny")
    assert (event["argv"], event["cwd"]) == (list(map(str, words)), str(gate.project))
    assert event["ppid"] != 0


def test_the_gate_lets_through_what_is_not_denied(gate: Gate) -> None:
    """The same bypasses, with the allowed program."""
    programs = gate.sandbox.programs
    for act in (
        "exec",
        "exec-raw",
        "exec-vfork",
        "exec-spawn",
        "exec-thread",
        "exec-widow",
        "exec-nine",
        "exec-descriptor",
    ):
        outcome = gate.inside(gate.sandbox.probe(act, programs.allowed, "x"), gate.forbidding)
        assert outcome.answer == "ok 0", str(outcome)
        assert gate.ran() == ["allowed x"], str(outcome)
    outcome = gate.inside(
        gate.sandbox.probe("exec-self", "exec-self", "exec", programs.allowed), gate.forbidding
    )
    assert gate.ran() == ["allowed"], str(outcome)
    outcome = gate.inside(
        gate.sandbox.probe("exec-at", programs.directory, "mark-a", "x"), gate.forbidding
    )
    assert gate.ran() == ["allowed x"], str(outcome)


def test_threads_that_ask_at_once_get_each_its_answer(gate: Gate) -> None:
    """One is denied, one fails, one runs. No thread waits for another for ever."""
    programs = gate.sandbox.programs
    missing = programs.directory / "missing"
    for _ in range(5):
        words = gate.sandbox.probe("exec-mixed", programs.forbidden, missing, programs.allowed, "x")
        outcome = gate.inside(words, gate.forbidding)
        assert outcome.answer == "ok 0", str(outcome)
        assert gate.ran() == ["allowed x"], str(outcome)


def test_a_hard_link_has_another_path_and_the_same_hash(gate: Gate) -> None:
    programs, project = gate.sandbox.programs, gate.project
    tools = gate.sandbox.tree.make(project / "tools")
    shutil.copy(programs.forbidden, tools / "tool")
    gate.sandbox.tester.give(project)
    (project / "linked").hardlink_to(tools / "tool")
    (tools / "same").hardlink_to(tools / "tool")
    control = gate.without(["bash", "-c", "./linked x; tools/same x"])
    assert gate.ran() == ["forbidden x"] * 2, str(control)
    more = f'[[rule]]\nid = "tools"\naction = "allow"\nexe_glob = "{tools}/**"\n'
    denied = rule("no-tool", "deny", exe=str(tools / "tool"))
    outcome = gate.shell("./linked x; tools/tool x; echo done", denied, more)
    assert gate.ran() == [], str(outcome)
    assert outcome.stdout == "done\n", str(outcome)
    # A rule by name does not deny a copy with another name in an allowed directory. A rule by
    # content does.
    outcome = gate.shell("tools/same x", denied, more)
    assert gate.ran() == ["forbidden x"], str(outcome)
    digest = (
        shutil.which("sha256sum")
        and gate.sandbox.outside(["sha256sum", tools / "tool"]).stdout.split()[0]
    )
    outcome = gate.shell(
        "tools/same x; ./linked x", rule("no-content", "deny", exe_sha256=str(digest)), more
    )
    assert gate.ran() == [], str(outcome)


def test_a_multi_call_program_is_denied_by_the_name_it_is_called(gate: Gate) -> None:
    busybox = need_program("busybox")
    (gate.project / "rm").symlink_to(busybox)
    no_rm = rule("no-rm", "deny", exe_basename="rm")
    ways = [
        "rm victim",
        "./rm victim",
        "busybox rm victim",
        "exec -a rm busybox victim",
        "/bin/rm victim",
        "exec -a /x/rm busybox victim",
    ]
    gate.sandbox.tree.put(gate.project / "script", f"#!{busybox} rm\n", mode=0o755)
    for way in [*ways, "./script victim"]:
        victim = gate.sandbox.tree.put(gate.project / "victim", "x")
        gate.sandbox.tree.put(gate.project / "script", f"#!{busybox} rm\n", mode=0o755)
        control = gate.without(["bash", "-c", way])
        assert not victim.exists(), str(control)
        gate.sandbox.tree.put(victim, "x")
        gate.sandbox.tree.put(gate.project / "script", f"#!{busybox} rm\n", mode=0o755)
        allowed = rule("own", "allow", exe_glob=f"{gate.project}/*")
        outcome = gate.inside(["bash", "-c", way], no_rm, allowed)
        assert victim.exists(), str(outcome)
        assert outcome.exit_code == 126, str(outcome)


def test_the_interpreter_arguments_of_a_first_line_are_judged(gate: Gate) -> None:
    programs = gate.sandbox.programs
    denied = rule("no-word", "deny", exe=str(programs.allowed), argv_regex="^mark-a forbid")
    own = rule("own", "allow", exe_glob=f"{gate.project}/*")
    gate.sandbox.tree.put(gate.project / "wrap", f"#!{programs.allowed} forbid\n", mode=0o755)
    control = gate.without(["bash", "-c", "./wrap x"])
    assert gate.ran() == ["allowed forbid ./wrap x"], str(control)
    outcome = gate.inside(["bash", "-c", "./wrap x"], denied, own)
    assert gate.ran() == [], str(outcome)
    assert outcome.exit_code == 126, str(outcome)
    # The name busybox is an argument too.
    gate.sandbox.tree.put(gate.project / "forbid", f"#!{programs.allowed}\n", mode=0o755)
    outcome = gate.inside(gate.sandbox.probe("exec", "forbid"), denied, own)
    assert gate.ran() == [], str(outcome)
    gate.sandbox.tree.put(gate.project / "wrap", f"#!{programs.allowed} fine\n", mode=0o755)
    outcome = gate.inside(["bash", "-c", "./wrap x"], denied, own)
    assert gate.ran() == ["allowed fine ./wrap x"], str(outcome)
    why: list[Word] = [
        gate.sandbox.installation.paddock,
        "why",
        "--policy",
        gate.policy(denied, own),
        "--exec",
        "./wrap",
    ]
    assert gate.sandbox.outside(why).exit_code == 0
    gate.sandbox.tree.put(gate.project / "wrap", f"#!{programs.allowed} forbid\n", mode=0o755)
    assert gate.sandbox.outside(why).exit_code == 1


@pytest.mark.parametrize("architecture", ["i386", "x32"])
def test_calls_by_another_architecture_end_the_caller(gate: Gate, architecture: str) -> None:
    outcome = gate.inside(
        gate.sandbox.probe("exec-foreign", architecture, gate.sandbox.programs.forbidden),
        gate.forbidding,
    )
    assert outcome.answer == "killed 31", str(outcome)
    assert gate.ran() == []


def test_rules_are_refused_together_with_nested_namespaces(gate: Gate) -> None:
    """In a new mount namespace another file can be mounted over a program or its loader."""
    words = gate.sandbox.probe("exec", gate.sandbox.programs.allowed, "x")
    outcome = gate.inside(words, gate.forbidding, more="[syscalls]\nnamespaces = true\n")
    assert outcome.exit_code == 125, str(outcome)
    assert "a command could mount other files over programs" in outcome.stderr
    assert gate.ran() == []
    assert gate.inside(words, gate.forbidding).exit_code == 0
    assert gate.ran() == ["allowed x"]


def test_a_traced_caller_is_refused_unless_the_policy_allows_tracing(gate: Gate) -> None:
    programs = gate.sandbox.programs
    words = gate.sandbox.probe("exec-traced", programs.allowed, "x")
    assert gate.sandbox.outside(words).answer == "ok 0"
    assert gate.ran() == ["allowed x"]
    assert gate.inside(words, gate.forbidding).answer == "EPERM"
    trace = "[syscalls]\ntrace = true\n"
    outcome = gate.inside(words, gate.forbidding, more=trace)
    assert outcome.answer == "ok 0", str(outcome)
    assert gate.ran() == ["allowed x"], str(outcome)
    assert "programs may trace each other" in outcome.stderr, str(outcome)
    event = [event for event in gate.execs() if event["exe"] == str(programs.allowed)][-1]
    assert (event["ran"], event["verified"]) == (True, False)
    # Denied programs stay denied.
    outcome = gate.inside(
        gate.sandbox.probe("exec-traced", programs.forbidden, "x"), gate.forbidding, more=trace
    )
    assert outcome.answer == "EACCES", str(outcome)
    assert gate.ran() == []


def test_strace_works_if_the_policy_allows_tracing(gate: Gate) -> None:
    need_program("strace")
    words: list[Word] = [
        "strace",
        "-f",
        "-o",
        "trace",
        "sh",
        "-c",
        f"{gate.sandbox.programs.allowed} x",
    ]
    outcome = gate.inside(words, gate.forbidding, more="[syscalls]\ntrace = true\n")
    assert gate.ran() == ["allowed x"], str(outcome)
    assert "execve(" in (gate.project / "trace").read_text()
    outcome = gate.inside(words, gate.forbidding)
    assert gate.ran() == [], str(outcome)
    assert outcome.exit_code != 0, str(outcome)


def test_a_traced_caller_is_refused_with_a_reason(
    sandbox: SandboxRunner, host: dict[str, Any]
) -> None:
    """No policy leaves ptrace open without the switch. A handmade plan can."""
    gate, programs = Gate(sandbox=sandbox), sandbox.programs
    plan = core.plan_for(
        sandbox.tester,
        gate.project,
        landlock_abi=host["landlock_abi"],
        read=[programs.directory],
        allow=[gate.project],
    )
    held = {
        "default": "allow", "on_error": "deny", "timeout_ms": 1000, "ask_timeout_s": 1,
        "trace": False, "exec_only_granted": False, "rules": [], "approved": [],
    }  # fmt: skip
    words = [str(word) for word in sandbox.probe("exec-traced", programs.allowed, "x")]
    control = core.run_core(sandbox.tester, sandbox.installation.core, plan, words)
    assert control.answer == "ok 0", str(control)
    assert gate.ran() == ["allowed x"]
    outcome = core.run_core(
        sandbox.tester, sandbox.installation.core, core.changed(plan, gate=held), words
    )
    assert outcome.answer == "EACCES", str(outcome)
    assert gate.ran() == []
    assert "another program traces it" in outcome.stderr, str(outcome)
