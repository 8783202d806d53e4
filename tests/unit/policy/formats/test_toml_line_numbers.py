"""Every key and every array element has its line."""

from __future__ import annotations

import random
import tomllib

import pytest

from paddock.policy.formats.toml_line_numbers import Path, positions

TEXT = '''\
# comment [not.a.table]
title = "a = b # no comment"

[meta]
inherit = ["one",   # [x]
  'two',
  """three
  still three""", "four"]
a.b . c = 1
"quoted key" = 'x'

[[rule]]
id = "r0"
nested = [[1, 2], [
  3]]
[[rule]]
id = "r1"
inline = { x = 1, "y.z" = [1,
  2] , deep = { er = true } }

[[rule.sub]]
k = 1979-05-27 07:32:00
[[rule.sub]]
k = 2
[rule.sub.table]
v = 3
[ a . "b c" ]
z = """"quotes""""
"esc\\u0061ped" = "\\"]"
multi = \'\'\'
[fake]
key = 1
\'\'\'
last = []
'''

EXPECTED: dict[Path, int] = {
    ("title",): 2,
    ("meta",): 4,
    ("meta", "inherit"): 5,
    ("meta", "inherit", 0): 5,
    ("meta", "inherit", 1): 6,
    ("meta", "inherit", 2): 7,
    ("meta", "inherit", 3): 8,
    ("meta", "a"): 9,
    ("meta", "a", "b"): 9,
    ("meta", "a", "b", "c"): 9,
    ("meta", "quoted key"): 10,
    ("rule",): 12,
    ("rule", 0): 12,
    ("rule", 0, "id"): 13,
    ("rule", 0, "nested"): 14,
    ("rule", 0, "nested", 0): 14,
    ("rule", 0, "nested", 0, 1): 14,
    ("rule", 0, "nested", 1): 14,
    ("rule", 0, "nested", 1, 0): 15,
    ("rule", 1): 16,
    ("rule", 1, "id"): 17,
    ("rule", 1, "inline"): 18,
    ("rule", 1, "inline", "x"): 18,
    ("rule", 1, "inline", "y.z"): 18,
    ("rule", 1, "inline", "y.z", 1): 19,
    ("rule", 1, "inline", "deep", "er"): 19,
    ("rule", 1, "sub"): 21,
    ("rule", 1, "sub", 0): 21,
    ("rule", 1, "sub", 0, "k"): 22,
    ("rule", 1, "sub", 1, "k"): 24,
    ("rule", 1, "sub", 1, "table"): 25,
    ("rule", 1, "sub", 1, "table", "v"): 26,
    ("a", "b c"): 27,
    ("a", "b c", "z"): 28,
    ("a", "b c", "escaped"): 29,
    ("a", "b c", "multi"): 30,
    ("a", "b c", "last"): 34,
}


def test_each_key_and_element_has_its_line() -> None:
    found = positions(TEXT)
    assert {path: found.get(path) for path in EXPECTED} == EXPECTED


def leaves(value: object, path: Path = ()) -> list[Path]:
    if isinstance(value, dict):
        return [path, *(leaf for key, each in value.items() for leaf in leaves(each, (*path, key)))]
    if isinstance(value, list):
        return [
            path,
            *(leaf for index, each in enumerate(value) for leaf in leaves(each, (*path, index))),
        ]
    return [path]


def test_the_scanner_finds_just_what_tomllib_finds() -> None:
    assert set(positions(TEXT)) == set(leaves(tomllib.loads(TEXT))) - {()}


@pytest.mark.parametrize(
    "value",
    ['"""a \\""" = 1\n[b]\n"""', '"\\\\"', '"\\\\\\"]"', "'''\\'''", '"""x\\\\"""', '""""""', "''"],
)
def test_an_escaped_quote_does_not_end_a_text(value: str) -> None:
    text = f"a = [{value},\n1]\nc = 2\n"
    assert set(positions(text)) == set(leaves(tomllib.loads(text))) - {()}
    assert positions(text)["c",] == text.count("\n")


def test_windows_line_ends_count_once() -> None:
    assert positions("a = 1\r\n[b]\r\nc = [\r\n  1,\r\n]\r\n") == {
        ("a",): 1,
        ("b",): 2,
        ("b", "c"): 3,
        ("b", "c", 0): 4,
    }


@pytest.mark.parametrize("text", ["", "\n\n", "# only a comment", "a = 1", "[a]"])
def test_small_files_are_scanned_like_large_ones(text: str) -> None:
    assert set(positions(text)) == set(leaves(tomllib.loads(text))) - {()}


def test_shuffled_documents_agree_with_tomllib() -> None:
    dice = random.Random(7)
    values = [
        "1",
        "-2.5",
        "true",
        '"x"',
        "'y'",
        "[]",
        "[ ]",
        "{}",
        '[1, "a]", [2]]',
        "{ k = [1], 'm.n' = '}' }",
        '"""\n#x\n"""',
    ]
    for _ in range(300):
        lines: list[str] = []
        for table in range(dice.randint(1, 4)):
            lines.append(
                dice.choice([f"[t{table}]", f"[ t{table} . x ]", "[[many]]", f"[t{table}.'q r']"])
            )
            for key in range(dice.randint(0, 4)):
                name = dice.choice([f"k{key}", f'"k {key}"', f"k{key}.sub", f"'k.{key}'"])
                lines.append(
                    f"{name} = {dice.choice(values)}" + dice.choice(["", " # c", "\n", "\t"])
                )
        text = "\n".join(lines) + dice.choice(["", "\n"])
        assert set(positions(text)) == set(leaves(tomllib.loads(text))) - {()}, text
