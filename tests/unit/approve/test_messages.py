"""The messages between core and approver. Both languages read the same examples."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest

from paddock.approve import messages
from paddock.approve.messages import AnswerMessage, WithdrawMessage
from paddock.approve.questions import Caller, HostQuestion, Parent, Question, Verdict
from paddock.errors import CoreError
from tests.unit.approve.questions import asked, question, tool

SCHEMA = Path(__file__).parents[3] / "schema"
EXAMPLES = json.loads((SCHEMA / "examples" / "companion.json").read_text())
RULES = json.loads((SCHEMA / "companion.schema.json").read_text())


def conforms(message: object, kind: str) -> bool:
    return jsonschema.Draft202012Validator({**RULES, "$ref": f"#/$defs/{kind}"}).is_valid(message)


def test_the_examples_are_what_the_schema_describes() -> None:
    for kind in ("to_companion", "to_core", "to_observer", "from_observer"):
        assert EXAMPLES[kind]
        for message in EXAMPLES[kind]:
            assert conforms(message, kind), message
    for message in EXAMPLES["wrong_to_core"]:
        assert not conforms(message, "to_core"), message
    for message in EXAMPLES["wrong_from_observer"]:
        assert not conforms(message, "from_observer"), message


def test_questions_and_withdrawals_are_understood() -> None:
    first, second, host, unknown, last = [
        messages.read(json.dumps(one).encode()) for one in EXAMPLES["to_companion"]
    ]
    assert isinstance(first, Question)
    assert first.argv == ("git", "push", "a b", "\x1b[2J", "café", "\udcff")
    assert first.parent == Parent(exe="/usr/bin/bash", argv=("bash", "-c", "git push"))
    assert isinstance(second, Question)
    assert (second.parent, second.rule, second.chain[1]) == (None, None, "/usr/bin/dash")
    assert host == HostQuestion(
        id=9,
        host="example.com",
        port=443,
        process=Caller(pid=4711, exe="/usr/bin/curl"),
        source="paddock.toml:3",
        timeout_s=300,
    )
    assert isinstance(unknown, HostQuestion)
    assert (unknown.process, unknown.scope) == (None, ("a.example", 22))
    assert last == WithdrawMessage(7)
    assert json.loads(json.dumps(asked(first))) == EXAMPLES["to_companion"][0]


def test_a_tool_question_matches_the_schema_and_is_parsed() -> None:
    for one in (
        tool(id=3, diff="+x", timeout_s=0.5),
        tool(id=4, rule=None, reason=None, lines=("\udcff",)),
    ):
        output = messages.ask(one)
        assert output is not None
        assert conforms(json.loads(output), "from_desk")
        assert messages.read(output) == replace(one, timeout_s=max(1, one.timeout_s))
    forwarded = messages.ask(question(parent=Parent(exe="/bin/sh", argv=("sh",))))
    assert forwarded is not None
    assert conforms(json.loads(forwarded), "to_companion")
    assert messages.read(forwarded) == question(parent=Parent(exe="/bin/sh", argv=("sh",)))
    assert conforms(json.loads(messages.withdraw(7)), "to_companion")


def test_answers_are_written_like_the_examples() -> None:
    for message in EXAMPLES["to_core"]:
        output = messages.answer(message["answer"], Verdict(message["verdict"]), message["by"])
        assert json.loads(output) == message
        assert messages.read_answer(output) == AnswerMessage(
            message["answer"], Verdict(message["verdict"]), message["by"]
        )
        assert output.isascii()


def test_an_invalid_approver_message_is_refused() -> None:
    dice = random.Random(4)
    seeds = [json.dumps(one).encode() for one in EXAMPLES["to_companion"]]
    for datagram in (
        b"",
        b"x",
        b"[]",
        b"7",
        b"null",
        b'"ask"',
        b"{}",
        b'{"withdrawn":-1}',
        b'{"withdrawn":1,"ask":2}',
    ):
        with pytest.raises(CoreError):
            messages.read(datagram)
    for _ in range(3000):
        mutated = bytearray(dice.choice(seeds))
        for _ in range(dice.randrange(1, 5)):
            mutated[dice.randrange(len(mutated))] = dice.randrange(256)
        try:
            read = messages.read(bytes(mutated))
        except CoreError:
            continue
        assert isinstance(read, Question | HostQuestion | WithdrawMessage)
