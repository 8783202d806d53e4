"""The engine that will use an expression checks it. An error is one line."""

from __future__ import annotations

import random

from paddock.policy.regex import wrong_regexes

FINE = [
    r"^git (status|log|diff)( |$)",
    r"\S+\d{2,3}?",
    r"(?:a|b)(?P<name>c)",
    r"(?i)curl",
    r"[]a]",
    r"[^]a]",
    r"a\\1",
    "",
    "\u00e9",
]
REFUSED = [
    (r"(a)\1", "backreferences"),
    (r"(?=a)", "look-around"),
    (r"(?<!a)b", "look-around"),
    (r"(?>a)", "flag"),
    (r"a\Z", "escape"),
    (r"(", "unclosed group"),
    (r"*a", "repetition operator"),
    (r"[a", "unclosed character class"),
    ("a{9999999999999}", "decimal"),
    ("a{999}{999}{999}", "size limit"),
    ("\\", "incomplete escape"),
    ("[\u00e9]", "Unicode"),
    ("(" * 9000 + ")" * 9000, "nest"),
]


def test_engine_reports_each_wrong_expression() -> None:
    """F-024, F-064"""
    answers = wrong_regexes([*FINE, *(pattern for pattern, _ in REFUSED)])
    assert answers[: len(FINE)] == [None] * len(FINE)
    for (pattern, words), answer in zip(REFUSED, answers[len(FINE) :], strict=True):
        assert answer is not None, pattern
        assert words in answer, (pattern, answer)
        assert "\n" not in answer


def test_an_empty_list_of_expressions_starts_no_engine() -> None:
    assert wrong_regexes([]) == []


def test_no_expression_breaks_the_engine() -> None:
    dice = random.Random(6)
    pieces = [*"()[]{}*+?|^$.\\-:=!<>P#aZ1,&~", "(?", "(?P<", "\\", "[^", "{2,", "(?i)", "\u00e9"]
    patterns = [
        "".join(dice.choice(pieces) for _ in range(dice.randint(0, 10))) for _ in range(8000)
    ]
    refused = [answer for answer in wrong_regexes(patterns) if answer is not None]
    assert 1000 < len(refused) < 8000
