"""Whether a text sets a variable, or changes the meaning of a name. Then the words of a command do
not show which program runs (``for PATH in x; do git status; done``), and no allowing rule applies.

The lists contain constructs that are known to set nothing; everything else counts.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from paddock.shell.parse_tree import is_verbatim, nodes, text_of

if TYPE_CHECKING:
    from tree_sitter import Node

    from paddock.shell.program_arguments import Command

_HARMLESS = frozenset(
    (
        "program", "comment", "list", "pipeline", "command", "command_name", "subshell",
        "compound_statement",
        "negated_command", "if_statement", "elif_clause", "else_clause", "while_statement",
        "do_group",
        "case_statement", "case_item", "redirected_statement", "file_redirect", "file_descriptor",
        "herestring_redirect", "heredoc_redirect", "heredoc_start", "heredoc_body",
        "heredoc_content", "heredoc_end",
        "word", "number", "string", "string_content", "raw_string", "ansi_c_string",
        "concatenation",
        "extglob_pattern", "brace_expression", "simple_expansion", "variable_name",
        "special_variable_name",
        "command_substitution", "process_substitution", "regex",
    )
)  # fmt: skip
# Expansions that only read. Not ":": the numbers after it are arithmetic.
_LOOKS = frozenset({"${", "}", "-", ":-", "+", ":+", "?", ":?", "#", "##", "%", "%%"})
# A name in arithmetic stands for the arithmetic in the variable, which may set others.
_NUMBERS = re.compile(r"\$\(\([\s0-9+*/%()<>=&|^~!?:,-]*\)\)", re.ASCII)
# Others compare by arithmetic (-eq), or evaluate a subscript (-v), which is arithmetic too.
_OPERAND = r'(?:\$?[\w./][\w./-]*|"\$?[\w./][\w./-]*")'
_TEST = re.compile(
    rf"(\[\[?)\s+(?:!\s+)?(?:(?:-[defhnrswxzL]\s+)?{_OPERAND}|{_OPERAND}\s+(?:==?|!=)\s+{_OPERAND})\s+\]\]?",
    re.ASCII,
)
_EXPANSION = re.compile(r"\$[\[({]|`")
_DESCRIPTOR = re.compile(r"\{[^\s{}]+\}[<>]", re.ASCII)  # {NAME}>file stores its number in NAME
# Builtins that set variables or options, name other programs, or run text in the same shell.
_BUILTINS = frozenset(
    (
        ".", "alias", "declare", "enable", "eval", "export", "float", "getopts", "hash", "integer",
        "let", "local",
        "mapfile", "nameref", "read", "readarray", "readonly", "set", "shift", "shopt", "source",
        "trap", "typeset",
        "unalias", "unset", "vared", "wait",
    )
)  # fmt: skip
_LOOKING_TESTS = frozenset({"-v", "-R", "-eq", "-ne", "-lt", "-le", "-gt", "-ge"})


def text_assigns(root: Node) -> bool:
    if _DESCRIPTOR.search(text_of(root)):
        return True
    return any(_may_assign(node) for node in nodes(root, without=_judged_whole))


def command_assigns(command: Command) -> bool:
    program, words = command.program, command.words[1:]
    if program == "printf":
        return any(word.startswith("-v") for word in words[:1])
    if program in ("test", "["):
        return not _LOOKING_TESTS.isdisjoint(words)
    return program in _BUILTINS


def _judged_whole(node: Node) -> bool:
    return node.type in ("arithmetic_expansion", "test_command")


def _may_assign(node: Node) -> bool:
    if not node.is_named:
        return node.type in ("((", "$[")
    match node.type:
        case "arithmetic_expansion":
            return _NUMBERS.fullmatch(text_of(node)) is None
        case "test_command":
            return _TEST.fullmatch(text_of(node)) is None
        case "expansion":
            first = node.named_children[:1]
            marks = {child.type for child in node.children if not child.is_named}
            return [child.type for child in first] != ["variable_name"] or not marks <= _LOOKS
        case "command_substitution":
            return text_of(node).startswith("$((")  # the form of arithmetic in a here-document
        case kind if kind not in _HARMLESS:
            return True
        case "raw_string" | "ansi_c_string" | "comment":
            return False
        case _ if node.child_count == 0:  # an expansion that the grammar reads as text
            return _EXPANSION.search(text_of(node)) is not None and not is_verbatim(node)
        case _:
            return False
