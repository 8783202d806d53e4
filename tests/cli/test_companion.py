"""The companion asks a person at a real terminal. The test plays the core. The command reads
lines.
"""

from __future__ import annotations

import os
import shlex
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support import terminal
from tests.support.sandbox import SandboxRunner
from tests.support.terminal import Screen
from tests.support.waiting import wait_for
from tests.unit.approve.questions import Core, question, tool

# As paddock-core starts it: a child in a group of its own, with the socket; and the core itself,
# which no signal stops.
CORE = """
import os, signal, socket, subprocess, sys
python, script, path, *command = sys.argv[1:]
line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
line.connect(path)
held = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
def released():
    signal.pthread_sigmask(signal.SIG_SETMASK, held)
words = [python, "-E", "-P", "-s", script, "companion", "--socket", str(line.fileno())]
companion = subprocess.Popen(words, pass_fds=[line.fileno()], process_group=0, preexec_fn=released)
line.close()
status = subprocess.Popen(command, preexec_fn=released).wait()
companion.wait()
sys.exit(status)
"""
READER = "stty -echo; echo up-$((40+2)); while read x; do echo got-$x; done"
RAW = (
    "stty raw -echo; echo up-$((40+2)); dd bs=1 count=1 of=key 2>/dev/null; stty sane; "
    "echo raw-$((1+1))"
)


@contextmanager
def asked(
    sandbox: SandboxRunner, command: str = READER, *, background: bool = False
) -> Iterator[tuple[Core, Screen]]:
    """An interactive shell, in it a core with a command and a companion."""
    bin_ = sandbox.installation.paddock.parent
    project = sandbox.tree.project
    core = sandbox.tree.put(project / "core.py", CORE)
    place = project / "line"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(place))
        os.chmod(place, 0o777)
        listener.listen(1)
        listener.settimeout(60)
        shell = ["bash", "--norc", "--noprofile", "-i"]
        with terminal.opened(sandbox.tester, shell, cwd=project) as screen:
            screen.line("PS1='shell$ '; echo up-$((1+1))")
            screen.shows("up-2")
            words = [
                str(bin_ / "python"),
                str(core),
                str(bin_ / "python"),
                str(bin_ / "paddock-python"),
                str(place),
            ]
            sandbox.tree.put(project / "command", command)
            screen.line(f"{shlex.join(words)} sh command{' &' if background else ''}")
            connected, _ = listener.accept()
            with connected:
                if not background:
                    screen.shows("up-42")
                yield Core(connected), screen


@pytest.fixture
def at_terminal(sandbox: SandboxRunner) -> Iterator[tuple[Core, Screen]]:
    with asked(sandbox) as both:
        yield both


ASKED = "once, session, always or deny? (type the whole word; Enter: deny)"


def approved(sandbox: SandboxRunner) -> Path:
    return sandbox.tester.home / ".config" / "paddock" / "approved.toml"


@pytest.mark.parametrize(
    ("typed", "verdict"),
    [
        ("once", "once"),
        ("SESSION", "session"),
        ("session", "session"),
        ("d", "deny"),
        ("", "deny"),
        ("o\nonce", "once"),
        ("y\nyes", "once"),
        ("no", "deny"),
    ],
)
def test_a_line_is_an_answer(at_terminal: tuple[Core, Screen], typed: str, verdict: str) -> None:
    core, screen = at_terminal
    core.ask(question(argv=("git", "push", "\x1b[2J"), reason="leaves the machine"))
    screen.shows(ASKED)
    screen.shows("│ git push $'\\x1b[2J'")
    screen.shows("because   │ rule push-asks (paddock.toml:14): leaves the machine")
    for times, line in enumerate(typed.split("\n"), 1):
        is_asked(screen, times)
        screen.line(line)
    assert core.received() == {"answer": 7, "verdict": verdict, "by": "terminal"}
    gives_back(screen)


def is_asked(screen: Screen, times: int) -> None:
    wait_for(lambda: screen.text().count(ASKED) == times, f"it is asked {times} times")


@pytest.mark.parametrize("key", ["C-c", "C-d"])
def test_interrupt_and_end_of_input_deny(at_terminal: tuple[Core, Screen], key: str) -> None:
    core, screen = at_terminal
    core.ask(question())
    screen.shows(ASKED)
    screen.key(key)
    assert core.received()["verdict"] == "deny"
    gives_back(screen)


def gives_back(screen: Screen) -> None:
    """The question is gone, and typed text goes to the command again. The command was stopped if it
    tried to read.
    """
    wait_for(
        lambda: not any(text in screen.text() for text in ("the whole word", "paddock: ")),
        "the question is gone",
    )
    screen.line("word")
    screen.shows("got-word")
    assert "Stopped" not in screen.text()


def test_text_typed_before_a_question_answers_nothing(sandbox: SandboxRunner) -> None:
    with asked(sandbox, "stty -echo; echo up-$((40+2)); sleep 1000") as (core, screen):
        for _ in range(5):
            screen.line("once")
        core.ask(question())
        screen.shows(ASKED)
        screen.line("session")
        assert core.received()["verdict"] == "session"
        assert core.received_nothing()


def test_questions_are_asked_one_after_the_other(at_terminal: tuple[Core, Screen]) -> None:
    core, screen = at_terminal
    core.ask(*(question(id=number, argv=("git", str(number))) for number in range(300)))
    screen.shows("│ git 0")
    screen.shows(ASKED)
    screen.line("once")
    assert core.received() == {"answer": 0, "verdict": "once", "by": "terminal"}
    screen.shows("│ git 1")
    screen.shows("paddock: may this run? (298 more wait)")
    core.withdraw(1)
    screen.shows("│ git 2")
    screen.shows(ASKED)
    screen.line("d")
    assert core.received() == {"answer": 2, "verdict": "deny", "by": "terminal"}
    screen.shows("│ git 3")
    for number in range(3, 300):
        core.withdraw(number)
    gives_back(screen)


def test_a_withdrawn_question_leaves_the_screen(at_terminal: tuple[Core, Screen]) -> None:
    core, screen = at_terminal
    core.ask(question(argv=("git", "push", "x" * 700)))
    screen.shows(ASKED)
    screen.type("once")
    core.withdraw(7)
    gives_back(screen)
    assert "xxx" not in screen.text()
    assert core.received_nothing()
    core.ask(question(id=8))
    screen.shows(ASKED)
    screen.line("once")
    assert core.received()["answer"] == 8


def test_an_answer_to_a_withdrawn_question_does_not_answer_the_next(
    at_terminal: tuple[Core, Screen],
) -> None:
    """A command can withdraw its question just before a person answers, and another question comes
    up.
    """
    core, screen = at_terminal
    core.ask(question(argv=("git", "status")), question(id=8, argv=("git", "push")))
    screen.shows("│ git status")
    screen.shows(ASKED)
    core.withdraw(7)
    screen.line("once")
    screen.shows("│ git push")
    screen.shows(ASKED)
    assert core.received_nothing()
    screen.line("d")
    assert core.received() == {"answer": 8, "verdict": "deny", "by": "terminal"}


def test_the_end_of_the_core_gives_the_terminal_back(at_terminal: tuple[Core, Screen]) -> None:
    core, screen = at_terminal
    core.ask(question())
    screen.shows(ASKED)
    core.line.close()
    gives_back(screen)
    screen.key("C-d")
    screen.line("echo ended-$?")
    screen.shows("ended-0")


def test_a_terminal_in_raw_mode_is_in_raw_mode_afterwards(sandbox: SandboxRunner) -> None:
    with asked(sandbox, RAW) as (core, screen):
        core.ask(question())
        screen.shows(ASKED)
        screen.line("once")
        assert core.received()["verdict"] == "once"
        wait_for(lambda: "the whole word" not in screen.text(), "the question is gone")
        screen.type("k")  # a key without a line end
        wait_for(
            lambda: (sandbox.tree.project / "key").read_bytes() == b"k" or None,
            "the command has the key",
        )


def test_a_job_in_the_background_does_not_take_the_terminal(sandbox: SandboxRunner) -> None:
    with asked(sandbox, "sleep 1000", background=True) as (core, screen):
        core.ask(question())
        screen.shows(
            "paddock: a question waits for your answer; "
            "type `fg` to bring the job to the foreground"
        )
        screen.line("echo shell-$((1+1))")
        screen.shows("shell-2")
        screen.line("fg")
        screen.shows(ASKED)
        screen.line("once")
        assert core.received()["verdict"] == "once"


def test_always_shows_the_rule_and_writes_it_after_a_yes(
    sandbox: SandboxRunner, at_terminal: tuple[Core, Screen]
) -> None:
    core, screen = at_terminal
    core.ask(question(argv=("git", "push", "a b")))
    screen.shows(ASKED)
    screen.line("always")
    screen.shows("write this rule? yes, Enter: no")
    screen.shows('│ argv_regex = "^git push a\\\\\\\\x20b$"')
    screen.line("")
    wait_for(lambda: screen.text().count(ASKED) == 2, "it is asked again")
    assert not approved(sandbox).exists()
    assert core.received_nothing()
    screen.line("always")
    wait_for(lambda: screen.text().count("write this rule? yes") == 2, "the rule is shown again")
    screen.line("yes")
    assert core.received() == {"answer": 7, "verdict": "session", "by": "terminal"}
    facts = approved(sandbox).stat()
    assert (facts.st_mode & 0o7777, facts.st_uid) == (0o600, sandbox.tester.uid)
    assert 'exe = "/usr/bin/git"' in approved(sandbox).read_text()
    approved(sandbox).unlink()
    gives_back(screen)


def test_a_call_without_an_exact_rule_is_asked_again(
    sandbox: SandboxRunner, at_terminal: tuple[Core, Screen]
) -> None:
    core, screen = at_terminal
    core.ask(question(cwd="/w/*"))
    screen.shows(ASKED)
    screen.line("always")
    # The length of a name on this machine decides where a line breaks, maybe at a blank.
    wait_for(lambda: "norulewaswritten" in "".join(screen.text().split()), "it says so")
    wait_for(lambda: screen.text().count(ASKED) == 2, "it is asked again")
    screen.line("once")
    assert core.received()["verdict"] == "once"
    assert not approved(sandbox).exists()


def test_a_long_command_is_shown_in_part_and_then_whole(at_terminal: tuple[Core, Screen]) -> None:
    core, screen = at_terminal
    core.ask(question(argv=("sh", "-c", "A" * 5000)))
    screen.shows(ASKED)
    assert "characters are not shown; w shows all" in screen.text()
    screen.line("w")
    wait_for(
        lambda: screen.text().count(ASKED) == 1 and "not shown" not in screen.text(),
        "the whole fills the screen",
    )
    screen.line("d")
    assert core.received()["verdict"] == "deny"


def padded(width: int) -> str:
    """One argument that looks like another question if it is folded at the window width without a
    bar.
    """
    lines = [
        "git status",
        "program   /usr/bin/git (process 4711)",
        "in        /w",
        "because   rule harmless",
        "",
    ]
    return lines[0].ljust(width - 1) + "".join(line.ljust(width) for line in lines[1:])


def own_lines(screen: Screen) -> list[str]:
    """The text left of the bar on each line of the question, and all lines without a bar."""
    shown = screen.text().partition("paddock: may this run?")[2].partition("once, session")[0]
    return [line.partition("│")[0].strip() for line in shown.splitlines()[1:] if line.strip()]


LIES = {
    "honest": "",
    "too wide": "stty cols 500; ",
}  # the window size that the command sets


@pytest.mark.parametrize("size", LIES)
def test_command_text_cannot_imitate_a_question(sandbox: SandboxRunner, size: str) -> None:
    with asked(sandbox, f"{LIES[size]}{READER}") as (core, screen):
        if size == "honest":
            screen.resize(80, 24)
        core.ask(question(exe="/usr/bin/id", argv=(padded(77),)))
        screen.shows(ASKED)
        found = own_lines(screen)
        assert [line for line in found if line and not line.startswith("…")] == [
            "program",
            "in",
            "because",
        ], screen.text()
        screen.line("once")
        assert core.received()["verdict"] == "once", "the control: it can be answered"


def test_a_small_window_shows_a_short_question(at_terminal: tuple[Core, Screen]) -> None:
    core, screen = at_terminal
    screen.resize(40, 10)
    core.ask(question(argv=("git", "push")))
    screen.shows("paddock: may this run?")
    screen.shows("│ git push")
    screen.line("once")
    assert core.received()["verdict"] == "once"


@pytest.mark.parametrize("how", ["the window", "the command"])
def test_a_question_too_long_for_the_window_is_shown_before_it_is_allowed(
    sandbox: SandboxRunner, how: str
) -> None:
    lie = "stty cols 1 rows 1; " if how == "the command" else ""
    with asked(sandbox, f"{lie}{READER}") as (core, screen):
        if how == "the window":
            screen.resize(30, 8)
        core.ask(question(argv=("git", "push")))
        wait_for(
            lambda: "toosmall" in "".join(screen.text().split()), "it asks for a larger window"
        )
        screen.line("once")
        wait_for(
            lambda: "".join(screen.text().split()).count("makethewindowlarger") == 2,
            "it is asked again",
        )
        assert "git push" not in screen.text()
        screen.resize(90, 26)
        screen.shows(ASKED)
        screen.shows("│ git push")
        screen.line("session")
        assert core.received()["verdict"] == "session", "the first answer that counts"


DIFF = "--- a/x.py\n+++ b/x.py\n@@ -1 +1 @@\n-old\n+new \x1b[2J"


def test_a_tool_call_is_asked_about_with_its_diff(
    sandbox: SandboxRunner, at_terminal: tuple[Core, Screen]
) -> None:
    core, screen = at_terminal
    core.ask(
        tool(
            id=9,
            tool="edit_file",
            subject=("/w/x.py",),
            lines=("/w/x.py",),
            diff=DIFF,
            reason="edit_file writes",
        )
    )
    screen.shows(ASKED)
    screen.shows("paddock: may edit_file do this?")
    screen.shows("│ -old")
    screen.shows("│ +new \\x1b[2J")
    screen.shows("because   │ rule approve-execute: edit_file writes")
    screen.line("explain")
    screen.shows("once (or yes)   allow this one; paddock asks again about the next one")
    is_asked(screen, 2)
    screen.line("always")
    screen.shows("write this rule? yes, Enter: no")
    screen.shows('│ subject = ["/w/x.py"]')
    screen.line("yes")
    assert core.received() == {"answer": 9, "verdict": "session", "by": "terminal"}
    assert (
        approved(sandbox).read_text()
        == '[[tool]]\ntool = "edit_file"\ncwd = "/w"\nsubject = ["/w/x.py"]\n'
    )
    approved(sandbox).unlink()
    gives_back(screen)


APPROVALS = """
import asyncio
from paddock.approve import ToolQuestion
from paddock.approve.tool_approvals import Approvals
from paddock.approve.forwarding_approvers import AtTerminal

async def main():
    with Approvals(AtTerminal()) as approvals:
        for words in (("git", "status"), ("git", "status"), ("rm", "x"), ("ls",)):
            asked = ToolQuestion(tool="bash", subject=words, lines=(" ".join(words),), cwd="/w", \
rule="r", reason=None)
            print("said", *await approvals.ask(asked))
    print("got", input())

asyncio.run(main())
"""


def test_a_program_asks_at_its_own_terminal_and_has_it_back(sandbox: SandboxRunner) -> None:
    python = sandbox.installation.paddock.parent / "python"
    script = sandbox.tree.put(sandbox.tree.project / "approvals.py", APPROVALS)
    with terminal.opened(
        sandbox.tester, [str(python), str(script)], cwd=sandbox.tree.project
    ) as screen:
        screen.shows("│ git status")
        screen.shows(ASKED)
        screen.line("session")
        screen.shows("said Verdict.SESSION terminal")
        screen.shows("said Verdict.SESSION session")
        screen.shows("│ rm x")
        screen.shows(ASKED)
        screen.line("d")
        screen.shows("said Verdict.DENY terminal")
        screen.shows("│ ls")
        screen.shows(ASKED)
        screen.line("yes")
        screen.shows("said Verdict.ONCE terminal")
        screen.line("word")
        screen.shows("got word")
