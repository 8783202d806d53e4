"""Expands words of a shell to their possible texts: variables, substitutions, quotes, braces,
``~``.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, product
from typing import TYPE_CHECKING

from paddock.shell.dialect import Dialect
from paddock.shell.parse_tree import decoded, text_of
from paddock.shell.program_arguments import ShellStream
from paddock.shell.shell_state import ShellState
from paddock.shell.words import (
    SOMETHING,
    UNKNOWN,
    Piece,
    ansi,
    braces,
    fields_of,
    groups_of,
    guarded,
    hidden,
    programs_of,
    too_many,
    unescaped,
    unquoted,
)

if TYPE_CHECKING:
    from tree_sitter import Node

# Bash expands ~ behind the = and each : of an argument that looks like an assignment. Dash does
# not.
_LIKE_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*(?:\[[^]]*\])?\+?=(?:.*:)?~", re.ASCII | re.DOTALL)
_NOT_PLAIN = re.compile(r"[\\'\"$`{]")


class Expansion(ABC):
    """``state``: that of the shell at the word. Subclasses walk the commands of substitutions."""

    state: ShellState
    dialect: Dialect

    @abstractmethod
    def apart(self, node: Node, stdin: ShellStream | None) -> ShellStream:
        """Runs in a subshell: its changes stay there."""

    def inside(self, node: Node) -> None:
        """Walks the substitutions anywhere in a text."""
        for child in node.named_children:
            if child.type in ("command_substitution", "process_substitution"):
                self.apart(child, None)
            else:
                self.inside(child)

    def words(self, nodes: Sequence[Node]) -> list[str]:
        """Adjacent nodes without a blank are one word, even if the grammar separates them."""
        return [
            word
            for group in groups_of(nodes)
            for alternative in self.argument(group)
            for word in fields_of(alternative)
        ]

    def argument(self, nodes: Sequence[Node]) -> list[Piece]:
        """The texts that an argument of a command may become."""
        source = "".join(map(text_of, nodes))
        alternatives = self.alternatives(nodes)
        if self.dialect is not Dialect.BASH or _LIKE_ASSIGNMENT.match(source) is None:
            return alternatives
        if _NOT_PLAIN.search(source):
            return [replace(alternative, text=UNKNOWN) for alternative in alternatives]
        return [
            replace(alternative, text=self._like_assignment(alternative.text))
            for alternative in alternatives
        ]

    def _like_assignment(self, text: str) -> str:
        name, equals, value = text.partition("=")
        return name + equals + ":".join(map(self.state.tilde, value.split(":")))

    def alternatives(self, nodes: Sequence[Node]) -> list[Piece]:
        """The possible texts of a word. Blanks that separate words are kept; ``splits`` hides the
        others from ``fields_of``.
        """
        parts = [self._expand(node, quoted=False) for node in nodes]
        if too_many(parts):
            parts = [
                [Piece(UNKNOWN, splits=True, programs=programs_of(chain.from_iterable(parts)))]
            ]
        homely = bool(nodes) and text_of(nodes[0]).startswith(
            ("~", "{")
        )  # not after an empty string
        alternatives: list[Piece] = []
        for chosen in product(*parts):
            text = "".join(guarded(piece) for piece in chosen)
            programs = programs_of(chosen)
            alternatives += [
                Piece(self.state.tilde(one) if homely else one, programs=programs)
                for one in braces(text)
            ]
        return alternatives

    def _expand(self, node: Node, *, quoted: bool) -> list[Piece]:
        match node.type:
            case (
                "word"
                | "number"
                | "extglob_pattern"
                | "regex"
                | "test_operator"
                | "variable_name"
                | "special_variable_name"
            ):
                if node.type == "number" and node.named_child_count:
                    return [Piece(UNKNOWN)]
                return [Piece(unescaped(text_of(node)))]
            case "raw_string":
                return [Piece(hidden(text_of(node)[1:-1]))]
            case "ansi_c_string":
                return [Piece(hidden(ansi(text_of(node)[2:-1])))]
            case "string_content" | "heredoc_content":
                return [Piece(hidden(unquoted(text_of(node))))]
            case "string" | "translated_string" | "heredoc_body":
                return self._whole(node, quoted=True)
            case "concatenation" | "command_name":
                return self._whole(node, quoted=quoted)
            case "simple_expansion" | "expansion":
                return self._variable(node, quoted=quoted)
            case "command_substitution":
                out = self.apart(node, None)
                text = UNKNOWN if out.text is None else out.text.rstrip("\n")
                return [Piece(text, splits=not quoted, programs=out.programs)]
            case "process_substitution":
                out = self.apart(node, None)
                name = f"/dev/fd/{len(self.state.files)}-{node.start_byte}"
                self.state.files[name] = out
                return [Piece(name, programs=out.programs)]
            case "array":
                for child in node.named_children:
                    self._expand(child, quoted=quoted)
                return [Piece(UNKNOWN, splits=True)]
            case "$":
                return [Piece(_dollar(node))]
            case _ if not node.is_named:
                return [Piece(unescaped(text_of(node)))]
            case _:
                self.inside(node)
                return [Piece(UNKNOWN, splits=not quoted)]

    def _whole(self, node: Node, *, quoted: bool) -> list[Piece]:
        """A whole node, with the text between its children: the grammar leaves out blanks in
        quotes.
        """
        data = node.text or b""
        parts: list[list[Piece]] = []
        at = node.start_byte
        marks = ('"',)
        for child in node.children:
            if quoted and child.start_byte > at:
                between = data[at - node.start_byte : child.start_byte - node.start_byte]
                parts.append([Piece(hidden(unquoted(decoded(between))))])
            at = child.end_byte
            if not (quoted and child.type in marks):
                parts.append(self._expand(child, quoted=quoted))
        if not node.children or (quoted and node.end_byte > at):
            text = decoded(data[at - node.start_byte :])
            parts.append([Piece(hidden(unquoted(text)))])
        if too_many(parts):
            return [
                Piece(UNKNOWN, splits=not quoted, programs=programs_of(chain.from_iterable(parts)))
            ]
        return [
            Piece(
                "".join(guarded(piece) for piece in chosen),
                splits=True,  # blanks that must not separate words are hidden already
                programs=programs_of(chosen),
            )
            for chosen in product(*parts)
        ]

    def _variable(self, node: Node, *, quoted: bool) -> list[Piece]:
        named = node.named_children
        name = (
            text_of(named[0])
            if named and named[0].type in ("variable_name", "special_variable_name")
            else ""
        )
        operators = [
            child.type
            for child in node.children
            if not child.is_named and child.type not in ("$", "${", "}")
        ]
        pieces = list(self.state.variables.get(name, ()))
        if name == "PWD" and not pieces:
            pieces = [Piece(self.state.cwd)]
        if not operators and len(named) == 1:
            known = pieces or [Piece(UNKNOWN)]
        elif operators[:1] in (["?"], [":?"]):
            known = pieces or [Piece(SOMETHING)]
        elif operators[:1] in (["-"], [":-"], ["="], [":="]):
            known = [
                *(pieces or [Piece(UNKNOWN)]),
                *(self.alternatives(named[1:]) if named[1:] else [Piece("")]),
            ]
        else:
            self.inside(node)
            known = [Piece(UNKNOWN)]
        return [replace(piece, splits=not quoted or name in ("@", "*")) for piece in known]


def _dollar(node: Node) -> str:
    """A ``$`` that the grammar sees alone: of ``$"…"``, or a character. UNKNOWN: the name of a
    variable may follow.
    """
    around: Node | None = node
    while around is not None and around.next_sibling is None:
        around = around.parent
    following = around.next_sibling if around is not None else None
    if following is None or following.start_byte > node.end_byte or following.type == '"':
        return "$"
    first = text_of(following)[:1]
    return "" if first == '"' else UNKNOWN if first.isalnum() or first in "_@*#?$!-({['`" else "$"
