"""Both languages read the same examples."""

from __future__ import annotations

import json
import random
from pathlib import Path

import jsonschema
import pytest

from paddock.approve import messages
from paddock.approve.messages import Withdrawn
from paddock.approve.model import Parent, Question, Verdict
from paddock.errors import CoreError
from tests.unit.approve.questions import asked

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
    first, second, third = [messages.read(json.dumps(one).encode()) for one in EXAMPLES["to_companion"]]
    assert isinstance(first, Question)
    assert first.argv == ("git", "push", "a b", "\x1b[2J", "café", "\udcff")
    assert first.parent == Parent(exe="/usr/bin/bash", argv=("bash", "-c", "git push"))
    assert isinstance(second, Question)
    assert (second.parent, second.rule, second.chain[1]) == (None, None, "/usr/bin/dash")
    assert third == Withdrawn(7)
    assert json.loads(json.dumps(asked(first))) == EXAMPLES["to_companion"][0]


def test_answers_are_said_as_the_examples_have_them() -> None:
    for message in EXAMPLES["to_core"]:
        said = messages.answer(message["answer"], Verdict(message["verdict"]), message["by"])
        assert json.loads(said) == message
        assert said.isascii()


def test_nothing_but_a_message_is_understood() -> None:
    dice = random.Random(4)
    seeds = [json.dumps(one).encode() for one in EXAMPLES["to_companion"]]
    for datagram in (b"", b"x", b"[]", b"7", b"null", b'"ask"', b"{}", b'{"withdrawn":-1}', b'{"withdrawn":1,"ask":2}'):
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
        assert isinstance(read, Question | Withdrawn)
