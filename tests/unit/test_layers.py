"""Imports point down, in both languages: a package or a room imports those below it, and no two
import each other.

All imports count: at the top of a file, inside functions, and those for type checkers alone.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PYTHON = Path(__file__).parents[2] / "src"

# From top to bottom. A single module of src/paddock is named like a package.
PYTHON_LAYERS = (
    ("paddock", "__main__", "permissions"),
    ("cli",),
    ("session",),
    ("testing",),
    ("tools",),
    ("explain",),
    ("workspace",),
    ("executors",),
    ("launch",),
    ("approve",),
    ("http",),
    ("journal",),
    ("shell",),
    ("plan",),
    ("host",),
    ("policy",),
    ("core",),
    ("text",),
    ("errors", "frozen", "version"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonImport:
    importer: str
    line: int
    imported: str

    def __str__(self) -> str:
        return f"{self.importer}:{self.line} imports {self.imported}"


def test_python_imports_point_down() -> None:
    layers = {name: number for number, names in enumerate(PYTHON_LAYERS) for name in names}
    modules = python_modules(PYTHON)
    assert {_python_package(module) for module in modules} == layers.keys()
    imports = [
        one
        for module, path in modules.items()
        for one in python_imports(module, path.read_text(), modules)
    ]
    assert len(imports) > len(modules)
    up = [
        one
        for one in imports
        if layers[_python_package(one.imported)] < layers[_python_package(one.importer)]
    ]
    assert not up, "\n".join(map(str, up))


def test_python_modules_have_no_import_circle() -> None:
    modules = python_modules(PYTHON)
    graph = {
        module: {one.imported for one in python_imports(module, path.read_text(), modules)}
        - {module}
        for module, path in modules.items()
    }
    assert not python_circle(graph), " -> ".join(python_circle(graph))


def test_each_kind_of_python_import_is_seen() -> None:
    names = ("paddock", "paddock.cli", "paddock.cli.run", "paddock.text", "paddock.text.redact")
    modules = dict.fromkeys(names, Path())
    text = """
import os, paddock.cli.run
from paddock.cli import run, Parser
from paddock import __version__
from . import redact
if TYPE_CHECKING:
    from ..cli import Parser
def function():
    from paddock.cli.run import execute
    importlib.import_module("paddock.cli.run")
"""
    seen = [
        (one.line, one.imported) for one in python_imports("paddock.text.redact", text, modules)
    ]
    assert seen == [
        (2, "paddock.cli.run"),
        (3, "paddock.cli.run"),
        (3, "paddock.cli"),
        (4, "paddock"),
        (5, "paddock.text.redact"),
        (7, "paddock.cli"),
        (9, "paddock.cli.run"),
        (10, "paddock.cli.run"),
    ]


def test_a_circle_of_python_modules_is_seen() -> None:
    assert python_circle({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == ["a", "b", "c", "a"]
    assert python_circle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


def python_modules(root: Path) -> dict[str, Path]:
    """Each module below ``root`` by its dotted name."""
    found = {}
    for path in sorted(root.rglob("*.py")):
        *packages, name = path.relative_to(root).with_suffix("").parts
        found[".".join(packages if name == "__init__" else [*packages, name])] = path
    return found


def python_imports(module: str, text: str, modules: dict[str, Path]) -> Iterator[PythonImport]:
    """All imports of ``modules``. A name imported from a package is its module of that name, if
    there is one. Else it comes from the package's own file.
    """
    is_package = any(other.startswith(f"{module}.") for other in modules)
    for node in sorted(ast.walk(ast.parse(text)), key=lambda node: getattr(node, "lineno", 0)):
        match node:
            case ast.Import(names=names):
                named = [alias.name for alias in names]
            case ast.ImportFrom(module=base, names=names, level=level):
                above = (
                    module.split(".")[: len(module.split(".")) - level + is_package]
                    if level
                    else []
                )
                start = ".".join([*above, *([base] if base else [])])
                named = [f"{start}.{alias.name}" for alias in names]
                named = [name if name in modules else start for name in named]
            case ast.Call(
                func=ast.Attribute(attr="import_module"), args=[ast.Constant(value=str(name)), *_]
            ):
                named = [name]
            case _:
                continue
        for name in dict.fromkeys(named):
            if name in modules:
                yield PythonImport(importer=module, line=node.lineno, imported=name)


def python_circle(graph: dict[str, set[str]]) -> list[str]:
    """The first circle that is found, or an empty list."""
    done: set[str] = set()

    def search(way: list[str]) -> list[str]:
        for following in sorted(graph[way[-1]] - done):
            if following in way:
                return [*way[way.index(following) :], following]
            if circle := search([*way, following]):
                return circle
        done.add(way[-1])
        return []

    for module in graph:
        if module not in done and (circle := search([module])):
            return circle
    return []


def _python_package(module: str) -> str:
    """The package directly in paddock that a module belongs to."""
    return module.split(".")[1] if "." in module else module


ROOT = Path(__file__).parents[2]
CORE = ROOT / "core" / "src"

# Room of the core: the rooms it may import. A path means that part of the room and no other.
CORE_ROOMS = {
    "commands": {
        "supervisor",
        "sandbox",
        "network",
        "gate",
        "files",
        "limits",
        "approve",
        "journal",
        "kernel",
        "plan",
    },
    "supervisor": {
        "sandbox",
        "network",
        "gate",
        "files",
        "limits",
        "approve",
        "journal",
        "kernel",
        "plan",
    },
    "sandbox": {"network", "files", "limits", "journal", "kernel", "plan"},
    "network": {"approve", "journal", "kernel", "plan"},
    "gate": {"files", "approve", "journal", "kernel", "plan"},
    "files": {"kernel", "plan"},
    "limits": {"journal", "kernel", "plan"},
    "approve": {"kernel", "plan"},
    "journal": {"kernel", "plan"},
    "kernel": {"plan::wire"},
    "plan": set(),
}

# A path from the root of the crate, or one that climbs: `crate::a::b`, `super::super::a`,
# `crate::{a, b::c}`.
_CORE_PATH = re.compile(r"(?<![\w:$])(crate|super)((?:::\w+)*)(?:::(\{))?")
_CORE_COMMENT = re.compile(r"//[^\n]*")
_CORE_INLINE = re.compile(r"^( *)(?:pub(?:\([^)]*\))? )?mod \w+ \{$", re.MULTILINE)


def core_imports(text: str, depth: int) -> Iterator[str]:
    """The paths in a file from the root of the crate: ``a::b::c``. ``depth`` is that of the module,
    1 for a room.
    """
    code = _CORE_COMMENT.sub("", text)
    for found in _CORE_PATH.finditer(code):
        names = found[2].split("::")[1:]
        climbed = 0
        if found[1] == "super":
            climbed = 1 + sum(1 for name in names if name == "super")
            if climbed < depth + _inline_depth(code, found.start()):
                continue
            names = names[climbed - 1 :]
        if names:
            yield "::".join(names)
        elif found[3]:
            yield from _group(code, found.end())


def _inline_depth(code: str, position: int) -> int:
    """The number of inline modules around a position. Formatted code ends each at its own
    indentation.
    """
    depth = 0
    for opened in _CORE_INLINE.finditer(code, 0, position):
        closed = code.find(f"\n{opened[1]}}}\n", opened.end())
        depth += closed < 0 or closed > position
    return depth


def _group(code: str, start: int) -> Iterator[str]:
    """The members of ``{a::b, c::{d, e}}`` at the top level, after the opening brace."""
    level, member = 1, ""
    for letter in code[start:]:
        level += (letter == "{") - (letter == "}")
        if level == 0 or (level == 1 and letter == ","):
            yield re.sub(r"\s|::\{.*", "", member, flags=re.DOTALL)
            member = ""
            if level == 0:
                return
        else:
            member += letter


def core_room_violations(room: str, text: str, depth: int) -> list[str]:
    def allowed(path: str) -> bool:
        parts = path.split("::")
        tops = {"::".join(parts[:length]) for length in range(1, len(parts) + 1)}
        return bool(tops & (CORE_ROOMS[room] | {room}))

    return [path for path in core_imports(text, depth) if path and not allowed(path)]


def test_core_has_the_listed_rooms_and_no_other_file() -> None:
    assert {entry.name for entry in CORE.iterdir()} == {*CORE_ROOMS, "lib.rs"}
    assert all((CORE / room / "mod.rs").is_file() for room in CORE_ROOMS)


def test_core_rooms_import_only_rooms_below() -> None:
    order = list(CORE_ROOMS)
    for room, below in CORE_ROOMS.items():
        assert all(order.index(path.split("::")[0]) > order.index(room) for path in below)
    wrong = []
    seen = 0
    for path in sorted(CORE.glob("*/**/*.rs")):
        parts = path.relative_to(CORE).with_suffix("").parts
        depth = len(parts) - (parts[-1] == "mod")
        text = path.read_text()
        seen += sum(1 for _ in core_imports(text, depth))
        wrong += [
            f"{path.relative_to(CORE)}: {name}"
            for name in core_room_violations(parts[0], text, depth)
        ]
    assert not wrong
    assert seen > 500  # the pattern finds imports at all


def test_an_import_that_points_up_is_found_however_it_is_written() -> None:
    for text in [
        "use crate::commands::run;\n",
        "use crate::{journal, commands::run};\n",
        "use crate::{\n    journal::{self, Event},\n    commands::{run, record},\n};\n",
        "fn f() { crate::commands::run::run() }\n",
        "use super::super::commands::run;\n",
        "mod tests {\n    use super::super::super::commands::run;\n}\n",
        '#[error("{}", crate::commands::text(*.0))]\n',
    ]:
        found = core_room_violations("journal", text, 2)
        assert found, text
        assert all(name.startswith("commands") for name in found), text
    for text in [
        "use crate::kernel::sys;\n",
        "use crate::journal::head;\n",
        "use super::commands;\n",
        "// crate::commands::run\n",
        "mod tests {\n    use super::super::commands;\n}\n",
    ]:
        assert not core_room_violations("journal", text, 2), text
    assert core_room_violations("kernel", "use crate::plan::Plan;\n", 2) == ["plan::Plan"]
    assert not core_room_violations("kernel", "use crate::plan::wire::bytes;\n", 2)
