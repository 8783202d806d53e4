"""A shown command has no secret, and all programs that it starts."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from paddock import Redactor
from paddock.core.redact import MARK
from paddock.shell.denied_commands import read
from paddock.shell.redacted_command import shown_command

PIECES = (
    "evil", "./evil", "rm -rf x", "hunter2", "password=", "token: ", "token:", "--token ",
    "-secret ", "bearer ", "Basic ", "https://a:", "@b", "'-----BEGIN RSA PRIVATE KEY-----'",
    "'-----END RSA PRIVATE KEY-----'", "curl -u a:", "exec -a ", "env -u ", "sh -c ", "sudo -u ",
    "eval ", "X=", "TOKEN=", "'", '"', "`", "$(", ")", "${x:-", "}", "$'", "\\", "\n", " ", ";",
    "|", "&", " #", "<<E\n", "\nE\n", "<<<", "[[ ", " ]]", "((", "))",
    "q7Zp2Xv9Lk4Tn8Rw3Yb6Mc1Jd5Hf0GsA",
)  # fmt: skip


def started(text: str) -> list[str] | None:
    line = read(text, cwd="/w", home="/home/ada").line
    return (
        None if line is None else [command.words[0] for command in line.commands if command.words]
    )


@settings(deadline=None, max_examples=600)
@given(st.lists(st.sampled_from(PIECES), max_size=9).map("".join))
@example("exec -a token: evil")
@example("env -u bearer ./evilscript1")
def test_the_shown_command_starts_the_same_run(text: str) -> None:
    shown = shown_command(text, Redactor(), cwd="/w")
    if started(text) is not None:
        assert started(shown) == started(text)
    again = shown_command(shown, Redactor(), cwd="/w")
    assert started(again) == started(shown)


@pytest.mark.parametrize(
    "line", ["exec -a token: ./evil1", "env -u bearer ./evilscript1", "sudo -u basic /tmp/evil123"]
)
def test_a_program_name_is_not_redacted(line: str) -> None:
    assert shown_command(line, Redactor(), cwd="/w") == line


def test_secrets_are_removed() -> None:
    assert (
        shown_command("git clone https://a:hunter2@b", Redactor(), cwd="/w")
        == f"git clone https://a:{MARK}@b"
    )
    assert (
        shown_command("exec -a token: ./x hunter2", Redactor(["hunter2"]), cwd="/w")
        == f"exec -a token: ./x {MARK}"
    )


def test_a_program_is_shown_in_a_command_that_cannot_be_read() -> None:
    line = "exec -a token: ./evil1; coproc true"
    assert started(line) is None
    assert shown_command(line, Redactor(), cwd="/w") == line
