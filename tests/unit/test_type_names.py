"""Each type name is defined once in the package."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src"


def test_each_type_has_a_name_of_its_own() -> None:
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted(SOURCE.rglob("*.py")):
        for name in type_names(path.read_text()):
            found[name].append(str(path.relative_to(SOURCE)))
    assert len(found) > 100
    twice = [f"{name}: {', '.join(paths)}" for name, paths in found.items() if len(paths) > 1]
    assert not twice, "\n".join(twice)


def test_classes_and_aliases_are_types_and_constants_are_not() -> None:
    text = (
        "class One: ...\nTwo = str | int\nTHREE = 3\nfour = 4\nT = TypeVar('T')\nFive: "
        "TypeAlias = One\n"
    )
    assert type_names(text) == ["One", "Two", "Five"]


def type_names(text: str) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.ClassDef(name=name):
                found.append(name)
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                if name[:1].isupper() and not name.isupper():
                    found.append(name)
    return found
