"""A rule's expression means the same to Python and to the rule engine, or it is refused."""

from __future__ import annotations

import pytest

from paddock.policy.regex import RegexError, check_regex

FINE = [
    r"^git (status|log|diff)( |$)",
    r"\S+\d{2,3}?",
    r"(?:a|b)(?P<name>c)",
    r"(?i)curl",
    r"(?s:a.b)",
    r"(?i-s:a)",
    r"[]a]",
    r"[^]a]",
    r"[(?=]",
    r"\(\?=",
    r"a\\1",
    r"\.\*\+",
    r"[*+]+",
    r"x*",
    "",
]
REFUSED = [
    (r"(a)\1", "back-references"),
    (r"(?P<n>a)(?P=n)", "back-references"),
    (r"(?=a)", "look-around"),
    (r"(?!a)", "look-around"),
    (r"(?<=a)b", "look-around"),
    (r"(?<!a)b", "look-around"),
    (r"(?>a)", "not known"),
    (r"(a)(?(1)b|c)", "not known"),
    (r"(?#remark)", "not known"),
    (r"(?L)a", "not known"),
    (r"a*+", "possessive"),
    (r"a++", "possessive"),
    (r"a{2}+", "possessive"),
    (r"a\Z", "write '$'"),
    (r"\N{DIGIT ONE}", "not known"),
    (r"\012", "back-references"),
    (r"[[a]]", "ambiguous"),
    (r"[a&&b]", "ambiguous"),
    (r"(", "not a regular expression"),
    (r"*a", "not a regular expression"),
    (r"[a", "not a regular expression"),
    ("a{9999999999999}", "not a regular expression"),
    ("\\", "not a regular expression"),
    ("(" * 9000 + ")" * 9000, "regular expression"),
]


@pytest.mark.parametrize("pattern", FINE)
def test_what_both_engines_read_alike_is_accepted(pattern: str) -> None:
    check_regex(pattern)


@pytest.mark.parametrize(("pattern", "words"), REFUSED, ids=[p[:20] for p, _ in REFUSED])
def test_what_only_python_understands_is_refused(pattern: str, words: str) -> None:
    with pytest.raises(RegexError, match=words.replace("$", r"\$")):
        check_regex(pattern)
