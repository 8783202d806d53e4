"""An interactive shell and an interpreter behave inside as outside: job control, keys, window size,
history.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.support import terminal
from tests.support.sandbox import SandboxRunner
from tests.support.terminal import Screen
from tests.support.waiting import wait_for


@contextmanager
def shell(sandbox: SandboxRunner) -> Iterator[Screen]:
    argv = [
        str(word) for word in sandbox.command(["bash", "--norc", "--noprofile", "-i"], "--quiet")
    ]
    with terminal.opened(sandbox.tester, argv, cwd=sandbox.tree.project) as screen:
        screen.line("PS1='ready$ '; echo up-$((40+2))")
        screen.shows("up-42")
        yield screen


def test_bash_has_job_control(sandbox: SandboxRunner) -> None:
    with shell(sandbox) as screen:
        assert "no job control" not in screen.text()
        screen.line("case $- in *m*) echo jobs-$((1+1));; esac")
        screen.shows("jobs-2")
        screen.line("tty > /dev/null && test -t 0 && test -t 1 && echo terminal-$((1+1))")
        screen.shows("terminal-2")


def test_interrupt_stops_the_foreground_job_and_not_the_shell(sandbox: SandboxRunner) -> None:
    with shell(sandbox) as screen:
        screen.line("echo go-$((1+1)); sleep 60")
        screen.shows("go-2")
        screen.key("C-c")
        screen.prompts("ready$")
        screen.line("echo status-$?")
        screen.shows("status-130")


def test_a_suspended_job_continues_in_the_foreground(sandbox: SandboxRunner) -> None:
    with shell(sandbox) as screen:
        screen.line("echo go-$((1+1)); sh -c 'read x; echo got-$x'")
        screen.shows("go-2")
        screen.key("C-z")
        screen.prompts("ready$")
        screen.line("echo stopped-$?")
        screen.shows("stopped-148")
        screen.continues()
        screen.line("word")
        screen.shows("got-word")


def test_paddock_itself_can_be_suspended_and_resumed(sandbox: SandboxRunner) -> None:
    """Ctrl-Z with ``cat`` as the whole command, from a shell outside."""
    outer = ["bash", "--norc", "--noprofile", "-i"]
    inner = shlex.join(map(str, sandbox.command(["cat"], "--quiet")))
    sandbox.tree.put(sandbox.tree.project / "start", f"exec {inner}\n")
    with terminal.opened(sandbox.tester, outer, cwd=sandbox.tree.project) as screen:
        screen.line("PS1='outer$ '; echo up-$((40+2))")
        screen.shows("up-42")
        screen.line("sh start")
        screen.line("first")
        # the terminal echoes the text once, and cat prints it again
        _shows_twice(screen, "first")
        screen.key("C-z")
        screen.prompts("outer$")
        screen.line("echo stopped-$?")
        screen.shows("stopped-148")
        screen.continues()
        screen.line("second")
        _shows_twice(screen, "second")
        screen.key("C-d")
        screen.prompts("outer$")
        screen.line("echo ended-$?")
        screen.shows("ended-0")


def _shows_twice(screen: Screen, text: str) -> None:
    wait_for(
        lambda: sum(line.strip() == text for line in screen.text().splitlines()) >= 2,
        f"the screen shows {text!r} twice",
    )


def test_interrupt_reaches_a_plain_command_and_its_status_comes_back(
    sandbox: SandboxRunner,
) -> None:
    outer = ["bash", "--norc", "--noprofile", "-i"]
    inner = shlex.join(
        map(str, sandbox.command(["sh", "-c", "echo go-2; exec sleep 60"], "--quiet"))
    )
    sandbox.tree.put(sandbox.tree.project / "start", f"exec {inner}\n")
    with terminal.opened(sandbox.tester, outer, cwd=sandbox.tree.project) as screen:
        screen.line("PS1='outer$ '; sh start")
        screen.shows("go-2")
        screen.key("C-c")
        screen.prompts("outer$")
        screen.line("echo ended-$?")
        screen.shows("ended-130")


def test_python_is_interactive(sandbox: SandboxRunner) -> None:
    argv = [str(word) for word in sandbox.command(["python3", "-q"], "--quiet")]
    with terminal.opened(sandbox.tester, argv, cwd=sandbox.tree.project) as screen:
        screen.line("import os, sys; print('up', os.isatty(0) and os.isatty(1))")
        screen.shows("up True")
        screen.line("import time; print(6*7); time.sleep(60)")
        screen.shows("42")
        screen.key("C-c")
        screen.shows("KeyboardInterrupt")
        screen.line("print(6*8)")
        screen.shows("48")
        screen.key("C-d")


def test_the_window_size_follows(sandbox: SandboxRunner) -> None:
    with shell(sandbox) as screen:
        screen.line("stty size")
        screen.shows(f"{terminal.ROWS} {terminal.COLUMNS}")
        screen.resize(90, 20)
        screen.line("clear; stty size")
        screen.shows("20 90")


def test_line_editing_and_history_work(sandbox: SandboxRunner) -> None:
    with shell(sandbox) as screen:
        screen.line("echo one-$((1+1))")
        screen.shows("one-2")
        screen.key("Up")
        screen.key("C-a")
        screen.type("echo again; ")
        screen.key("Enter")
        screen.shows("again")
        screen.type("ech x-$((2+2))")
        for _ in range(len(" x-$((2+2))")):
            screen.key("Left")
        screen.type("o")
        screen.key("Enter")
        screen.shows("x-4")


@pytest.mark.parametrize("program", ["tmux-less", "stty"])
def test_terminal_settings_can_be_changed(sandbox: SandboxRunner, program: str) -> None:
    with shell(sandbox) as screen:
        if program == "stty":
            screen.line("stty -echo; stty echo; echo set-$?")
            screen.shows("set-0")
        else:
            sandbox.tree.put(sandbox.tree.project / "text", "page-one\n")
            screen.line("TERM=screen less text")
            screen.shows("page-one")
            screen.key("q")
            screen.line("echo left-$((1+1))")
            screen.shows("left-2")
