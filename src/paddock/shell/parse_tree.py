"""Parses shell text to a tree, with the grammar of tree-sitter-bash.

Imported only when a command is judged: the grammar is a library, and no start of a run needs it.
Text is ``str``; bytes that are not UTF-8 are surrogate escapes and leave the tree unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache

import tree_sitter_bash
from tree_sitter import Language, Node, Parser

from paddock.shell.dialect import Dialect
from paddock.shell.known_node_pairs import is_known
from paddock.shell.posix_differences import beyond_posix
from paddock.shell.unparsed_text import unaccounted

# For a text with an error, the time of the parser grows with the square of these. At each limit it
# takes less than a second.
MAX_TEXT_CHARS = 64 * 1024
MAX_OPERATORS = 3000
MAX_TREE_DEPTH = 200  # far above written code, and below the recursion limit

MAX_TREE_NODES = 20_000

# Never typed or printed by ordinary programs: a terminal shows other text than the shell reads.
_STRANGE = frozenset(map(chr, (*range(9), *range(11, 32), 127))) - {"\r"}
_ESCAPED = re.compile(r"\\.", re.DOTALL)
# The scanner of the grammar uses C character classes, which read beyond a table for non-ASCII
# characters and may crash. To a shell they are ordinary letters, so the grammar gets ordinary
# letters instead.
_MARK = b"Xq9Z"
_FOREIGN = re.compile(rb"[\x80-\xff]")
_MARKED = re.compile(_MARK + rb"([0-9a-f]{2})")
_TRANSFORMED = re.compile(r"\$\{!?(?:\w+|[@*#?$!-])(?:\[.*?\])?@[^}]")
_VARIABLE = re.compile(r"\$[\w@*#?$!{(-]")
_SYNTAX = frozenset("`;&|<>\"'\n")
# Builtins that take the name of a variable and expand its subscript.
_EVALUATING = frozenset(
    ("let", "read", "printf", "test", "mapfile", "readarray", "getopts", "wait")
)
_OPERATORS = frozenset("|&;<>()\n")
_OPENING = "|&;<>(){}`$"
_QUOTING = frozenset(
    ("string", "raw_string", "ansi_c_string", "translated_string", "command_substitution",
    "arithmetic_expansion",
     "expansion", "simple_expansion")
)  # fmt: skip
_CONTINUED = "\\\n"
# Blanks inside quotes and here-documents are significant, and some are in no leaf.
_WHOLE = frozenset({"string", "heredoc_body", "concatenation", "expansion"})
_RESERVED = frozenset(
    [
        "if",
        "then",
        "elif",
        "else",
        "fi",
        "for",
        "while",
        "until",
        "do",
        "done",
        "case",
        "esac",
        "select",
        "function",
        "{",
        "}",
    ]
)


@cache
def _parser() -> Parser:
    return Parser(Language(tree_sitter_bash.language()))


class Unparsed(ValueError):  # noqa: N818 (a state, not a fault)
    """The meaning of the text for a shell is unknown; the message has the reason. ``inside``: the
    decoded part, if the text contains it in another encoding (``base64``).
    """

    def __init__(self, message: str, inside: str = "") -> None:
        super().__init__(message)
        self.inside = inside


def parse(text: str, dialect: Dialect = Dialect.BASH) -> Node:
    """Raises Unparsed if ``dialect`` may read it differently than the grammar, which is that of
    bash.
    """
    if len(text) > MAX_TEXT_CHARS:
        raise Unparsed(f"it is longer than {MAX_TEXT_CHARS} characters")
    if sum(map(text.count, _OPENING)) > MAX_OPERATORS:
        raise Unparsed(f"it has more than {MAX_OPERATORS} operators")
    if not _STRANGE.isdisjoint(text) or "\r" in text:
        raise Unparsed("it contains control characters")
    try:
        data = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise Unparsed("it is not text") from None
    if _MARK in data:
        raise Unparsed("the parser does not accept it")
    plain = _FOREIGN.sub(lambda found: b"%s%02x" % (_MARK, found[0][0]), data)
    root = _parser().parse(plain).root_node
    if root.has_error:
        raise Unparsed("it is not a complete shell command")
    if _deeper_than(root, MAX_TREE_DEPTH):
        raise Unparsed(f"it is nested more than {MAX_TREE_DEPTH} deep")
    if root.descendant_count > MAX_TREE_NODES:
        raise Unparsed(f"it has more than {MAX_TREE_NODES} parts")
    if (lost := unaccounted(plain, nodes(root), is_verbatim)) is not None:
        raise Unparsed(lost, text.replace(_CONTINUED, ""))
    if not is_known(nodes(root)) or any(_misread(node) for node in leaves(root)):
        raise Unparsed("a shell reads a part of it differently than the parser")
    if any(node.type == "command_name" and text_of(node) == "coproc" for node in nodes(root)):
        raise Unparsed("the parser does not support coproc")
    if any(_shells_differ(node) for node in nodes(root)):
        raise Unparsed("shells read a quote in it differently")
    if any(node.type == "test_command" and _is_more_than_a_test(node) for node in nodes(root)):
        raise Unparsed("the parser reads an operator as an argument of [")
    if dialect is Dialect.SH and (other := beyond_posix(nodes(root))) is not None:
        raise Unparsed(
            f"only bash reads it as the parser does, and another shell would run it: {other}"
        )
    # After `!` and `time` the grammar does not know them, and reads them as programs.
    if any(node.type == "command_name" and text_of(node) in _RESERVED for node in nodes(root)):
        raise Unparsed("the parser reads a reserved word as a program")
    # The shell removes it; the grammar separates words there.
    if _CONTINUED in text:
        joined = text.replace(_CONTINUED, "")
        if tokens(root) != tokens(parse(joined, dialect)):
            raise Unparsed("a line continuation is inside a word", joined)
    return root


def text_of(node: Node) -> str:
    return decoded(node.text or b"")


def decoded(data: bytes) -> str:
    """A part of the grammar's input, as written."""
    return _MARKED.sub(lambda found: bytes([int(found[1], 16)]), data).decode(
        "utf-8", "surrogateescape"
    )


def tokens(root: Node) -> tuple[str, ...]:
    """The parts of the text, without comments and with blanks between words as one: two texts with
    the same tokens are the same command. Text in no leaf of the tree is included unchanged.
    """
    found: list[str] = []
    data, begin = root.text or b"", root.start_byte
    last, gap, at = None, "", begin
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if node.child_count and node.type not in _WHOLE:
            waiting += reversed(node.children)
            # A digit directly before a redirection belongs to it.
            if node.type in ("command", "pipeline", "list") or node.type.endswith("_redirect"):
                found.append(f"<{node.type}>")
            continue
        gap += decoded(data[at - begin : node.start_byte - begin])
        at = node.end_byte
        if node.type == "comment":
            continue
        between = _between(last, gap, node)
        found += [between, text_of(node)] if between else [text_of(node)]
        last, gap = node, ""
    gap += decoded(data[at - begin :])
    return (*found, gap) if gap.strip() else tuple(found)


def _between(last: Node | None, gap: str, node: Node) -> str:
    """The significant text between two leaves. For the grammar the first blanks of a here-document
    are such text.
    """
    if "heredoc_body" in (node.type, last.type if last is not None else ""):
        return gap
    gap = gap.replace(_CONTINUED, "")
    if gap.strip():
        return gap
    if last is None or (
        not last.is_named and last.parent is not None and last.parent.type.endswith("_redirect")
    ):
        return ""
    return gap.strip(" \t") or (gap[:1] and " ")


def leaves(root: Node) -> Iterator[Node]:
    return (node for node in nodes(root) if node.child_count == 0)


def nodes(root: Node, *, without: Callable[[Node], bool] = lambda _: False) -> Iterator[Node]:
    """All nodes of the tree, except those inside the nodes ``without``."""
    waiting = [root]
    while waiting:
        node = waiting.pop()
        yield node
        if not without(node):
            waiting += reversed(node.children)


def _misread(leaf: Node) -> bool:
    """Cases in which the grammar reads as text what a shell reads as syntax."""
    text = _ESCAPED.sub("", text_of(leaf))
    if leaf.type == "word":
        inside = _is_in_expansion(leaf)
        syntax = _SYNTAX if inside else _SYNTAX | {" ", "\t"}
        # A nested substitution.
        return (
            not syntax.isdisjoint(text)
            or _VARIABLE.search(text) is not None
            or "\\`" in text_of(leaf)
        )
    if leaf.type not in (
        "string_content",
        "heredoc_content",
        "heredoc_body",
        "extglob_pattern",
        "regex",
    ):
        return False
    return ("`" in text or "$(" in text) and not is_verbatim(leaf)


def _is_in_expansion(leaf: Node) -> bool:
    """Whether it is where blanks do not separate words."""
    around = leaf.parent
    while around is not None and around.type == "concatenation":
        around = around.parent
    return around is not None and around.type == "expansion"


def is_verbatim(leaf: Node) -> bool:
    """The body of a here-document with a quoted delimiter."""
    if leaf.type not in ("heredoc_body", "heredoc_content"):
        return False
    around = leaf.parent
    while around is not None and around.type != "heredoc_redirect":
        around = around.parent
    start = (
        next((child for child in around.children if child.type == "heredoc_start"), None)
        if around
        else None
    )
    return start is not None and not set("'\"\\").isdisjoint(text_of(start))


def _is_more_than_a_test(node: Node) -> bool:
    """``[`` is an ordinary command: ``[ a


    b ]`` runs ``b ]``. Only ``[[`` has its own operators.
    """
    text = (node.text or b"").decode("latin-1")
    if not text.startswith("[") or text.startswith("[["):
        return False
    outside = list(text)
    for inner in nodes(node, without=lambda one: one.type in _QUOTING):
        if inner.type in _QUOTING:
            start, end = inner.start_byte - node.start_byte, inner.end_byte - node.start_byte
            outside[start:end] = " " * (end - start)
    return not _OPERATORS.isdisjoint(_ESCAPED.sub("", "".join(outside)))


def _shells_differ(node: Node) -> bool:
    """A quote after a backslash in ``$'…'``, and quotes in ``${…}``."""
    if node.type == "ansi_c_string":
        return "\\'" in text_of(node)[:-1]
    if node.type != "expansion":
        return False
    text = text_of(node)
    return "'" in text and not _SYNTAX.isdisjoint(text.replace("'", "").replace('"', ""))


def evaluates_literals(root: Node) -> bool:
    """Bash expands the text that arithmetic finds in a variable or a quoted word once more:
    ``x='a[$(id)]'; ((x))`` runs id.
    """
    return any(map(_evaluates, nodes(root))) and any(map(_hides_a_command, nodes(root)))


def transforms(root: Node) -> bool:
    """``${x@P}`` expands the value once more, and runs commands in it."""
    return any(
        node.type == "expansion" and _TRANSFORMED.match(text_of(node)) is not None
        for node in nodes(root)
    )


def _evaluates(node: Node) -> bool:
    match node.type:
        case "arithmetic_expansion" | "subscript" | "c_style_for_statement" | "((" | "[[":
            return True
        case "expansion":
            return re.match(r"\$\{(?:!|[\w@*]+:[^-=?+])", text_of(node)) is not None
        case "declaration_command" | "unset_command":
            return node.children[0].type not in ("export", "readonly")
        case "test_operator":
            return text_of(node) == "-v"
        case "command_name":
            return text_of(node) in _EVALUATING
    return False


def _hides_a_command(node: Node) -> bool:
    """A literal that would be a substitution if it were expanded."""
    if node.type not in ("raw_string", "ansi_c_string", "word", "string_content"):
        return False
    text = text_of(node)
    if node.type == "ansi_c_string" and re.search(r"\\[xuU0-7]", text):
        return True
    plain = (
        text if node.type in ("raw_string", "ansi_c_string") else "".join(_ESCAPED.findall(text))
    )
    return "$(" in plain or "`" in plain or "\\$" in plain


def _deeper_than(root: Node, most: int) -> bool:
    level = [root]
    for _ in range(most):
        level = [child for node in level for child in node.children]
        if not level:
            return False
    return True


def is_statement(node: Node) -> bool:
    return node.type in (
        "pipeline",
        "command",
        "list",
        "redirected_statement",
        "subshell",
        "compound_statement",
    ) or (node.type.endswith(("_statement", "_command", "_definition")))


def runs_on(loop: Node) -> bool:
    """Whether a loop runs without end and does not wait for the processes it starts."""
    condition, body = loop.child_by_field_name("condition"), loop.child_by_field_name("body")
    endless = condition is None or text_of(condition).strip("; ") in (":", "true")
    if not endless or body is None:
        return False
    names = {text_of(node) for node in nodes(body) if node.type == "command_name"}
    return any(node.type == "&" for node in nodes(body)) and names.isdisjoint(
        {"sleep", "wait", "read", "break"}
    )


def starts_itself(node: Node, name: str) -> bool:
    """Whether it calls itself in a pipe or in the background, so that each call starts two."""
    waiting = [(node, False)]
    while waiting:
        here, doubled = waiting.pop()
        if here.type == "command_name" and doubled and text_of(here) == name:
            return True
        children = here.children
        for at, child in enumerate(children):
            behind = at + 1 < len(children) and children[at + 1].type == "&"
            waiting.append((child, doubled or behind or here.type == "pipeline"))
    return False
