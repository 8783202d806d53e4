"""Glob, compared with a table and with a naive reference."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path

import pytest

from paddock.policy.glob import Glob, GlobError, component_matches

MATCHES = [
    ("/x", "/x", True),
    ("/x", "/x/y", False),
    ("/x/**", "/x", True),
    ("/x/**", "/x/y", True),
    ("/x/**", "/x/y/z", True),
    ("/x/**", "/xy", False),
    ("/x/**", "/", False),
    ("/usr/*/git", "/usr/bin/git", True),
    ("/usr/*/git", "/usr/a/b/git", False),
    ("/usr/**/git", "/usr/a/b/git", True),
    ("/usr/**/git", "/usr/git", True),
    ("/etc/*.conf", "/etc/a.conf", True),
    ("/etc/*.conf", "/etc/.conf", True),
    ("/etc/*.conf", "/etc/sub/a.conf", False),
    ("/etc/*.conf", "/etc/a.conf.bak", False),
    ("**/.env", "/.env", True),
    ("**/.env", "/a/b/.env", True),
    ("**/.env", "/a/.env.local", False),
    ("**/*.pem", "/a/b/c.pem", True),
    ("/a/**/b/**/c", "/a/x/b/y/z/c", True),
    ("/a/**/b/**/c", "/a/b/c", True),
    ("/a/**/b/**/c", "/a/c/b", False),
    ("/a/*/", "/a/b", True),
    ("//a///b/./c/", "/a/b/c", True),
    ("/a/b", "//a/./b/", True),
    ("/a/[bc]", "/a/b", False),
    ("/a/[bc]", "/a/[bc]", True),
    ("/a/b?", "/a/bc", False),
    ("<tmp>/**", "<tmp>/x", True),
    ("<tmp>/**", "/tmp/x", False),
    ("/**", "/anything/at/all", True),
    ("/a/*\udcff", "/a/b\udcff", True),
]


# The core matches the same patterns during its scan. Its tests read this table too.
SHARED = json.loads((Path(__file__).parents[3] / "schema" / "examples" / "globs.json").read_text())


@pytest.mark.parametrize(
    "case", SHARED["cases"], ids=lambda case: f"{case['pattern']!a}-{case['path']!a}"
)
def test_a_pattern_means_what_the_table_of_both_languages_says(case: dict[str, object]) -> None:
    glob, path = Glob.parse(str(case["pattern"])), str(case["path"])
    assert (glob.matches(path), glob.covers(path)) == (case["matches"], case["covers"])


@pytest.mark.parametrize("pattern", SHARED["refused"])
def test_a_pattern_that_the_shared_table_refuses_is_refused(pattern: str) -> None:
    with pytest.raises(GlobError):
        Glob.parse(pattern)


@pytest.mark.parametrize(("pattern", "path", "expected"), MATCHES)
def test_a_pattern_matches_what_the_table_says(pattern: str, path: str, expected: bool) -> None:
    assert Glob.parse(pattern).matches(path) is expected


@pytest.mark.parametrize(
    ("pattern", "prefix", "exact"),
    [
        ("/tmp/**", "/tmp", True),
        ("/etc/ssl/cert.pem", "/etc/ssl/cert.pem", True),
        ("/home/a/src/**/*.py", "/home/a/src", False),
        ("/etc/*.conf", "/etc", False),
        ("/**", "/", True),
        ("/*", "/", False),
        ("/a/**/", "/a", True),
        ("/a/**/**", "/a", True),
        ("/a/**/b", "/a", False),
        ("<tmp>", "<tmp>", True),
        ("<tmp>/**", "<tmp>", True),
        ("<tmp>/x/**", "<tmp>/x", True),
        ("**/.env", "", False),
    ],
)
def test_the_static_prefix_is_exact_for_a_subtree_or_one_path_only(
    pattern: str, prefix: str, exact: bool
) -> None:
    glob = Glob.parse(pattern)
    assert (glob.prefix, glob.exact) == (prefix, exact)


@pytest.mark.parametrize(
    "pattern",
    ["", "a", "a/b", "**", "*", "/a/../b", "..", "/..", "/a\0b", "/a**", "/a/b**/c", "***/x"],
)
def test_an_invalid_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(GlobError):
        Glob.parse(pattern)


def test_dots_inside_a_name_are_not_parent_steps() -> None:
    assert Glob.parse("/a/..b/c..").text == "/a/..b/c.."


@pytest.mark.parametrize(
    ("pattern", "path", "expected"),
    [
        ("/a", "/a/b/c", True),
        ("/a/*", "/a/b/c", True),
        ("/a/*", "/a", False),
        ("**/.ssh", "/home/x/.ssh/id_rsa", True),
        ("**/.ssh", "/home/x/.sshd", False),
        ("/a", "/ab", False),
    ],
)
def test_a_pattern_covers_what_lies_below_its_matches(
    pattern: str, path: str, expected: bool
) -> None:
    assert Glob.parse(pattern).covers(path) is expected


@pytest.mark.parametrize(
    ("pattern", "prefix", "expected"),
    [
        ("/a/b/**", "/a", True),
        ("/a/b/**", "/a/b/c", True),
        ("/a/b/**", "/c", False),
        ("/a", "/a/b", False),
        ("/a", "/a", True),
        ("**/.env", "/anywhere", True),
        ("/a/*/c", "/a/b", True),
        ("/a/*/c", "/a/b/d", False),
        ("<tmp>/x", "/tmp", False),
    ],
)
def test_may_contain_says_whether_anything_below_could_match(
    pattern: str, prefix: str, expected: bool
) -> None:
    assert Glob.parse(pattern).may_contain(prefix) is expected


def naive(parts: tuple[str, ...], names: tuple[str, ...]) -> bool:
    if not parts:
        return not names
    if parts[0] == "**":
        return any(naive(parts[1:], names[i:]) for i in range(len(names) + 1))
    return bool(names) and naive_name(parts[0], names[0]) and naive(parts[1:], names[1:])


def naive_name(pattern: str, name: str) -> bool:
    if not pattern:
        return not name
    if pattern[0] == "*":
        return any(naive_name(pattern[1:], name[i:]) for i in range(len(name) + 1))
    return bool(name) and pattern[0] == name[0] and naive_name(pattern[1:], name[1:])


def test_matching_agrees_with_the_naive_reference() -> None:
    dice = random.Random(20)
    words = ["a", "b", "ab", "*", "a*", "*b", "a*b", "*a*"]
    agreed = 0
    for _ in range(4000):
        parts: list[str] = []
        for _ in range(dice.randint(1, 5)):
            part = dice.choice(["**", *words])
            if not (part == "**" and parts[-1:] == ["**"]):
                parts.append(part)
        names = tuple(dice.choice(["a", "b", "ab", "aab", "ba"]) for _ in range(dice.randint(0, 5)))
        glob = Glob.parse("/" + "/".join(parts))
        path = "/" + "/".join(names)
        assert glob.matches(path) == naive(tuple(parts), names), (parts, names)
        below = [names[:i] for i in range(len(names) + 1)]
        assert glob.covers(path) == any(naive(tuple(parts), some) for some in below), (parts, names)
        agreed += glob.matches(path)
    assert 300 < agreed < 3700  # the random cases include both results


def test_one_name_agrees_with_the_naive_reference() -> None:
    dice = random.Random(21)
    for _ in range(4000):
        pattern = "".join(dice.choice("ab*") for _ in range(dice.randint(0, 7)))
        name = "".join(dice.choice("ab") for _ in range(dice.randint(0, 7)))
        assert component_matches(pattern, name) == naive_name(pattern, name), (pattern, name)


def test_normalising_is_idempotent() -> None:
    for pattern, _, _ in MATCHES:
        text = Glob.parse(pattern).text
        assert Glob.parse(text).text == text


def test_a_hostile_pattern_takes_no_time() -> None:
    started = time.process_time()
    assert not Glob.parse("/" + "/".join(["**", "a*a*a*a*a*b"] * 10)).matches(
        "/" + "/".join(["a" * 200] * 40)
    )
    assert time.process_time() - started < 2
