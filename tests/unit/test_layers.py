"""Imports point down: a room imports the rooms below it, and no other."""

import re
from collections.abc import Iterator
from pathlib import Path

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
    "supervisor": {"sandbox", "network", "gate", "files", "limits", "approve", "journal", "kernel", "plan"},
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

# A path from the root of the crate, or one that climbs: `crate::a::b`, `super::super::a`, `crate::{a, b::c}`.
_CORE_PATH = re.compile(r"(?<![\w:$])(crate|super)((?:::\w+)*)(?:::(\{))?")
_CORE_COMMENT = re.compile(r"//[^\n]*")
_CORE_INLINE = re.compile(r"^( *)(?:pub(?:\([^)]*\))? )?mod \w+ \{$", re.MULTILINE)


def core_imports(text: str, depth: int) -> Iterator[str]:
    """What a file names from the root of the crate on: ``a::b::c``. ``depth``: of the module, 1 for a room itself."""
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
    """How many modules of this very file surround a position. Formatted code ends each at its own indentation."""
    depth = 0
    for opened in _CORE_INLINE.finditer(code, 0, position):
        closed = code.find(f"\n{opened[1]}}}\n", opened.end())
        depth += closed < 0 or closed > position
    return depth


def _group(code: str, start: int) -> Iterator[str]:
    """The members of ``{a::b, c::{d, e}}`` at the top, whose brace was read already."""
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
        wrong += [f"{path.relative_to(CORE)}: {name}" for name in core_room_violations(parts[0], text, depth)]
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
