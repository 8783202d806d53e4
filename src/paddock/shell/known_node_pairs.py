"""The known pairs of nodes: which kind of node may be the direct child of which other.

The grammar guesses if a text is unusual: in ``(echo == a; reboot)`` it reads ``a; reboot`` as a
regular expression. A tree with a pair that is not listed here counts as unreadable, so untested
cases of the grammar are refused. The pairs are those of some thousand ordinary scripts. Anonymous
nodes are the operators and reserved words themselves.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tree_sitter import Node

_EXPANDED = "simple_expansion expansion command_substitution arithmetic_expansion"
_QUOTED = "string raw_string ansi_c_string translated_string"
_WORD = f"word number concatenation brace_expression process_substitution {_QUOTED} {_EXPANDED}"
_TEST = (
    f"test_command binary_expression unary_expression parenthesized_expression {_WORD} regex "
    "extglob_pattern"
)
_NUMBER = (
    f"number word variable_name subscript string raw_string concatenation {_EXPANDED} "
    "binary_expression"
)
_NUMBER += (
    " unary_expression postfix_expression parenthesized_expression ternary_expression"
    " variable_assignment"
)
_STATEMENT = (
    "command redirected_statement pipeline list subshell compound_statement if_statement "
    "while_statement for_statement"
    " c_style_for_statement case_statement function_definition variable_assignment "
    "variable_assignments"
    " declaration_command unset_command negated_command test_command comment"
)
_ENDS = "; & \n ;; heredoc_body"
_BINARY = (
    "= == != < > <= >= + - * / % ** & | ^ << >> && || , =~ += -= *= /= %= &= |= ^= <<= >>= "
    "test_operator"
)
_KNOWN = {
    "program": f"{_STATEMENT} {_ENDS}",
    "command": (
        "command_name variable_assignment file_redirect herestring_redirect heredoc_redirect"
        f" comment $ {_WORD}"
    ),
    "command_name": _WORD,
    "redirected_statement": f"{_STATEMENT} file_redirect herestring_redirect heredoc_redirect",
    "file_redirect": f"file_descriptor > >> < >| &> &>> >& <& >&- <&- <> {_WORD}",
    "herestring_redirect": f"<<< {_WORD}",
    "heredoc_redirect": (
        "<< <<- heredoc_start heredoc_body heredoc_end file_redirect herestring_redirect "
        "file_descriptor | && ||"
        f" {_STATEMENT} {_WORD}"
    ),
    "heredoc_body": f"heredoc_content {_EXPANDED}",
    "pipeline": f"| |& {_STATEMENT}",
    "list": f"&& || {_STATEMENT}",
    "subshell": f"( ) {_STATEMENT} {_ENDS}",
    "compound_statement": f"{{ }} (( )) {_STATEMENT} {_ENDS} {_NUMBER}",
    "command_substitution": f"$( ) ` file_redirect {_STATEMENT} {_ENDS}",
    "process_substitution": f"<( >( ) {_STATEMENT} {_ENDS}",
    "negated_command": f"! {_STATEMENT}",
    "if_statement": f"if then fi elif_clause else_clause {_STATEMENT} {_ENDS}",
    "elif_clause": f"elif then {_STATEMENT} {_ENDS}",
    "else_clause": f"else {_STATEMENT} {_ENDS}",
    "while_statement": f"while until do_group {_STATEMENT} {_ENDS}",
    "for_statement": f"for select in variable_name do_group {_ENDS} {_WORD}",
    "c_style_for_statement": f"for (( )) , do_group compound_statement {_ENDS} {_NUMBER}",
    "do_group": f"do done {_STATEMENT} {_ENDS}",
    "case_statement": f"case in esac case_item comment {_ENDS} {_WORD}",
    "case_item": f"( ) | ;; ;& ;;& extglob_pattern {_STATEMENT} {_ENDS} {_WORD}",
    "function_definition": "function word ( ) compound_statement subshell",
    "variable_assignments": "variable_assignment",
    "variable_assignment": f"variable_name subscript = += array {_WORD} {_NUMBER}",
    "array": f"( ) comment {_WORD}",
    "subscript": f"variable_name [ ] {_NUMBER}",
    "declaration_command": (
        f"declare typeset export readonly local variable_name variable_assignment {_WORD}"
    ),
    "unset_command": f"unset unsetenv variable_name {_WORD}",
    "test_command": f"[ ] [[ ]] (( )) {_TEST} {_NUMBER}",
    "binary_expression": f"{_BINARY} {_TEST} {_NUMBER}",
    "unary_expression": f"! - + ~ ++ -- test_operator {_TEST} {_NUMBER}",
    "postfix_expression": f"++ -- {_NUMBER}",
    "ternary_expression": f"? : {_NUMBER}",
    "parenthesized_expression": f"( ) {_TEST} {_NUMBER}",
    "arithmetic_expansion": f"$(( )) $[ ] , {_NUMBER}",
    "concatenation": f"$ {_WORD}",
    "string": f'" $ string_content {_EXPANDED}',
    "translated_string": "$ string",
    "simple_expansion": "$ variable_name special_variable_name",
    "expansion": (
        "${ } ! # ## % %% / // /# /% : :- := :? :+ - = ? + ^ ^^ , ,, @ K Q U u L P E A a * "
        "variable_name"
        f" special_variable_name subscript regex {_WORD} {_NUMBER}"
    ),
    "brace_expression": "{ } .. number word",
}
_PAIRS = {parent: frozenset(children.split(" ")) for parent, children in _KNOWN.items()}
# A shell removes these backslashes before it reads the text between backticks.
_TWICE = re.compile(rb"\\[\\`$]")


def is_known(found: Iterable[Node]) -> bool:
    """``found``: all nodes of a tree."""
    return all(_is_known(node) for node in found)


def _is_known(node: Node) -> bool:
    parent = node.parent
    if parent is not None and node.type not in _PAIRS.get(parent.type, frozenset()):
        return False
    match node.type:
        case "regex" | "extglob_pattern" if (
            parent is not None and parent.type == "binary_expression"
        ):
            return _is_in_test(node)
        case "file_redirect" if parent is not None and parent.type == "command_substitution":
            return any(child.type == "<" for child in node.children)
        case "raw_string" | "ansi_c_string":
            return not _is_in_quoted_expansion(node)
        case "command_substitution" if (node.text or b"").startswith(b"`"):
            return _TWICE.search(node.text or b"") is None
    return True


def _is_in_test(node: Node) -> bool:
    """In ``[[ ]]``: the grammar reads ``( echo == a )`` as a test too."""
    around = node.parent
    while around is not None and around.type != "test_command":
        around = around.parent
    return around is not None and around.children[0].type == "[["


def _is_in_quoted_expansion(node: Node) -> bool:
    """In ``"${x-'a'}"`` the single quotes are literal, and ``$( )`` between them runs."""
    around, expansion = node.parent, False
    while around is not None:
        expansion = expansion or around.type == "expansion"
        if around.type in ("string", "heredoc_body"):
            return expansion
        if around.type in ("command_substitution", "process_substitution"):
            return False
        around = around.parent
    return False
