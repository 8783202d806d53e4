"""Whether arithmetic of bash may run a command that the text does not show.

Arithmetic evaluates the value of a variable as arithmetic again, recursively. A subscript in it is
expanded, and ``$( )`` in a subscript runs: ``x='a[$'; y='(id)]'; z=$x$y; ((z))`` runs ``id``. So a
value is harmless only if the text shows that it has no ``$`` and no backtick. Values from other
sources count as harmful: the output of a command, input, file names, parameters, and, in a text
inside another one (``bash -c``), every variable that it does not set. Variables of the caller's
environment count as harmless.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from paddock.shell.parse_tree import nodes, text_of

if TYPE_CHECKING:
    from tree_sitter import Node

_NAME = re.compile(r"[A-Za-z_]\w*")
_PARAMETER = re.compile(r"\$(?:[0-9@*]|\{!?[0-9@*])")
_CODES = re.compile(r"\\[xuU0-7c]")
_ESCAPED = re.compile(r"\\[$`]")
_GLOB = re.compile(r"[*?]|\[")
_NUMBER_TEST = re.compile(r"(?<=\s)-(?:eq|ne|lt|le|gt|ge|v|R)(?=\s)")
_LOOKING_TEST = re.compile(r"(?<=\s)-[vR](?=\s)")
_OFFSET = re.compile(r"\$\{(?:!|[\w@*]+(?:\[.*?\])?:[^-=?+])", re.DOTALL)
_INTEGER = re.compile(r"-[A-Za-z]*i[A-Za-z]*")
_INTEGERS = frozenset({"RANDOM", "SECONDS", "SRANDOM", "LINENO", "HISTCMD", "OPTIND", "BASHPID"})
# Builtins that store external input in the variables that they name.
_READING = frozenset({"read", "mapfile", "readarray", "getopts", "printf", "wait", "select"})
# Builtins whose output is only their words.
_SAYING = frozenset(
    {"echo", "[", "test", ":", "true", "false", "return", "exit", "break", "continue"}
)
_PLAIN_OPERAND = re.compile(r"\"?\$?\{?\w+\}?\"?")


def may_run_values(root: Node, *, inner: bool) -> bool:
    """``inner``: the text is inside another one, which may have set variables."""
    found = list(nodes(root))
    regions = list(_regions(found))
    if not regions or (not inner and _is_closed(root, found)):
        return False
    foreign = _foreign(found, regions, inner=inner)
    return any(_is_foreign(parts, names, foreign) for parts, names in regions)


def _is_closed(root: Node, found: list[Node]) -> bool:
    """Every possible value is in the text, and none is a part of a substitution."""
    functions = {
        text_of(node.named_children[0]) for node in found if node.type == "function_definition"
    }
    commands = {text_of(node) for node in found if node.type == "command_name"}
    if "\\" in text_of(root) or not commands <= _SAYING | functions:
        return False
    words = (node for node in found if node.type in ("word", "extglob_pattern"))
    literals = (node for node in found if node.type in ("raw_string", "ansi_c_string", "$"))
    return not any(_GLOB.search(text_of(word)) for word in words) and not any(
        map(_is_source, literals)
    )


Region = tuple[list["Node"], set[str]]
"""The evaluated nodes, and the names whose values are used there."""


def _regions(found: list[Node]) -> Iterator[Region]:
    declares_integers = any(
        _INTEGER.fullmatch(text_of(one)) for one in found if _is_option_of_declaration(one)
    )
    for node in found:
        match node.type:
            case "arithmetic_expansion" | "subscript":
                yield _whole(node)
            case "((" | "$[" if node.parent is not None:
                yield _whole(*(one for one in node.parent.children if one.type != "do_group"))
            case "test_command":
                operators = _NUMBER_TEST if text_of(node).startswith("[[") else _LOOKING_TEST
                if operators.search(text_of(node)):
                    yield _whole(node)
            case "expansion" if _OFFSET.match(text_of(node)):
                yield _whole(node)
            case "declaration_command" | "unset_command":
                options = [
                    text_of(one) for one in node.children[1:] if text_of(one).startswith("-")
                ]
                strict = any("i" in one or "n" in one for one in options)
                yield _whole(node) if strict else _expanded(node)
            case "variable_assignment" if declares_integers or _assigned(node) in _INTEGERS:
                yield _whole(node)
            case "command":
                name = text_of(node.children[0]) if node.children else ""
                if name == "let":
                    yield _whole(node)
                elif name in _READING or (name == "test" and _LOOKING_TEST.search(text_of(node))):
                    yield _expanded(node)


def _is_option_of_declaration(node: Node) -> bool:
    return (
        node.type == "word"
        and node.parent is not None
        and node.parent.type == "declaration_command"
    )


def _whole(*parts: Node) -> Region:
    return list(parts), {name for part in parts for name in _NAME.findall(text_of(part))}


def _expanded(command: Node) -> Region:
    """Words that name variables: their subscripts are evaluated, and the results of expansions in
    them.
    """
    parts = command.children[1:]
    names = {
        text_of(one)
        for part in parts
        for one in nodes(part)
        if one.type == "variable_name" and _is_used(one)
    }
    names.update(
        name for part in parts if "[" in text_of(part) for name in _NAME.findall(text_of(part))
    )
    # Of printf only the word after -v names a variable.
    if text_of(command.children[0]) == "printf" and not any(
        text_of(part).startswith("-v") for part in parts[:1]
    ):
        return [], set()
    return list(parts), names


def _is_used(name: Node) -> bool:
    return name.parent is not None and name.parent.type in ("simple_expansion", "expansion")


def _assigned(node: Node) -> str:
    found = _NAME.match(text_of(node))
    return found.group() if found else ""


def _foreign(found: list[Node], regions: list[Region], *, inner: bool) -> set[str]:
    """Variables whose values may come from other sources, or contain a part of a substitution."""
    values: list[tuple[str, list[Node]]] = []
    for node in found:
        match node.type:
            case "variable_assignment":
                values.append((_assigned(node), node.children[1:]))
            case "for_statement":
                words = [one for one in node.children[2:] if one.type != "do_group"]
                values.append((_assigned(node.children[1]), words))
    foreign = {name for node in found for name in _read(node)}
    for name, parts in values:
        around = parts[0].parent if parts else None
        globs = around is not None and around.type == "for_statement"
        arrays = any(part.type == "array" for part in parts)
        if any(map(_brings, parts)) or (
            (globs or arrays) and any(_GLOB.search(text_of(part)) for part in parts)
        ):
            foreign.add(name)
    if inner:
        foreign |= {name for _, names in regions for name in names} - {name for name, _ in values}
    while True:  # a name in a value is evaluated as the value of that name
        more = {
            name
            for name, parts in values
            if name not in foreign and not foreign.isdisjoint(_names(parts))
        }
        if not more:
            return foreign
        foreign |= more


def _names(parts: Iterable[Node]) -> set[str]:
    return {name for part in parts for name in _NAME.findall(text_of(part))}


def _read(node: Node) -> Iterator[str]:
    """The names that a builtin sets."""
    if node.type != "command" or not node.children or text_of(node.children[0]) not in _READING:
        return
    words = [text_of(one) for one in node.children[1:]]
    if text_of(node.children[0]) == "printf" and not (words and words[0].startswith("-v")):
        return
    yield from ("REPLY", "MAPFILE", "OPTARG")
    for word in words:
        yield from _NAME.findall(word)


def _is_foreign(parts: list[Node], names: set[str], foreign: set[str]) -> bool:
    return not names.isdisjoint(foreign) or any(map(_brings, parts))


def _brings(root: Node) -> bool:
    """Whether a value with this node may contain a substitution or a part of one."""
    return any(map(_is_source, nodes(root, without=_is_a_number)))


def _is_source(node: Node) -> bool:
    text = text_of(node)
    match node.type:
        case "command_substitution" | "process_substitution":
            return not _is_a_number(node)
        case "raw_string":
            return "$" in text or "`" in text
        case "ansi_c_string":
            return "$" in text[1:] or "`" in text or _CODES.search(text) is not None
        case "simple_expansion" | "expansion":
            return _PARAMETER.match(text) is not None
        case "$":
            return node.parent is not None and node.parent.type != "simple_expansion"
        case "word" | "string_content" | "extglob_pattern":
            return _ESCAPED.search(text) is not None
    return False


def _is_a_number(node: Node) -> bool:
    """A command whose output is a number for every input."""
    if node.type != "command_substitution" or len(node.named_children) != 1:
        return False
    last = node.named_children[0]
    if last.type == "pipeline":
        last = last.named_children[-1]
    if last.type == "redirected_statement":
        last = last.named_children[0]
    if last.type != "command":
        return False
    name, *words = [text_of(one) for one in last.named_children]
    match name:
        case "nproc":
            return not words
        case "wc":
            return bool(words) and all(re.fullmatch(r"-[clmw]", word) for word in words)
        case "date":
            return words in (["+%s"], ["+%s%N"])
        case "id":
            return words in (["-u"], ["-g"])
        case "seq":
            return all(
                re.fullmatch(r"-?[0-9]+", word) or _PLAIN_OPERAND.fullmatch(word) for word in words
            )
    return False
