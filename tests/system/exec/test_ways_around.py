"""A program that is denied does not run, whatever it is started by. Each way leads there without
the gate.
"""

from __future__ import annotations

import platform
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import core
from tests.support.features import need, need_program
from tests.support.fence import Fence, Word
from tests.support.gate import Gate, rule, script
from tests.support.installation import Installation
from tests.support.programs import Programs
from tests.support.saved_state import remove
from tests.support.test_tree import Ground, laid_out
from tests.support.tester import Tester

Way = Callable[[Gate], list[Word]]


def _probe(act: str, *before: str, linked: bool = False) -> Way:
    def words(gate: Gate) -> list[Word]:
        programs = gate.fence.programs
        return gate.fence.probe(
            act, *before, programs.linked if linked else programs.forbidden, "x"
        )

    return words


def _shell(text: str) -> Way:
    """``F`` is the denied program, ``L`` the same with a loader, ``D`` where they lie."""

    def words(gate: Gate) -> list[Word]:
        programs = gate.fence.programs
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
    return [_loader(), gate.fence.programs.linked, "x"]


def _by_loader_itself(gate: Gate) -> list[Word]:
    return [_loader().resolve(), gate.fence.programs.linked, "x"]


def _by_loader_link(gate: Gate) -> list[Word]:
    (gate.project / "start").symlink_to(_loader())
    return ["bash", "-c", script("./start", gate.fence.programs.linked, "x")]


def _by_loader_copy(gate: Gate) -> list[Word]:
    copy = f"cp {_loader().resolve()} ./start && ./start"
    return ["bash", "-c", f"{copy} {gate.fence.programs.linked} x"]


def _script(*lines: str) -> Way:
    """Files s0, s1, …; the first is executed, each may name the next."""

    def words(gate: Gate) -> list[Word]:
        programs = gate.fence.programs
        for index, line in enumerate(lines):
            shown = line.replace("$F", str(programs.forbidden)).replace("$P", str(gate.project))
            shown = shown.replace("$LD", str(_loader())).replace("$L", str(programs.linked))
            gate.fence.ground.put(gate.project / f"s{index}", f"#!{shown}\n", mode=0o755)
        return ["bash", "-c", "./s0 x"]

    return words


def _program(name: str, *words: str) -> Way:
    def found(gate: Gate) -> list[Word]:
        need_program(name)
        return [name, *(word.replace("$F", str(gate.fence.programs.forbidden)) for word in words)]

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
    "execveat": lambda gate: gate.fence.probe("exec-at", gate.fence.programs.directory, "mark-f"),
    "no argv": _probe("exec-no-argv"),
    "empty argv": _probe("exec-empty-argv"),
    "another name": lambda gate: gate.fence.probe(
        "exec-called", gate.fence.programs.forbidden, "harmless"
    ),
    "hidden memory": _probe("exec-undumpable"),
    "from itself": lambda gate: gate.fence.probe(
        "exec-self", "exec", gate.fence.programs.forbidden, "x"
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

# Refused by the kernel before anybody is asked, or by the gate for what they are.
ANSWERS = {
    "memfd": "EACCES",
    "plain": "EACCES",
    "/dev/fd": "EACCES",
    "hidden memory": "EACCES",
    "nine threads": "EACCES",
}


@pytest.fixture(scope="module", name="shared_ground")
def _shared_ground(tester: Tester) -> Iterator[Ground]:
    with laid_out(tester) as ground:
        yield ground


@pytest.fixture(params=["landlock", "full"])
def shared_gate(
    request: pytest.FixtureRequest,
    tester: Tester,
    installation: Installation,
    programs: Programs,
    host: dict[str, Any],
    shared_ground: Ground,
) -> Gate:
    """One place for all ways: a plan is compiled once for each tier and program, and not 220 times.
    No way finds what another one left.
    """
    tier = str(request.param)
    need("landlock", host["landlock_abi"] >= 6, "this kernel has not all rights of Landlock")
    need("namespaces", tier != "full" or host["namespaces"]["usable"], "no namespaces here")
    fence = Fence(
        tester=tester,
        installation=installation,
        programs=programs,
        ground=shared_ground,
        tier=tier,
    )
    for directory in (shared_ground.project, fence.journal):
        for path in directory.iterdir() if directory.exists() else ():
            remove(path)
    shared_ground.put(shared_ground.project / "own.txt", "mine\n")
    return Gate(fence=fence)


@pytest.mark.parametrize("way", WAYS)
def test_a_denied_program_runs_by_no_way(shared_gate: Gate, way: str) -> None:
    gate = shared_gate
    words = WAYS[way](gate)
    control = gate.without(words)
    assert any(line.startswith("forbidden") for line in gate.ran()), (
        f"the control did not get there: {control}"
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
    # What was refused is in the journal, by whatever name.
    assert any(event["action"] == "deny" for event in gate.execs()), str(outcome)


def test_what_no_rule_is_asked_about_is_told_as_whole_as_the_rest(gate: Gate) -> None:
    words = _by_loader(gate)
    gate.inside(words, gate.forbidding)
    (event,) = (event for event in gate.execs() if event["action"] == "deny")
    assert (event["argv"], event["cwd"]) == (list(map(str, words)), str(gate.project))
    assert event["ppid"] != 0


def test_the_gate_lets_through_what_is_not_denied(gate: Gate) -> None:
    """The same ways, to the program that may run."""
    programs = gate.fence.programs
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
        outcome = gate.inside(gate.fence.probe(act, programs.allowed, "x"), gate.forbidding)
        assert outcome.answer == "ok 0", str(outcome)
        assert gate.ran() == ["allowed x"], str(outcome)
    outcome = gate.inside(
        gate.fence.probe("exec-self", "exec-self", "exec", programs.allowed), gate.forbidding
    )
    assert gate.ran() == ["allowed"], str(outcome)
    outcome = gate.inside(
        gate.fence.probe("exec-at", programs.directory, "mark-a", "x"), gate.forbidding
    )
    assert gate.ran() == ["allowed x"], str(outcome)


def test_threads_that_ask_at_once_get_each_its_answer(gate: Gate) -> None:
    """One is denied, one fails, one runs: nobody waits for another for ever."""
    programs = gate.fence.programs
    missing = programs.directory / "missing"
    for _ in range(5):
        words = gate.fence.probe("exec-mixed", programs.forbidden, missing, programs.allowed, "x")
        outcome = gate.inside(words, gate.forbidding)
        assert outcome.answer == "ok 0", str(outcome)
        assert gate.ran() == ["allowed x"], str(outcome)


def test_a_hard_link_is_another_place_and_the_same_content(gate: Gate) -> None:
    programs, project = gate.fence.programs, gate.project
    tools = gate.fence.ground.make(project / "tools")
    shutil.copy(programs.forbidden, tools / "tool")
    gate.fence.tester.give(project)
    (project / "linked").hardlink_to(tools / "tool")
    (tools / "same").hardlink_to(tools / "tool")
    control = gate.without(["bash", "-c", "./linked x; tools/same x"])
    assert gate.ran() == ["forbidden x"] * 2, str(control)
    more = f'[[rule]]\nid = "tools"\naction = "allow"\nexe_glob = "{tools}/**"\n'
    denied = rule("no-tool", "deny", exe=str(tools / "tool"))
    outcome = gate.shell("./linked x; tools/tool x; echo done", denied, more)
    assert gate.ran() == [], str(outcome)
    assert outcome.stdout == "done\n", str(outcome)
    # By its name alone it runs under another one in a place that a rule allows; by its content it
    # does not.
    outcome = gate.shell("tools/same x", denied, more)
    assert gate.ran() == ["forbidden x"], str(outcome)
    digest = (
        shutil.which("sha256sum")
        and gate.fence.outside(["sha256sum", tools / "tool"]).stdout.split()[0]
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
    gate.fence.ground.put(gate.project / "script", f"#!{busybox} rm\n", mode=0o755)
    for way in [*ways, "./script victim"]:
        victim = gate.fence.ground.put(gate.project / "victim", "x")
        gate.fence.ground.put(gate.project / "script", f"#!{busybox} rm\n", mode=0o755)
        control = gate.without(["bash", "-c", way])
        assert not victim.exists(), str(control)
        gate.fence.ground.put(victim, "x")
        gate.fence.ground.put(gate.project / "script", f"#!{busybox} rm\n", mode=0o755)
        allowed = rule("own", "allow", exe_glob=f"{gate.project}/*")
        outcome = gate.inside(["bash", "-c", way], no_rm, allowed)
        assert victim.exists(), str(outcome)
        assert outcome.exit_code == 126, str(outcome)


def test_the_interpreter_arguments_of_a_first_line_are_judged(gate: Gate) -> None:
    programs = gate.fence.programs
    denied = rule("no-word", "deny", exe=str(programs.allowed), argv_regex="^mark-a forbid")
    own = rule("own", "allow", exe_glob=f"{gate.project}/*")
    gate.fence.ground.put(gate.project / "wrap", f"#!{programs.allowed} forbid\n", mode=0o755)
    control = gate.without(["bash", "-c", "./wrap x"])
    assert gate.ran() == ["allowed forbid ./wrap x"], str(control)
    outcome = gate.inside(["bash", "-c", "./wrap x"], denied, own)
    assert gate.ran() == [], str(outcome)
    assert outcome.exit_code == 126, str(outcome)
    # Its own name is an argument too.
    gate.fence.ground.put(gate.project / "forbid", f"#!{programs.allowed}\n", mode=0o755)
    outcome = gate.inside(gate.fence.probe("exec", "forbid"), denied, own)
    assert gate.ran() == [], str(outcome)
    gate.fence.ground.put(gate.project / "wrap", f"#!{programs.allowed} fine\n", mode=0o755)
    outcome = gate.inside(["bash", "-c", "./wrap x"], denied, own)
    assert gate.ran() == ["allowed fine ./wrap x"], str(outcome)
    why: list[Word] = [
        gate.fence.installation.paddock,
        "why",
        "--policy",
        gate.policy(denied, own),
        "--exec",
        "./wrap",
    ]
    assert gate.fence.outside(why).exit_code == 0
    gate.fence.ground.put(gate.project / "wrap", f"#!{programs.allowed} forbid\n", mode=0o755)
    assert gate.fence.outside(why).exit_code == 1


@pytest.mark.parametrize("architecture", ["i386", "x32"])
def test_calls_by_another_architecture_end_the_caller(gate: Gate, architecture: str) -> None:
    outcome = gate.inside(
        gate.fence.probe("exec-foreign", architecture, gate.fence.programs.forbidden),
        gate.forbidding,
    )
    assert outcome.answer == "killed 31", str(outcome)
    assert gate.ran() == []


def test_namespaces_of_its_own_and_rules_are_not_held_together(gate: Gate) -> None:
    """Inside them a loader, or any other file, can stand in a program's place."""
    words = gate.fence.probe("exec", gate.fence.programs.allowed, "x")
    outcome = gate.inside(words, gate.forbidding, more="[syscalls]\nnamespaces = true\n")
    assert outcome.exit_code == 125, str(outcome)
    assert "a command could mount other files over programs" in outcome.stderr
    assert gate.ran() == []
    assert gate.inside(words, gate.forbidding).exit_code == 0
    assert gate.ran() == ["allowed x"]


def test_a_caller_that_is_traced_is_refused_unless_the_policy_gives_that_up(gate: Gate) -> None:
    programs = gate.fence.programs
    words = gate.fence.probe("exec-traced", programs.allowed, "x")
    assert gate.fence.outside(words).answer == "ok 0"
    assert gate.ran() == ["allowed x"]
    assert gate.inside(words, gate.forbidding).answer == "EPERM"
    trace = "[syscalls]\ntrace = true\n"
    outcome = gate.inside(words, gate.forbidding, more=trace)
    assert outcome.answer == "ok 0", str(outcome)
    assert gate.ran() == ["allowed x"], str(outcome)
    assert "programs may trace each other" in outcome.stderr, str(outcome)
    event = [event for event in gate.execs() if event["exe"] == str(programs.allowed)][-1]
    assert (event["ran"], event["verified"]) == (True, False)
    # What is denied stays so.
    outcome = gate.inside(
        gate.fence.probe("exec-traced", programs.forbidden, "x"), gate.forbidding, more=trace
    )
    assert outcome.answer == "EACCES", str(outcome)
    assert gate.ran() == []


def test_strace_works_where_the_policy_lets_it(gate: Gate) -> None:
    need_program("strace")
    words: list[Word] = [
        "strace",
        "-f",
        "-o",
        "trace",
        "sh",
        "-c",
        f"{gate.fence.programs.allowed} x",
    ]
    outcome = gate.inside(words, gate.forbidding, more="[syscalls]\ntrace = true\n")
    assert gate.ran() == ["allowed x"], str(outcome)
    assert "execve(" in (gate.project / "trace").read_text()
    outcome = gate.inside(words, gate.forbidding)
    assert gate.ran() == [], str(outcome)
    assert outcome.exit_code != 0, str(outcome)


def test_a_caller_that_is_traced_although_nothing_was_given_up_is_told_why(
    fence: Fence, host: dict[str, Any]
) -> None:
    """No policy leaves ptrace open without the switch; a plan can."""
    gate, programs = Gate(fence=fence), fence.programs
    plan = core.plan_for(
        fence.tester,
        gate.project,
        landlock_abi=host["landlock_abi"],
        read=[programs.directory],
        allow=[gate.project],
    )
    held = {
        "default": "allow", "on_error": "deny", "timeout_ms": 1000, "ask_timeout_s": 1,
        "trace": False, "exec_only_granted": False, "rules": [], "approved": [],
    }  # fmt: skip
    words = [str(word) for word in fence.probe("exec-traced", programs.allowed, "x")]
    control = core.run_core(fence.tester, fence.installation.core, plan, words)
    assert control.answer == "ok 0", str(control)
    assert gate.ran() == ["allowed x"]
    outcome = core.run_core(
        fence.tester, fence.installation.core, core.changed(plan, gate=held), words
    )
    assert outcome.answer == "EACCES", str(outcome)
    assert gate.ran() == []
    assert "another program traces it" in outcome.stderr, str(outcome)
