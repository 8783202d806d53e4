"""Whether the tree of a shell text accounts for every byte of it.

The grammar skips blanks and comments, and separates words by rules that sometimes differ from those
of a shell. To a shell ``\\ #; reboot`` is a word and a second command; the grammar sees a comment.
So the text between nodes, the positions of comments and the edges of reserved words are compared
with what a shell accepts there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tree_sitter import Node

# a line continuation alone does not separate words
_BLANKS = re.compile(rb"(?:\\\n)*[ \t](?:[ \t]|\\\n)*")
_DESCRIPTOR = re.compile(rb"[0-9]+|\{[A-Za-z_][A-Za-z0-9_]*\}")
_NUMBERED = re.compile(rb"(?:^|[ \t\n;&|()<>`])(?:[0-9]+|\{[A-Za-z_][A-Za-z0-9_]*\})$")
_DASH = re.compile(rb"[ \t]+-[ \t]+")
_CLOSES = re.compile(rb"[<>]&(?:[ \t]|\\\n)*-[^ \t\n;&|()<>`]")
_LINES = re.compile(rb"(?:[ \t\n]|\\\n)*")
_EXPANDED = re.compile(rb"[$`]")
_ESCAPED = re.compile(rb"\\.", re.DOTALL)
_BLANK_BEHIND_BACKSLASHES = re.compile(rb"(\\*)[ \t]$")
# Statements with parts between which a shell accepts line breaks and comments.
_STATEMENTS = frozenset(
    (
        "program", "list", "pipeline", "subshell", "compound_statement", "if_statement",
        "elif_clause", "else_clause",
        "while_statement", "for_statement", "c_style_for_statement", "do_group", "case_statement",
        "case_item",
        "function_definition", "command_substitution", "process_substitution", "array",
        "negated_command",
    )
)  # fmt: skip
_EXPRESSIONS = frozenset(
    (
        "test_command", "binary_expression", "unary_expression", "postfix_expression",
        "parenthesized_expression",
        "ternary_expression", "arithmetic_expansion", "subscript",
    )
)  # fmt: skip
_COMMENTED = _STATEMENTS | {
    "command",
    "redirected_statement",
    "heredoc_redirect",
    "declaration_command",
}
# One word: the grammar sometimes skips blanks in the middle of it.
_TIGHT = frozenset(
    ("simple_expansion", "concatenation", "brace_expression", "variable_assignment", "command_name")
)
# Lists of words; adjacent ones are joined later.
_WORDS = frozenset(("case_item", "case_statement", "for_statement", "array"))
_RESERVED = frozenset(
    (
        "if", "then", "elif", "else", "fi", "for", "while", "until", "do", "done", "case", "esac",
        "select",
        "function", "in", "{", "}", "!", "[", "]", "[[", "]]", "declare", "typeset", "export",
        "readonly", "local",
        "unset", "unsetenv",
    )
)  # fmt: skip
_EDGES = b" \t\n;&|()<>"
_ENDS = frozenset((";", "&", "|", "|&", "&&", "||", ")", "))", ";;", ";&", ";;&", "`", "\n", ","))


def unaccounted(
    data: bytes, found: Iterable[Node], is_verbatim: Callable[[Node], bool]
) -> str | None:
    """The reason why a shell may read ``data`` differently than the tree; None: there is none.
    ``found``: all nodes of the tree, the root first.
    """
    for node in found:
        if node.type == "comment" and not _is_comment(data, node):
            return "the parser reads a # in it as a comment, and a shell reads it as part of a word"
        if node.type == "heredoc_redirect" and not _ends_at_its_mark(data, node):
            return "the parser and a shell end a here-document at different places"
        if (
            not node.is_named
            and node.child_count == 0
            and (node.text or b"").decode("latin-1") != node.type
        ):
            return "the parser reads more characters as an operator than a shell does"
        if "`" in node.type and node.type != "`":
            return "it has an empty pair of backticks"
        if not node.is_named and node.type in _RESERVED and not _stands_alone(data, node):
            return f"{node.type} touches other characters, so a shell reads it as part of a word"
        if node.type == "file_descriptor" and not (
            data[: node.start_byte][-1:] in _EDGES and _DESCRIPTOR.fullmatch(node.text or b"")
        ):
            return (
                "the parser reads a number as part of a redirection, and a shell reads it as "
                "part of a word"
            )
        if node.type.endswith("_redirect") and _NUMBERED.search(
            data[max(0, node.start_byte - 80) : node.start_byte]
        ):
            return (
                "the parser reads a number as part of a word, and a shell reads it as part of "
                "a redirection"
            )
        if _takes_a_word(data, node):
            return (
                "the parser reads a word after <&- or >&- as a target, and a shell reads it as "
                "an argument"
            )
        if node.child_count and not _fits(data, node, is_verbatim):
            return "the parser skips a part of it"
    return None


def _is_comment(data: bytes, node: Node) -> bool:
    before = data[: node.start_byte]
    blank = _BLANK_BEHIND_BACKSLASHES.search(before[-200:])
    begins = not before or before[-1:] in (b"\n", b";", b"&", b"|", b"(", b")") or blank is not None
    if not begins or (blank is not None and blank[1]) or _is_arithmetic(node.parent):
        return False
    if before.endswith((b"\\;", b"\\&", b"\\|", b"\\(", b"\\)", b"\\\n")):
        return False
    around = node.parent
    if around is None or around.type not in _COMMENTED:
        return False
    while around is not None and b"`" in (
        node.text or b""
    ):  # a backtick ends a comment inside of backticks
        if around.type == "command_substitution" and (around.text or b"").startswith(b"`"):
            return False
        around = around.parent
    return True


def _is_arithmetic(node: Node | None) -> bool:
    if node is None:
        return False
    return node.type == "c_style_for_statement" or any(
        child.type in ("((", "$((", "$[") for child in node.children[:1]
    )


def _takes_a_word(data: bytes, node: Node) -> bool:
    if node.type in ("<&-", ">&-"):
        return node.next_sibling is not None
    return node.type in ("<&", ">&") and _CLOSES.match(data, node.start_byte) is not None


def _stands_alone(data: bytes, node: Node) -> bool:
    parent = node.parent
    if parent is None or parent.type in (
        "subscript",
        "brace_expression",
        "expansion",
        "arithmetic_expansion",
    ):
        return True
    if (
        node.type in ("!", "[", "]")
        and parent.type != "negated_command"
        and parent.type != "test_command"
    ):
        return True  # an operator of an expression, or a letter of a word
    if node.type == "!" and parent.type == "test_command" and _is_arithmetic(parent):
        return True
    before, after = data[: node.start_byte][-1:], data[node.end_byte :][:1]
    return (before in _EDGES or before == b"`") and (after in _EDGES or after == b"`")


def _ends_at_its_mark(data: bytes, node: Node) -> bool:
    """The end is a separate line, and the first one that equals the delimiter."""
    parts = {child.type: child for child in node.children}
    start, end = parts.get("heredoc_start"), parts.get("heredoc_end")
    if start is None or end is None:
        return False
    mark = re.sub(rb"[\\'\"]", b"", start.text or b"")
    stripped = b"\t" if "<<-" in parts else b""
    begin = data.rfind(b"\n", 0, end.start_byte) + 1
    newline = data.find(b"\n", end.start_byte)
    last = data[begin : newline if newline >= 0 else len(data)]
    body = parts.get("heredoc_body")
    first = data.rfind(b"\n", 0, body.start_byte) + 1 if body is not None else begin
    lines = [last, *data[first:begin].split(b"\n")[:-1]]
    return [(line.lstrip(stripped) if stripped else line) == mark for line in lines] == [
        True,
        *(False for _ in lines[1:]),
    ]


def _fits(data: bytes, node: Node, is_verbatim: Callable[[Node], bool]) -> bool:
    """The text that is in ``node`` and in none of its children."""
    top = node.parent is None
    at, last = (0 if top else node.start_byte), None
    for child in (*node.children, None):
        begin = child.start_byte if child is not None else len(data) if top else node.end_byte
        if begin < at:
            return False
        gap = data[at:begin]
        if gap and not _may_be_skipped(node, gap, last, is_verbatim):
            return False
        if not gap and last is not None and child is not None and not _may_touch(node, last, child):
            return False
        if child is not None:
            at, last = child.end_byte, child
    return True


def _may_be_skipped(
    node: Node, gap: bytes, last: Node | None, is_verbatim: Callable[[Node], bool]
) -> bool:
    match node.type:
        case "heredoc_body":
            return is_verbatim(node) or _EXPANDED.search(_ESCAPED.sub(b"", gap)) is None
        case "redirected_statement" if (
            last is not None and last.type == "command" and _DASH.fullmatch(gap)
        ):
            return True
        case "string":
            return _LINES.fullmatch(gap) is not None
        case "variable_assignment" if _is_arithmetic(node.parent) or (
            node.parent is not None and node.parent.type in _EXPRESSIONS
        ):
            return _LINES.fullmatch(gap) is not None
        case kind if kind in _TIGHT:
            return False
        case "expansion" if last is not None and last.type == "${":
            return False
        case "heredoc_redirect" if last is not None and last.type in ("<<", "<<-"):
            return _BLANKS.fullmatch(gap) is not None
        case kind if (
            kind in _STATEMENTS or kind in _EXPRESSIONS or kind in ("heredoc_redirect", "expansion")
        ):
            return _LINES.fullmatch(gap) is not None
        case _:
            return _BLANKS.fullmatch(gap) is not None


def _may_touch(node: Node, one: Node, other: Node) -> bool:
    redirects = one.type.endswith("_redirect") or other.type.endswith("_redirect")
    if (
        one.type == "variable_assignment"
        and not _is_arithmetic(node)
        and node.type not in _EXPRESSIONS
    ):
        return redirects or other.type in _ENDS
    if node.type not in _STATEMENTS or node.type in _WORDS or _is_arithmetic(node):
        return True
    return redirects or not (one.is_named and other.is_named)


def lost_dash(redirect: Node) -> bool:
    """The grammar loses the argument ``-`` of ``python3 - <<E``."""
    before, parent = redirect.prev_sibling, redirect.parent
    if before is None or parent is None:
        return False
    begin = parent.start_byte
    return (
        _DASH.fullmatch((parent.text or b"")[before.end_byte - begin : redirect.start_byte - begin])
        is not None
    )
