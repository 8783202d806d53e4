"""Imports point down: a package imports those below it, and no two modules import each other, directly or not.

All imports count: at the top of a file, inside functions, and those for type checkers alone.
"""

from __future__ import annotations

import ast
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
    ("errors", "version"),
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
    imports = [one for module, path in modules.items() for one in python_imports(module, path.read_text(), modules)]
    assert len(imports) > len(modules)
    up = [one for one in imports if layers[_python_package(one.imported)] < layers[_python_package(one.importer)]]
    assert not up, "\n".join(map(str, up))


def test_no_python_modules_import_each_other() -> None:
    modules = python_modules(PYTHON)
    graph = {
        module: {one.imported for one in python_imports(module, path.read_text(), modules)} - {module}
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
    seen = [(one.line, one.imported) for one in python_imports("paddock.text.redact", text, modules)]
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
    """Imports of ``modules``, wherever they stand in the text. A name that is taken from a package is a module of it,
    if there is one, else it comes from the package's own file."""
    is_package = any(other.startswith(f"{module}.") for other in modules)
    for node in sorted(ast.walk(ast.parse(text)), key=lambda node: getattr(node, "lineno", 0)):
        match node:
            case ast.Import(names=names):
                named = [alias.name for alias in names]
            case ast.ImportFrom(module=base, names=names, level=level):
                above = module.split(".")[: len(module.split(".")) - level + is_package] if level else []
                start = ".".join([*above, *([base] if base else [])])
                named = [f"{start}.{alias.name}" for alias in names]
                named = [name if name in modules else start for name in named]
            case ast.Call(func=ast.Attribute(attr="import_module"), args=[ast.Constant(value=str(name)), *_]):
                named = [name]
            case _:
                continue
        for name in dict.fromkeys(named):
            if name in modules:
                yield PythonImport(importer=module, line=node.lineno, imported=name)


def python_circle(graph: dict[str, set[str]]) -> list[str]:
    """The first one that is found; empty: there is none."""
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
