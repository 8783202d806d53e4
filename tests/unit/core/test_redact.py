"""Redaction: which text is removed, which text stays, and the rate of each."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paddock import Redactor
from paddock.core.redact import MARK, _core, redact
from paddock.errors import CoreError
from tests.unit.core.secret_samples import PLAIN, SECRETS

GOLDEN = Path(__file__).parents[3] / "schema" / "examples" / "redaction.json"


@pytest.mark.parametrize(("text", "secret"), SECRETS)
def test_a_secret_is_removed(text: str, secret: str) -> None:
    """A-042 to A-046"""
    assert secret in text
    assert secret not in redact(text)


@pytest.mark.parametrize("text", PLAIN)
def test_plain_text_stays(text: str) -> None:
    assert redact(text) == text


def test_detection_rates_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    for kind, gone in (("text", Redactor().redact), ("commands", Redactor().command)):
        found = sum(secret not in gone(text) for text, secret in SECRETS)
        spared = sum(gone(text) == text for text in PLAIN)
        with capsys.disabled():
            rates = (
                f"{found} of {len(SECRETS)} secrets gone, "
                f"{spared} of {len(PLAIN)} plain texts untouched"
            )
            print(f"\nredaction in {kind}: {rates}")
        # In a command a key outside of quotes is lines of their own, of which only long ones look
        # like a key.
        assert found == len(SECRETS) - (2 if kind == "commands" else 0)
        assert spared == len(PLAIN)


@pytest.mark.parametrize(
    "line",
    [
        ": '-----BEGIN RSA PRIVATE KEY-----'; evil; : '-----END RSA PRIVATE KEY-----'",
        "-----BEGIN RSA PRIVATE KEY-----\nevil\n-----END RSA PRIVATE KEY-----",
        "make password=$(evil)",
        "password=hunter2$(evil)",
        "password=`evil`",
        'password="`evil`"',
        "password=x;evil",
        "token:$(evil)",
        "x=https://a:$(evil)@b",
        "x=https://a:b;evil@c",
        'x="https://a:${y:=$(evil)}@b"',
        "TOKEN= evil",
        "password:\nevil",
        "Bearer\n/tmp/evilprog",
        "--token\nevil",
        "bash -secret evil",
        "bash -auth evil",
        "echo 'password='; evil; echo 'b'",
        "cat <<E\nit's\nE\nhttps://a:x;evil@b '",
        "# it's\nhttps://a:x;evil@b '",
        "curl -u a:b;evil",
        "curl -H Cookie:a;evil",
        "mysql -px;evil",
    ],
)
def test_nothing_that_is_executed_is_taken_out_of_a_command(line: str) -> None:
    assert "evil" in Redactor().command(line)
    assert "evil" in Redactor().all_of(["sh", "-c", line])[2]


def test_a_word_is_redacted_as_a_whole_or_up_to_its_executed_part() -> None:
    command = Redactor().command
    assert command("password='hun;ter2' x") == f"password={MARK} x"
    assert command("password=hunter2$(x)") == f"password={MARK}$(x)"
    assert command("x 'https://a:b;c@d'") == f"x 'https://a:{MARK}@d'"
    assert (
        command("echo '-----BEGIN PRIVATE KEY-----\nMII\n-----END PRIVATE KEY-----' > k")
        == f"echo '{MARK}' > k"
    )


def test_a_line_of_a_diff_is_a_part_of_something_else() -> None:
    assert "evil" in Redactor().part("+don't https://a:x;evil@b")
    assert "evil" in Redactor().part('+"https://a:$(evil)@b"')
    assert Redactor().part("+password=hunter2") == f"+password={MARK}"


def test_opaque_words_of_31_characters_stay_and_of_32_are_removed() -> None:
    """A-045"""
    opaque = "q7Zp2Xv9Lk4Tn8Rw3Yb6Mc1Jd5Hf0GsA"
    assert len(opaque) == 32
    assert redact(f"x {opaque[:31]} y") == f"x {opaque[:31]} y"
    assert redact(f"x {opaque} y") == f"x {MARK} y"


def test_text_around_a_secret_stays() -> None:
    assert (
        redact("psql postgres://ada:hunter2@db/x -c 'select 1'")
        == f"psql postgres://ada:{MARK}@db/x -c 'select 1'"
    )
    assert redact("tool --token abc123 --verbose") == f"tool --token {MARK} --verbose"
    assert (
        redact("curl -H 'Authorization: Bearer abc' https://x")
        == f"curl -H 'Authorization: Bearer {MARK}' https://x"
    )


def test_known_values_are_removed_in_every_spelling() -> None:
    redactor = Redactor(["correct horse/battery", "short", "abc"])
    assert redactor.redact("say correct horse/battery now") == f"say {MARK} now"
    assert "horse" not in redactor.redact("?x=correct%20horse%2Fbattery")
    assert redactor.redact("Y29ycmVjdCBob3JzZS9iYXR0ZXJ5") == MARK
    assert redactor.redact("a short word, abc") == f"a {MARK} word, abc"


def test_a_longer_value_is_removed_as_a_whole() -> None:
    assert Redactor(["pass", "password-one"]).redact("password-one pass") == f"{MARK} {MARK}"


def test_lists_and_mappings_are_redacted() -> None:
    redactor = Redactor(["planted"])
    event = {
        "argv": ["tool", "--token", "abc", "-v"],
        "env": {"API_KEY": "abc", "LANG": "C"},
        "n": 1,
        "text": "planted",
    }
    assert redactor.all_of(event) == {
        "argv": ["tool", "--token", MARK, "-v"],
        "env": {"API_KEY": MARK, "LANG": "C"},
        "n": 1,
        "text": MARK,
    }


@settings(deadline=None)
@given(st.text(st.characters()))
def test_redaction_accepts_any_text_and_is_idempotent(text: str) -> None:
    once = redact(text)
    assert redact(once) == once


@settings(deadline=None)
@given(
    st.text(st.characters(codec="utf-8"), max_size=30),
    st.text(st.characters(codec="utf-8"), max_size=30),
)
def test_a_known_value_never_survives(before: str, after: str) -> None:
    assert "s3cr3t-välue" not in Redactor(["s3cr3t-välue"]).redact(f"{before}s3cr3t-välue{after}")


def test_bytes_that_are_not_text_stay_unchanged() -> None:
    text = b"caf\xff token=abc \xc3\xa9".decode("utf-8", "surrogateescape")
    assert (
        redact(text).encode("utf-8", "surrogateescape")
        == b"caf\xff token=" + MARK.encode() + b" \xc3\xa9"
    )


def test_a_long_line_takes_linear_time() -> None:
    """A megabyte of the beginning of each expression takes linear time."""
    for piece in (
        "token" * 10,
        "Bearer ",
        "a://b:",
        "--token ",
        "-----BEGIN PRIVATE KEY-----",
        "x" * 31 + " ",
        "curl -u ",
    ):
        redact(piece * (1_000_000 // len(piece)))
    for length in (40, 4000, 100_000):
        redact("a" * length + "0z9" + "B" * length + "1y")


def test_the_examples_of_the_schema() -> None:
    golden = json.loads(GOLDEN.read_text())
    known = {text for text, _ in golden["texts"]}
    assert known >= {*PLAIN, *(text for text, _ in SECRETS)}
    for text, expected in golden["texts"]:
        assert Redactor().command(text) == expected
    for words, expected in golden["words"]:
        assert Redactor().all_of(words) == expected


def test_a_core_that_ended_is_started_again() -> None:
    assert redact("token=abc") == f"token={MARK}"
    first = _core._pid
    os.kill(first, signal.SIGKILL)
    assert redact("token=abc") == f"token={MARK}"
    assert _core._pid != first


def test_a_forked_child_asks_a_core_of_its_own() -> None:
    redact("token=abc")
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            os.write(writing, redact("token=abc").encode() + b" %d" % _core._pid)
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as answer:
        text, pid = answer.read().decode().split()
    os.waitpid(child, 0)
    assert text == f"token={MARK}"
    assert int(pid) != _core._pid
    assert redact("token=abc") == f"token={MARK}"


def test_threads_get_their_own_answers() -> None:
    def ask(number: int) -> bool:
        return all(redact(f"{number} token=abc") == f"{number} token={MARK}" for _ in range(200))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(ask, range(8)))


def test_no_answer_is_an_error_and_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    _core.close()
    monkeypatch.setattr("paddock.core.redact.program", lambda: "/bin/true")
    with pytest.raises(CoreError, match="ended while it redacted"):
        redact("token=abc")
    monkeypatch.undo()
    assert redact("token=abc") == f"token={MARK}"


def test_text_that_is_not_utf8_is_no_error_in_a_list_or_as_a_name() -> None:
    odd = "\udcff\ud800"
    assert Redactor().all_of(["curl", odd, "--token", "x1y2z3", odd]) == [
        "curl",
        odd,
        "--token",
        MARK,
        odd,
    ]
    assert Redactor().all_of({odd: "x"}) == {odd: "x"}
    assert Redactor().all_of({"API_KEY": f"x{odd}"}) == {"API_KEY": MARK}
