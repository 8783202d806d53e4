"""Text that the grammar of bash reads and a POSIX shell may read differently.

The list contains the constructs that both read alike, so that an unknown construct does not count
as one. For example ``[[ a


b ]]`` is one expression to bash; dash runs the program ``[[`` and then the program ``b``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tree_sitter import Node

_ALIKE = frozenset(
    (
        "program", "command", "command_name", "word", "string", "string_content", "raw_string",
        "number", "pipeline",
        "list", "subshell", "compound_statement", "if_statement", "elif_clause", "else_clause",
        "while_statement",
        "for_statement", "do_group", "case_statement", "case_item", "function_definition",
        "variable_assignment",
        "variable_name", "simple_expansion", "special_variable_name", "expansion", "regex",
        "command_substitution",
        "arithmetic_expansion", "binary_expression", "unary_expression", "parenthesized_expression",
        "file_redirect",
        "file_descriptor", "heredoc_redirect", "heredoc_start", "heredoc_body", "heredoc_content",
        "heredoc_end",
        "comment", "concatenation", "negated_command", "test_command", "test_operator",
        "declaration_command",
        "unset_command", "redirected_statement", "extglob_pattern", "ternary_expression",
    )
)  # fmt: skip
_TOKENS = frozenset(
    ("[[", "]]", "((", "))", "|&", "&>", "&>>", "<<<", ";&", ";;&", "select", "function", "+=",
    "$[", "<(", ">(",
     "declare", "typeset", "=~", "**", "++", "--", ",")
)  # fmt: skip
_EXPANSION = re.compile(
    r"\$\{#?(?:[A-Za-z_]\w*|[0-9]+|[@*#?$!-])(?:\}|:?[-=?+].*|##?.*|%%?.*)", re.DOTALL
)
_BRACES = re.compile(r"\{[^}\s]*(?:,|\.\.)")


def beyond_posix(found: Iterable[Node]) -> str | None:
    """The first part that shells read differently, as written; None: there is none."""
    return next((_shown(node) for node in found if _is_beyond(node)), None)


def _is_beyond(node: Node) -> bool:
    if not node.is_named:
        following = node.next_sibling
        translated = node.type == "$" and following is not None and following.type == "string"
        return translated or node.type in _TOKENS
    text = (node.text or b"").decode("utf-8", "surrogateescape")
    match node.type:
        case "expansion":
            return _EXPANSION.fullmatch(text) is None
        case "word" | "concatenation" | "command_name":
            return _BRACES.search(text) is not None
        case "extglob_pattern":
            return "(" in text
        case "file_descriptor":
            return not text.isdecimal()
        case kind:
            return kind not in _ALIKE


def _shown(node: Node) -> str:
    text = (node.text or b"").decode("utf-8", "replace")
    return text if len(text) <= 40 else f"{text[:40]}…"
