"""Each type name is defined once in a language."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src"
CORE = Path(__file__).parents[2] / "core"
RUST_TYPE = re.compile(r"^\s*(?:pub(?:\(\w+\))? )?(?:struct|enum|trait|union) (\w+)", re.MULTILINE)
RUST_ALIAS = re.compile(r"^(?:pub(?:\(\w+\))? )?type (\w+)", re.MULTILINE)


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


def test_each_rust_type_has_a_name_of_its_own() -> None:
    """``Result`` is the usual name of an alias that only its module uses."""
    found: dict[str, list[str]] = defaultdict(list)
    for room in ("bin", "src"):
        for path in sorted((CORE / room).rglob("*.rs")):
            for name in rust_type_names(path.read_text()):
                found[name].append(str(path.relative_to(CORE)))
    assert len(found) > 100
    twice = [f"{name}: {', '.join(paths)}" for name, paths in found.items() if len(paths) > 1]
    assert not twice, "\n".join(twice)


def test_rust_types_are_seen_and_associated_types_are_not() -> None:
    text = (
        "pub struct One;\n    enum Two {}\npub(crate) trait Three {}\ntype Four = One;\n"
        "type Result<T> = T;\n    type Error = One;\n"
    )
    assert rust_type_names(text) == ["One", "Two", "Three", "Four"]


def rust_type_names(text: str) -> list[str]:
    aliases = [name for name in RUST_ALIAS.findall(text) if name != "Result"]
    return [*RUST_TYPE.findall(text), *aliases]


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
