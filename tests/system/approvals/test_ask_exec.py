"""A rule asks and a person answers. A real `git push` waits for the answer, and other commands
continue.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support import journal, terminal
from tests.support.features import need, need_program
from tests.support.outside_targets import alive
from tests.support.sandbox import SandboxRunner, Word
from tests.support.terminal import Screen
from tests.support.tester import Outcome
from tests.support.waiting import wait_for

POLICY = """
[meta]
inherit = "ai-agent"
default_action = "allow"
ask_timeout_s = TIMEOUT

[[rule]]
id = "never-by-force"
action = "deny"
exe_basename = "git"
argv_contains = "--force"

[[rule]]
id = "push-asks"
action = "ask"
exe_basename = "git"
argv_regex = '^git push( |$)'
reason = "leaves the machine"
"""
ASKED = "once, session, always or deny? (type the whole word; Enter: deny)"
PUSH = "git push -q remote.git main"
WAIT = "while ! test -e go; do sleep 0.05; done"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    sandbox: SandboxRunner
    policy: Path
    approved: Path

    @property
    def project(self) -> Path:
        return self.sandbox.tree.project

    def pushed(self) -> bool:
        """Whether the host has received the push."""
        return (self.project / "remote.git" / "refs" / "heads" / "main").exists()

    def go(self) -> None:
        """Releases the command that waits inside (``WAIT``)."""
        self.sandbox.tree.put(self.project / "go")

    def take_back(self) -> None:
        (self.project / "remote.git" / "refs" / "heads" / "main").unlink()

    def command(self, words: list[Word], *, quiet: bool = True) -> list[Word]:
        flags: list[Word] = ["--policy", self.policy, *(["--quiet"] if quiet else [])]
        return self.sandbox.command(words, *flags)

    def run(self, words: list[Word], *flags: Word, **rest: Any) -> Outcome:
        return self.sandbox.inside(words, "--policy", self.policy, *flags, **rest)

    def events(self) -> list[dict[str, Any]]:
        return [
            event
            for event in journal.events(self.sandbox.journal)
            if event["event"].startswith("exec")
        ]

    @contextmanager
    def at_terminal(self, script: str) -> Iterator[Screen]:
        """A shell outside runs the script inside, so that its job control is tested too."""
        self.sandbox.tree.put(self.project / "script", f"echo up-$((40+2))\n{script}\n")
        self.sandbox.tree.put(
            self.sandbox.tree.root / "start", "exec " + _joined(self.command(["sh", "script"]))
        )
        outer = ["bash", "--norc", "--noprofile", "-i"]
        with terminal.opened(self.sandbox.tester, outer, cwd=self.project) as screen:
            screen.line("PS1='outer$ '; echo shell-$((1+1))")
            screen.shows("shell-2")
            screen.line("sh ../start; echo ended-$?")
            screen.shows("up-42")
            yield screen

    def companion(self) -> int:
        """The process of the approver."""
        found = [
            int(entry.parent.name)
            for entry in Path("/proc").glob("[0-9]*/cmdline")
            if b"\0companion\0--socket\0" in _content(entry)
            and entry.stat().st_uid == self.sandbox.tester.uid
        ]
        (pid,) = [pid for pid in found if alive(pid)]
        return pid


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def _joined(words: list[Word]) -> str:
    return shlex.join(os.fsdecode(word) for word in words)


@pytest.fixture(params=["sandbox", "full"])
def asking(request: pytest.FixtureRequest) -> Iterator[Asking]:
    sandbox: SandboxRunner = request.getfixturevalue(request.param)
    need(
        "root",
        sandbox.tester.disposable,
        "the tests do not write approvals of an ordinary user",
    )
    need_program("git")
    tree = sandbox.tree
    setup = (
        "git init -q -b main . && git init -q --bare -b main remote.git && "
        "git -c user.name=a -c user.email=a@b commit -q --allow-empty -m one"
    )
    assert sandbox.outside(["sh", "-c", setup]).exit_code == 0
    config = sandbox.tester.home / ".config" / "paddock"
    shutil.rmtree(config, ignore_errors=True)
    assert sandbox.outside(["mkdir", "-p", config]).exit_code == 0
    policy = tree.put(tree.root / "p.toml", POLICY.replace("TIMEOUT", "60"))
    yield Asking(sandbox=sandbox, policy=policy, approved=config / "approved.toml")
    shutil.rmtree(config, ignore_errors=True)


def asked(screen: Screen, what: str = PUSH) -> None:
    screen.shows(ASKED)
    screen.shows(f"│ {what}")


def test_control_push_works_without_the_rule(asking: Asking) -> None:
    run = asking.sandbox.inside(["sh", "-c", PUSH])
    assert (run.exit_code, asking.pushed()) == (0, True), run


def test_answer_once_is_valid_for_one_call(asking: Asking) -> None:
    script = f"{PUSH}; echo first-$?; {PUSH}; echo second-$?"
    with asking.at_terminal(script) as screen:
        asked(screen)
        assert not asking.pushed()
        screen.line("once")
        screen.shows("first-0")
        assert asking.pushed()
        asked(screen)
        screen.line("d")
        screen.shows("second-126")
        screen.shows("ended-0")
        assert "Stopped" not in screen.text()
    decisions = [(event["action"], event["rule_id"], event.get("by")) for event in asking.events()]
    assert ("allow", "push-asks", "terminal") in decisions
    assert ("deny", "push-asks", "terminal") in decisions


def test_answer_session_is_valid_until_the_run_ends(asking: Asking) -> None:
    script = (
        f"{PUSH}; echo first-$?; {PUSH}; echo second-$?; git push -q remote.git main:other; "
        f"echo third-$?"
    )
    with asking.at_terminal(script) as screen:
        asked(screen)
        screen.line("session")
        screen.shows("second-0")
        asked(screen, "git push -q remote.git main:other")
        screen.key("C-c")
        screen.shows("third-126")
        screen.shows("ended-0")
    with asking.at_terminal(f"{PUSH}; echo again-$?") as screen:
        asked(screen)
        screen.key("C-d")
        screen.shows("again-126")


def test_answer_always_is_valid_for_every_run_but_not_against_a_deny(asking: Asking) -> None:
    with asking.at_terminal(f"{PUSH}; echo first-$?") as screen:
        asked(screen)
        screen.line("always")
        wait_for(lambda: "write this rule? yes" in screen.text(), "the rule is shown")
        screen.line("yes")
        screen.shows("first-0")
    assert (asking.approved.stat().st_mode & 0o777, asking.approved.stat().st_uid) == (
        0o600,
        asking.sandbox.tester.uid,
    )
    # Without a terminal no person can be asked.
    assert asking.run(["sh", "-c", PUSH]).exit_code == 0
    assert asking.run(["sh", "-c", "git push -q remote.git main:other"]).exit_code == 126
    assert asking.run(["sh", "-c", "git push --force -q remote.git main"]).exit_code == 126
    why: list[Word] = [
        asking.sandbox.installation.paddock,
        "why",
        "--tier",
        asking.sandbox.tier,
        "--policy",
        asking.policy,
    ]
    shown = asking.sandbox.tester.run([*why, "--exec", PUSH], cwd=asking.project)
    assert shown.exit_code == 0
    assert (
        f"because: approved earlier ({asking.approved}:1); rule 'push-asks' ({asking.policy}:"
        in shown.stdout
    )
    other = asking.sandbox.tester.run([*why, "--exec", "git push"], cwd=asking.project)
    assert (other.exit_code, other.stdout.startswith("asked about: ")) == (1, True), other
    explained = asking.sandbox.tester.run(
        [asking.sandbox.installation.paddock, "explain", "--policy", asking.policy],
        cwd=asking.project,
    )
    assert f"{asking.approved}:1" in explained.stdout
    # A plan compiled with the file is not reused without the file, nor with another text in it.
    text = asking.approved.read_text()
    asking.approved.write_text("")
    assert asking.run(["sh", "-c", PUSH]).exit_code == 126
    asking.approved.write_text(text)
    assert asking.run(["sh", "-c", PUSH]).exit_code == 0
    asking.approved.unlink()
    assert asking.run(["sh", "-c", PUSH]).exit_code == 126


def test_an_approval_that_a_command_writes_is_ignored(asking: Asking) -> None:
    """The path of the file is closed under every grant."""
    home = asking.sandbox.tester.home
    rule = '[[rule]]\\nid = "x"\\naction = "allow"\\nexe = "/usr/bin/git"\\n'
    script = (
        f"echo started; mkdir -p {asking.approved.parent}; "
        f"printf '{rule}' > {asking.approved}; "
        f"{PUSH}"
    )
    run = asking.run(["sh", "-c", script], "-a", f"{home}/.config/**")
    assert (run.started, run.exit_code, asking.pushed(), asking.approved.exists()) == (
        True,
        126,
        False,
        False,
    ), run
    control = asking.sandbox.outside(["sh", "-c", script.removesuffix(PUSH)])
    assert control.exit_code == 0
    assert asking.run(["sh", "-c", PUSH]).exit_code == 0
    assert asking.pushed()


def test_without_a_terminal_no_question_is_asked(asking: Asking) -> None:
    run = asking.run(["sh", "-c", f"{PUSH}; echo $?"])
    assert (run.stdout, asking.pushed()) == ("126\n", False), run
    assert "no approver is available: no terminal is available for the question" in run.stderr


def test_a_question_without_an_answer_in_time_is_denied(asking: Asking) -> None:
    asking.policy.write_text(POLICY.replace("TIMEOUT", "2"))
    with asking.at_terminal(f"{PUSH}; echo late-$?; read x; echo got-$x") as screen:
        asked(screen)
        screen.shows("late-126")
        wait_for(lambda: ASKED not in screen.text(), "the question has left the screen")
        screen.line("word")
        screen.shows("got-word")
    assert not asking.pushed()


def test_a_killed_caller_takes_its_question_with_it(asking: Asking) -> None:
    script = f"sh -c 'echo $$ > pid; exec {PUSH}'; echo killed-$?; read x; echo got-$x"
    with asking.at_terminal(script) as screen:
        asked(screen)
        (caller,) = [
            pid
            for pid in screen.processes()
            if _content(Path(f"/proc/{pid}/cmdline")).startswith(b"sh\0-c\0echo $$")
        ]
        os.kill(caller, signal.SIGKILL)
        screen.shows("killed-137")
        wait_for(lambda: ASKED not in screen.text(), "the question has left the screen")
        screen.line("word")
        screen.shows("got-word")


def test_end_of_the_approver_denies_and_restores_the_terminal(asking: Asking) -> None:
    script = f"{PUSH}; echo first-$?; {PUSH}; echo second-$?; read x; echo got-$x"
    with asking.at_terminal(script) as screen:
        asked(screen)
        os.kill(asking.companion(), signal.SIGKILL)
        screen.shows("first-126")
        screen.shows("second-126")
        screen.line("word")
        screen.shows("got-word")
        screen.shows("ended-0")
    assert not asking.pushed()


def test_a_shell_at_its_prompt_is_asked_about_its_background_job(asking: Asking) -> None:
    """The shell reads all the time, and would end if it lost its terminal."""
    argv = [str(word) for word in asking.command(["bash", "--norc", "--noprofile", "-i"])]
    with terminal.opened(asking.sandbox.tester, argv, cwd=asking.project) as screen:
        screen.line("PS1='inner$ '; echo up-$((40+2))")
        screen.shows("up-42")
        screen.line(f"({WAIT}; {PUSH}; echo pushed-$?) &")
        screen.prompts("inner$")
        asking.go()
        asked(screen)
        screen.line("once")
        screen.shows("pushed-0")
        screen.line("echo still-$((1+1))")
        screen.shows("still-2")


# A terminal program in raw mode that polls for keys all the time.
KEYS = """
import os, select, termios, tty
old = termios.tcgetattr(0)
tty.setraw(0)
os.write(1, b"keys-up\\r\\n")
while b"q" not in (key := os.read(0, 1) if select.select([0], [], [])[0] else b""):
    with open("keys", "ab") as file:
        file.write(key)
termios.tcsetattr(0, termios.TCSANOW, old)
"""


def test_a_program_that_reads_keys_gets_all_input_but_the_answers(
    asking: Asking,
) -> None:
    """The program wakes with every answer, tries to read and is stopped. The shell outside must not
    read that as Ctrl-Z.
    """
    asking.sandbox.tree.put(asking.project / "keys.py", KEYS)
    pushes = f"n=0; while [ $n -lt 10 ]; do n=$((n+1)); {PUSH}; echo answered-$n-$?; done"
    with asking.at_terminal(
        f"python3 keys.py < /dev/tty & {{ {WAIT}; {pushes}; }} & wait"
    ) as screen:
        screen.shows("keys-up")
        asking.go()
        for number in range(1, 11):
            wait_for(lambda: screen.text().count(ASKED) == 1, "the question is there")
            screen.line("once")
            wait_for(lambda n=number: f"answered-{n}-0" in screen.text(), "it ran")  # type: ignore[misc]
        screen.type("key")
        wait_for(
            lambda: (
                (asking.project / "keys").exists()
                and (asking.project / "keys").read_text() == "key"
            ),
            "keys",
        )
        screen.type("q")
        screen.shows("ended-0")
        assert "Stopped" not in screen.text()


DISTURBS = """
import os, signal, sys, termios, time
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
fd = os.open("/dev/tty", os.O_RDWR)
how = sys.argv[1]
open("disturbing", "w").close()
before = termios.tcgetattr(fd)
until = time.monotonic() + 120
while time.monotonic() < until and not os.path.exists("enough"):
    settings = termios.tcgetattr(fd)
    if how == "raw":
        settings[3] &= ~termios.ICANON
    elif how == "kill":
        settings[6][termios.VKILL] = settings[6][termios.VERASE] = b"n"
    if how == "take":
        os.setpgid(0, 0)
        os.tcsetpgrp(fd, os.getpgrp())
    else:
        termios.tcsetattr(fd, termios.TCSANOW, settings)
    time.sleep(0.001)
termios.tcsetattr(fd, termios.TCSANOW, before)
"""


@pytest.mark.parametrize(("how", "typed"), [("raw", "on"), ("kill", "nay"), ("take", "nay")])
def test_terminal_modes_set_by_a_command_do_not_answer_a_question(
    asking: Asking, how: str, typed: str
) -> None:
    """A background process that ignores SIGTTOU may set the terminal: each key is then a line, or
    letters vanish.
    """
    asking.sandbox.tree.put(asking.project / "disturbs.py", DISTURBS)
    script = (
        f"python3 disturbs.py {how} & while ! test -e disturbing; do sleep 0.1; done; "
        f"{PUSH}; "
        f"echo push-$?; wait"
    )
    with asking.at_terminal(script) as screen:
        asked(screen)
        screen.type(typed)
        wait_for(
            lambda: (
                typed.strip() in screen.text().rpartition("deny)")[2]
                or screen.text().count(ASKED) > 1
            ),
            "typed",
        )
        screen.type("\n")
        wait_for(lambda: screen.text().count(ASKED) > 1, "it is asked again")
        assert not asking.pushed()
        screen.line("d")
        screen.shows("push-126")
        asking.sandbox.tree.put(asking.project / "enough")
        screen.shows("ended-0")
    assert not asking.pushed()
    assert not asking.approved.exists()


TAKES = """
import os, select
if os.fork():
    os._exit(0)
os.setsid()
open("taking", "w").close()
select.select([0], [], [], 120)
letter = os.read(0, 1)
open("taken", "wb").write(letter)
"""


def test_a_command_that_reads_typed_letters_cannot_turn_no_into_yes(asking: Asking) -> None:
    """A process outside the session is not stopped when it reads the terminal."""
    asking.sandbox.tree.put(asking.project / "takes.py", TAKES)
    script = (
        f"python3 takes.py < /dev/tty; while ! test -e taking; do sleep 0.1; done; {PUSH}; "
        f"echo push-$?"
    )
    with asking.at_terminal(script) as screen:
        asked(screen)
        # The first reader gets the line. For both readers it is not an answer.
        for number in range(2, 12):
            screen.line("nay")  # the question is asked again after an invalid answer
            wait_for(lambda n=number: screen.text().count(ASKED) >= n, "it is asked again")  # type: ignore[misc]
            assert not asking.pushed()
            if (asking.project / "taken").exists():
                break
        assert (asking.project / "taken").read_bytes() == b"n", "the control: a letter was taken"
        screen.line("deny")
        screen.shows("push-126")
        screen.shows("ended-0")
    assert not asking.pushed()


def test_a_terminal_whose_output_was_stopped_shows_the_question(asking: Asking) -> None:
    stop = "import termios; termios.tcflow(0, termios.TCOOFF)"
    with asking.at_terminal(f"python3 -c '{stop}' < /dev/tty; {PUSH}; echo push-$?") as screen:
        asked(screen)
        screen.line("once")
        screen.shows("push-0")
        screen.shows("ended-0")
    assert asking.pushed()


def test_the_end_of_the_run_takes_the_question_away(asking: Asking) -> None:
    with asking.at_terminal(f"({PUSH}) & {WAIT}; echo done-$((1+1))") as screen:
        asked(screen)
        asking.go()
        screen.shows("ended-0")
        screen.line("echo shell-$((2+2))")
        screen.shows("shell-4")
        assert ASKED not in screen.text()
    assert not asking.pushed()


def test_a_question_does_not_stop_other_processes(asking: Asking) -> None:
    with asking.at_terminal(
        f"{PUSH} & for i in 1 2 3; do env true; done; echo others-$?; wait"
    ) as screen:
        asked(screen)
        screen.shows("others-0")
        screen.line("once")
        screen.shows("ended-0")


# --- the API

PROGRAM = """
import json, os, sys, threading
import paddock
command, policy, how = sys.argv[1:]
lock, seen = threading.Lock(), []
def approve(question):
    with lock:
        seen.append(question.argv[1:])
    if how == "raise":
        raise ZeroDivisionError("mine")
    if how == "hold":
        gate.wait()
    return paddock.Verdict(how) if how != "hold" else paddock.Verdict.ONCE
gate = threading.Event()
if how == "hold":
    def release():
        while not os.path.exists("release"):
            gate.wait(0.05)
        gate.set()
    threading.Thread(target=release, daemon=True).start()
try:
    result = paddock.run_sync(command, policy=policy, approver=approve)
    print(json.dumps({"code": result.exit_code, "seen": len(seen)}))
except ZeroDivisionError as error:
    print(json.dumps({"raised": str(error), "seen": len(seen)}))
"""


def api(asking: Asking, command: str, how: str) -> Any:
    program = asking.sandbox.tree.put(asking.sandbox.tree.root / "program.py", PROGRAM)
    python = asking.sandbox.installation.paddock.with_name("python")
    run = asking.sandbox.tester.run(
        [python, program, command, asking.policy, how], cwd=asking.project
    )
    assert run.exit_code == 0, run
    return json.loads(run.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    ("how", "answered"),
    [
        ("once", {"code": 0, "seen": 2}),
        ("session", {"code": 0, "seen": 1}),
        ("deny", {"code": 126, "seen": 2}),
        ("raise", {"raised": "mine", "seen": 2}),
    ],
)
def test_a_callback_answers_questions_of_a_run(
    asking: Asking, how: str, answered: dict[str, Any]
) -> None:
    assert api(asking, f"{PUSH}; {PUSH}", how) == answered
    assert asking.pushed() == (how in ("once", "session"))


def test_hundreds_of_open_questions_do_not_stop_other_programs(asking: Asking) -> None:
    """300 questions are open at once, and no answer comes until 100 other programs have run."""
    asked_of = "; ".join(
        ["n=0", "while [ $n -lt 300 ]; do n=$((n+1)); git push --dry-run $n 2>/dev/null & done"]
    )
    others = "n=0; while [ $n -lt 100 ]; do n=$((n+1)); env true || exit 9; done; touch release"
    result = api(asking, f"{asked_of}; {others}; wait", "hold")
    assert result == {"code": 0, "seen": 300}
