"""Random hours at a terminal: questions, answers, other keys, window sizes, Ctrl-Z and the end of
the terminal, in random order. The host looks at files: an allowed program ran, a denied one did
not, and no typed answer has reached a command.
"""

from __future__ import annotations

import os
import random
import shlex
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support import pty_screen, stress, tester
from tests.support.features import need
from tests.support.outside_targets import alive
from tests.support.pty_screen import PtyScreen
from tests.support.sandbox import SandboxRunner
from tests.support.waiting import wait_for

SEQUENCES = stress.amount(ordinary=3, first=5, more=13)  # in each tier
QUESTIONS = 4  # in one run
LATE_S = 2  # time for an answer in a run in which no question is answered in time

POLICY = """
[meta]
inherit = "ai-agent"
default_action = "allow"
ask_timeout_s = TIMEOUT

[[rule]]
id = "touching-asks"
action = "ask"
exe_basename = "touch"
"""
ASKED = "once, session, always or deny? (type the whole word; Enter: deny)"
CONFIRM = "write this rule? yes, Enter: no"
WORDS = ("once", "yes", "session", "always", "deny", "no", "n", "on", "ce", "nay")

ASKS = """
for n in NUMBERS; do
  until test -e go-$n; do sleep 0.02; done
  touch made-$n
  echo $? > new-$n
  mv new-$n done-$n
done
"""
# Reads lines all the time, while another process asks.
LINES = f'{{ {ASKS} }} & echo up-$((40+2)); while read -r x; do echo "$x" >> lines; done'
# Reads keys in raw mode.
KEYS = """
import os, subprocess, tty
asks = subprocess.Popen(["sh", "asks"], stdin=subprocess.DEVNULL)
tty.setraw(0)
os.write(1, b"up-42\\r\\n")
while (key := os.read(0, 1)) not in (b"", b"q"):
    with open("keys", "ab") as file:
        file.write(key)
"""


@dataclass(slots=True, kw_only=True)
class Hour:
    """One run at one terminal."""

    sandbox: SandboxRunner
    screen: PtyScreen
    seeds: random.Random
    kind: str
    late: bool
    typed: list[str] = field(default_factory=list)  # the text that the command has to get

    @property
    def project(self) -> Path:
        return self.sandbox.tree.project

    def play(self) -> None:
        self.start()
        for number in range(QUESTIONS):
            self.use_command(number)
            self.ask(number)
            self.disturb()
            if number == QUESTIONS - 1 and self.seeds.random() < 0.3:
                self.screen.type(self.seeds.choice(["", "on", "yes"]))
                return self.hang_up()
            allowed = self.be_late() if self.late else self.answer()
            assert self.result(number) == allowed, self.screen.output[-3000:]
            self.screen.resize(100, 30)
        self.use_command(QUESTIONS)
        if self.seeds.random() < 0.5:
            return self.hang_up()
        end = {"lines": "\x04", "keys": "q", "shell": "exit\n"}[self.kind]
        self.screen.type(end)
        self.screen.shows("outer$ ")
        self.screen.type("echo ended-$((1+1))\n")
        self.screen.shows("ended-2")
        return None

    def start(self) -> None:
        numbers = " ".join(map(str, range(QUESTIONS)))
        put, project = self.sandbox.tree.put, self.project
        put(project / "asks", ASKS.replace("NUMBERS", numbers))
        put(project / "lines.sh", LINES.replace("NUMBERS", numbers))
        put(project / "keys.py", KEYS)
        command = {
            "lines": ["sh", "lines.sh"],
            "keys": ["python3", "keys.py"],
            "shell": ["bash", "--norc", "--noprofile", "-i"],
        }[self.kind]
        timeout_s = str(LATE_S if self.late else 100)
        policy = put(self.sandbox.tree.root / "p.toml", POLICY.replace("TIMEOUT", timeout_s))
        words = self.sandbox.command(
            command, "--policy", policy, "--quiet", "-r", f"{self.sandbox.tree.root}/words/**"
        )
        put(self.sandbox.tree.root / "start", shlex.join(map(os.fsdecode, words)) + "\n")
        self.screen.type("PS1='outer''$ '\n")
        self.screen.shows("outer$ ")
        self.screen.type(". ../start\n")
        if self.kind == "shell":
            self.screen.type("PS1='inner''$ '; echo up-$((40+2))\n")
        self.screen.shows("up-42")
        if self.kind == "shell":
            self.screen.shows("inner$ ")

    def use_command(self, number: int) -> None:
        """The command reads what is typed while no question is open, also after Ctrl-Z."""
        if self.kind == "lines" and self.seeds.random() < 0.4:
            self.screen.type("\x1a")
            self.screen.shows("outer$ ")
            self.screen.type("fg\n")
            self.screen.shows("-- sh lines.sh")
            self.until_foreground()
        if self.kind == "shell":
            self.screen.type(f"echo back-{number}-$((1+1))\n")
            self.screen.shows(f"back-{number}-2")
            return self.screen.shows("inner$ ")
        text = f"text-{number}-{self.seeds.random()}"
        self.screen.type(text + ("\n" if self.kind == "lines" else ""))
        self.typed.append(text)
        wait_for(lambda: self.read() == self.typed_text(), f"the command has read {text}")
        return None

    def until_foreground(self) -> None:
        """After ``fg``, the shell outside has passed on the terminal."""
        shell = self.screen.process.pid
        wait_for(lambda: self.screen.foreground() != shell, "the job has the terminal")

    def typed_text(self) -> str:
        return "".join(text + "\n" * (self.kind == "lines") for text in self.typed)

    def read(self) -> str:
        file = self.project / self.kind
        return file.read_text() if file.exists() else ""

    def ask(self, number: int) -> None:
        go = self.project / f"go-{number}"
        if self.kind != "shell":
            self.sandbox.tree.put(go)
        elif self.seeds.random() < 0.5:  # the shell waits for a job in the foreground
            self.screen.type(f"touch made-{number}; echo $? > done-{number}\n")
        else:  # the shell is at its prompt
            asks = f"until test -e go-{number}; do sleep 0.02; done; touch made-{number}"
            self.screen.type(f"({asks}; echo $? > done-{number}) &\n")
            self.screen.shows("inner$ ")
            self.sandbox.tree.put(go)
        self.screen.shows(f"│ touch made-{number}")
        self.screen.shows(ASKED)

    def disturb(self) -> None:
        acts: list[Callable[[], None]] = [self.enlarge, self.shrink, self.say_nothing]
        for act in self.seeds.choices(acts, k=0 if self.late else self.seeds.randrange(3)):
            act()

    def enlarge(self) -> None:
        self.screen.resize(self.seeds.randrange(101, 200), self.seeds.randrange(31, 60))
        self.screen.shows(ASKED)

    def shrink(self) -> None:
        self.screen.resize(20, 5)
        self.screen.shows("make the window larger")
        self.screen.type("once\n")  # what is not on the screen can not be allowed
        self.screen.shows("make the window larger")
        self.screen.resize(self.seeds.randrange(60, 99), self.seeds.randrange(20, 29))
        self.screen.shows(ASKED)

    def say_nothing(self) -> None:
        self.screen.type(self.seeds.choice(["nay\n", "\x1a\n", "w\n", "on\x1a\n", "explain\n"]))
        self.screen.shows(ASKED)

    def answer(self) -> bool:
        how = self.seeds.choice(["once", "yes", "session", "always", "", "no", "deny", "^C", "^D"])
        if how == "always":
            self.screen.type("always\n")
            self.screen.shows(CONFIRM)
            if self.seeds.random() < 0.3:
                self.screen.type("\n")
                self.screen.shows(ASKED)
                how = "once"
            else:
                how = "yes"
        keys = {"^C": "\x03", "^D": "\x04"}.get(how, f"{how}\n")
        self.screen.type(keys)
        return how in ("once", "yes", "session")

    def be_late(self) -> bool:
        """A person is typing an answer when the question times out."""
        first, rest = self.seeds.choice([("on", "ce"), ("yes", ""), ("", "yes"), ("n", "o")])
        self.screen.type(first)
        self.screen.shows("the question is gone")
        self.screen.type(f"{rest}\n")
        return False

    def result(self, number: int) -> bool:
        done = self.project / f"done-{number}"
        wait_for(
            lambda: self.screen.read() or (done.exists() and done.read_text()) or None,
            f"question {number} has its answer",
        )
        wait_for(lambda: done.exists() and done.read_text(), f"question {number} has its answer")
        made = (self.project / f"made-{number}").exists()
        assert done.read_text().strip() == ("0" if made else "126")
        approver = self.approver()
        wait_for(
            lambda: approver is None or self.screen.foreground() != approver,
            "the command has the terminal again",
        )
        return made

    def children(self) -> list[int]:
        """All processes below the shell outside."""
        children = _children(self.screen.process.pid)
        for pid in children:
            children += _children(pid)
        return children

    def approver(self) -> int | None:
        for pid in self.children():
            if b"\0companion\0--socket\0" in _read(Path(f"/proc/{pid}/cmdline")):
                return pid
        return None

    def hang_up(self) -> None:
        processes = [self.screen.process.pid, *self.children()]
        assert len(processes) > 3, processes
        self.screen.close()
        wait_for(lambda: not any(map(alive, processes)), "the run ends with its terminal")

    def check(self) -> None:
        ran = self.project / "ran"
        assert not ran.exists(), f"typed as an answer, and executed: {ran.read_text()}"
        assert self.read() == self.typed_text()


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def _children(pid: int) -> list[int]:
    return [
        int(child)
        for task in Path(f"/proc/{pid}/task").glob("*/children")
        for child in _read(task).split()
    ]


@pytest.fixture(params=["sandbox", "full"])
def runner(request: pytest.FixtureRequest) -> Iterator[SandboxRunner]:
    found: SandboxRunner = request.getfixturevalue(request.param)
    need("root", found.tester.disposable, "the tests do not write approvals of an ordinary user")
    yield found
    _forget_rules(found)


def _forget_rules(runner: SandboxRunner) -> None:
    """``always`` wrote them."""
    shutil.rmtree(runner.tester.home / ".config" / "paddock", ignore_errors=True)


def test_no_answer_reaches_a_command_and_no_question_freezes(runner: SandboxRunner) -> None:
    seeds = stress.seed_source(20)
    for number in range(SEQUENCES):
        play(runner, seeds.randrange(1 << 32), ("lines", "keys", "shell")[number % 3])


def play(runner: SandboxRunner, seed: int, kind: str) -> None:
    seeds = random.Random(seed)
    project = runner.tree.project
    _forget_rules(runner)
    shutil.rmtree(project)
    runner.tree.make(project)
    words = runner.tree.root / "words"
    for word in WORDS:
        runner.tree.put(words / word, f"#!/bin/sh\necho {word} >> {project}/ran\n", mode=0o755)
    environment = {"TERM": "screen", "PATH": f"{words}:{tester.SEARCH_PATH}"}
    shell = ["bash", "--norc", "--noprofile", "-i"]
    opened = pty_screen.opened(runner.tester, shell, cwd=project, env=environment)
    with opened as screen:
        late = seeds.random() < 0.15
        hour = Hour(sandbox=runner, screen=screen, seeds=seeds, kind=kind, late=late)
        try:
            hour.play()
            hour.check()
        except BaseException:
            print(f"seed {seed}, {kind}\n{screen.output[-6000:]}")
            raise
