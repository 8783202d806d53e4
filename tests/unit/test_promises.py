"""SECURITY.md: a promise without an exception names its test."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WITHOUT_EXCEPTION = re.compile(r"\b(?:every|always|never)\b", re.IGNORECASE)
REFERENCE = re.compile(r"`((?:[\w./-]+/)?(?:test_\w+\.py|\w+\.rs)|(?:tests|core)/[\w./-]+)`")


def statements(text: str) -> Iterator[str]:
    """The rows of the tables and the sentences of the paragraphs."""
    for block in re.split(r"\n\s*\n", text):
        if block.lstrip().startswith("|"):
            yield from block.splitlines()
            continue
        yield from re.split(r"(?<=[.!?])\s+(?=[A-Z`*\-])", " ".join(block.split()))


def existing(reference: str) -> bool:
    """Test files are named by their path, or by their name alone."""
    return (ROOT / reference).exists() or any(ROOT.glob(f"tests/**/{reference}"))


def promises() -> list[str]:
    return [
        line
        for line in statements((ROOT / "SECURITY.md").read_text("utf-8"))
        if WITHOUT_EXCEPTION.search(line)
    ]


@pytest.mark.parametrize("promise", promises(), ids=lambda promise: promise[:60])
def test_a_promise_without_an_exception_names_its_test(promise: str) -> None:
    assert REFERENCE.search(promise), (
        f"name the test that holds this, or do not say every, always or never: {promise}"
    )


def test_every_test_that_is_named_exists() -> None:
    named = REFERENCE.findall((ROOT / "SECURITY.md").read_text("utf-8"))
    assert len(named) > 50
    assert [reference for reference in named if not existing(reference)] == []
