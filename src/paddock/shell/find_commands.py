"""Finds the commands that a shell text would start, as far as the text shows it.

The text is walked in the order of a shell, without running anything. Words are expanded; ``cd`` and
assignments are tracked; pipes, substitutions, written files and re-run text are followed; wrappers
(``sudo``, ``env``, ``sh -c``, ``xargs`` …: wrappers.toml) are removed. Every branch counts, also
one that would not be taken. Unknown parts are ``UNKNOWN``; a shell that gets invisible text is a
doubt.

Nothing here decides. ``denied_commands.py`` has the rules.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from paddock.shell.assignments import command_assigns, text_assigns
from paddock.shell.command_effects import code_of, dialect_for, effect_of, other_code, unwrapped
from paddock.shell.dialect import Dialect
from paddock.shell.evaluated_values import may_run_values
from paddock.shell.expansion import Expansion
from paddock.shell.parse_tree import (
    Unparsed,
    evaluates_literals,
    is_statement,
    parse,
    runs_on,
    starts_itself,
    text_of,
    transforms,
)
from paddock.shell.program_arguments import (
    Command,
    Redirect,
    ShellStream,
    copies_descriptor,
    joined,
)
from paddock.shell.shell_state import ShellState
from paddock.shell.unparsed_text import lost_dash
from paddock.shell.words import (
    MAX_EXPANSIONS,
    SOMETHING,
    UNKNOWN,
    Piece,
    fields_of,
    groups_of,
    known_text,
    programs_of,
    quoted,
    shown,
    unknown,
)

if TYPE_CHECKING:
    from tree_sitter import Node

_HEREDOC = ("heredoc_start", "heredoc_body", "heredoc_end", "file_descriptor", "comment")
MAX_COMMANDS = 1000
MAX_LINE_CHARS = 256 * 1024  # of all words, values of variables, and texts that shells run inside
MAX_NESTED_TEXTS = 12  # levels of text inside text: sh -c "sh -c …"
# Variables that shells run when they start, before each command, or to show a prompt.
_RUN_BY_SHELLS = ("BASH_ENV", "ENV", "PROMPT_COMMAND", "PS0", "PS1", "PS2", "PS4")
# Variables that other programs pass to a shell.
_HANDED_ON = (
    "GIT_EXTERNAL_DIFF", "GIT_PAGER", "GIT_SSH_COMMAND", "GIT_EDITOR", "GIT_SEQUENCE_EDITOR",
    "PAGER", "MANPAGER",
    "EDITOR", "VISUAL",
)  # fmt: skip
_REFERS = re.compile("-[a-zA-Z]*n")  # declare -n
_CASE = re.compile("-[a-zA-Z]*?([luc])[a-zA-Z]*")  # declare -l
_ARRAYS_OF_NAMES = ("BASH_ALIASES", "BASH_CMDS")
_DECLARING = ("", "declare", "export", "local", "readonly", "typeset")


@dataclass(slots=True, kw_only=True)
class ShellLine:
    """The result for a text: commands in the order of their start, and the reasons why parts are
    unknown.
    """

    commands: list[Command] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)
    bombs: list[str] = field(default_factory=list)  # functions that call themselves twice
    texts: list[str] = field(
        default_factory=list
    )  # code of other languages, which may start any program
    chars: int = 0  # of the words and texts so far
    assigns: bool = False  # sets a variable or changes the meaning of a name: see assignments.py


def read_line(text: str, *, cwd: str, home: str, dialect: Dialect = Dialect.BASH) -> ShellLine:
    """Raises Unparsed if the text is not a shell command. An inner text (``sh -c``) that is not one
    is a doubt.
    """
    root = parse(text, dialect)
    line = ShellLine()
    variables: dict[str, tuple[Piece, ...]] = {
        "HOME": (Piece(home),),
        "IFS": (Piece(" \t\n", splits=True),),
    }
    _Walk(line, ShellState(cwd=cwd, home=home, variables=variables), 0, dialect=dialect).all_of(
        root, None
    )
    if line.assigns:
        line.commands = [replace(command, bare=False) for command in line.commands]
    return line


@dataclass(slots=True)
class _Walk(Expansion):
    line: ShellLine
    state: ShellState
    layer: int
    seen: set[int] = field(default_factory=set)  # start offsets of the walked commands of this text
    dialect: Dialect = Dialect.BASH  # of the shell that runs this text

    def all_of(self, root: Node, stdin: ShellStream | None) -> ShellStream:
        self.line.assigns = self.line.assigns or text_assigns(root)
        if self.dialect is Dialect.BASH and evaluates_literals(root):
            self.line.doubts.append(
                "arithmetic or an array subscript runs a command that is quoted in the text"
            )
        elif self.dialect is Dialect.BASH and may_run_values(root, inner=self.layer > 0):
            self.line.doubts.append(
                "arithmetic or an array subscript may run the content of a variable"
            )
        if transforms(root):
            self.line.doubts.append("an expansion with @ may run the content of a variable")
        out = self.run(root, stdin)
        waiting = [root]
        while waiting:  # cases of the grammar that no rule below handles
            node = waiting.pop()
            waiting += node.named_children
            if node.type == "command" and node.start_byte not in self.seen:
                self.run(node, None)
        return out

    # Statements. Each takes its input and returns its output.

    def run(self, node: Node, stdin: ShellStream | None) -> ShellStream:
        match node.type:
            case "command":
                return self._command(node, stdin, [])
            case "redirected_statement":
                return self._redirected(node, stdin)
            case "pipeline":
                return self._pipeline(node, stdin)
            case "subshell" | "command_substitution" | "process_substitution":
                return self.apart(node, stdin)
            case "function_definition":
                return self._function(node)
            case "variable_assignment":
                self._emit(
                    Command(
                        words=(), cwd=self.state.cwd, bare=False, assigned=(self._assign(node),)
                    )
                )
                return ShellStream(text="")
            case "declaration_command" | "unset_command":
                return self._declaration(node)
            case "for_statement":
                return self._for(node, stdin)
            case "while_statement" | "c_style_for_statement" if runs_on(node):
                self.line.doubts.append("it starts background commands in an endless loop")
                return self._each(node.named_children, stdin)
            case "comment" | "heredoc_body":
                self.inside(node)
                return ShellStream(text="")
            case _:
                return self._each(node.named_children, stdin)

    def _each(self, nodes: Sequence[Node], stdin: ShellStream | None) -> ShellStream:
        return joined([self.run(node, stdin) for node in nodes])

    def apart(self, node: Node, stdin: ShellStream | None) -> ShellStream:
        """Runs in a subshell: its changes stay there."""
        outer, self.state = self.state, self.state.copy()
        try:
            return self._each(node.named_children, stdin)
        finally:
            self.state = outer

    def _pipeline(self, node: Node, stdin: ShellStream | None) -> ShellStream:
        stream = stdin
        for stage in node.named_children:
            if stage.type == "comment":
                continue
            outer, self.state = self.state, self.state.copy()
            self.state.stdin = self.state.stdin if stream is None else None
            out = self.run(stage, stream)
            self.state = outer
            stream = (
                out if stream is None else replace(out, programs=out.programs | stream.programs)
            )
        return stream or ShellStream(text="")

    def _for(self, node: Node, stdin: ShellStream | None) -> ShellStream:
        names = [child for child in node.named_children if child.type == "variable_name"]
        body = [child for child in node.named_children if child.type == "do_group"]
        values = [
            child for child in node.named_children if child not in names and child not in body
        ]
        words = self.words(values)
        for name in names:
            known = tuple(Piece(word, splits=True) for word in words) or (
                Piece(UNKNOWN, splits=True),
            )
            self.state.variables[text_of(name)] = known
        return self._each(body, stdin)

    def _function(self, node: Node) -> ShellStream:
        name, *body = node.named_children
        called = text_of(name)
        if called and any(starts_itself(part, called) for part in body):
            self.line.bombs.append(called)
        self.state.functions[called] = body
        self._each(body, None)
        return ShellStream(text="")

    def _assign(self, node: Node) -> str:
        """Returns ``NAME=value`` as far as it is known."""
        name = node.child_by_field_name("name")
        value = node.child_by_field_name("value")
        key = "" if name is None else text_of(name)
        alternatives = [Piece("")] if value is None else self.alternatives([value])
        pieces = [
            replace(alternative, text=self.state.cased(key, shown(alternative.text)))
            for alternative in alternatives
        ]
        self._name_anew(key, pieces)
        self._count([piece.text for piece in pieces])
        if any(child.type == "+=" for child in node.children):
            pieces = [Piece(UNKNOWN, programs=piece.programs) for piece in pieces]
        # The previous value still counts, because the branch is unknown.
        all_values = tuple(dict.fromkeys((*self.state.variables.get(key, ()), *pieces)))
        self.state.variables[key] = (
            all_values
            if len(all_values) <= MAX_EXPANSIONS
            else (Piece(UNKNOWN, programs=programs_of(all_values)),)
        )
        return f"{key}={pieces[-1].text}"

    def _name_anew(self, key: str, pieces: Sequence[Piece]) -> None:
        """The arrays of bash with its aliases, and with the paths of programs."""
        array, _, name = key.rstrip("]").partition("[")
        if array not in _ARRAYS_OF_NAMES:
            return
        if not name or unknown(name) or "$" in name or any(unknown(piece.text) for piece in pieces):
            self.line.doubts.append(f"{array} gives a name to another command")
            return
        self.state.names[name.strip("'\"")] = pieces[-1].text

    def _declaration(self, node: Node) -> ShellStream:
        """export, local, declare, readonly, unset: the grammar has its own nodes for these."""
        for child in node.named_children:
            if found := _CASE.fullmatch(text_of(child)):
                names = (one.child_by_field_name("name") or one for one in node.named_children)
                self.state.cases |= {text_of(name): found[1] for name in names}
        assigned = tuple(
            self._assign(child)
            for child in node.named_children
            if child.type == "variable_assignment"
        )
        others = [child for child in node.named_children if child.type != "variable_assignment"]
        words = (node.children[0].type, *(word for child in others for word in self.words([child])))
        self._emit(Command(words=words, cwd=self.state.cwd, bare=not assigned, assigned=assigned))
        return ShellStream(text="")

    # Redirections.

    def _redirected(self, node: Node, stdin: ShellStream | None) -> ShellStream:
        redirects = [child for child in node.children if child.type.endswith("_redirect")]
        body = [child for child in node.named_children if child not in redirects]
        if len(body) == 1 and body[0].type == "command":
            return self._command(body[0], stdin, redirects)
        redirected_input, file_redirects, rest, extra_words = self._redirects(redirects)
        for written in extra_words:
            self.line.doubts.append(f"a word after a redirection: {written}")
        self._emit(
            Command(
                words=("{",),
                cwd=self.state.cwd,
                bare=all(one.changes_nothing for one in file_redirects),
                redirects=tuple(file_redirects),
            )
        )
        outer, self.state.stdin = (
            self.state.stdin,
            None if redirected_input is not None else self.state.stdin,
        )
        out = self._each(body, redirected_input or stdin)
        self.state.stdin = outer if redirected_input is not None else self.state.stdin
        return self._ended(out, file_redirects, rest)

    def _redirects(
        self, nodes: Sequence[Node]
    ) -> tuple[ShellStream | None, list[Redirect], list[Node], list[str]]:
        """Returns the input, the redirects, the nodes after the first line of a here-document, and
        words that the grammar read as a second target.
        """
        redirected_input: ShellStream | None = None
        file_redirects: list[Redirect] = []
        rest: list[Node] = []
        extra_words: list[str] = []
        for node in nodes:
            if lost_dash(node):
                extra_words.append("-")
            match node.type:
                case "herestring_redirect":
                    alternatives = self.alternatives(node.named_children)
                    redirected_input = ShellStream(
                        text=known_text(alternatives), programs=programs_of(alternatives)
                    )
                case "heredoc_redirect":
                    inner = [child for child in node.children if child.type.endswith("_redirect")]
                    again, more, after, words = self._redirects(inner)
                    redirected_input = again or self._heredoc(node)
                    file_redirects += more
                    extra_words += words
                    rest += after
                    for child in node.named_children:
                        if child.type in _HEREDOC or child in inner:
                            continue
                        if is_statement(child):
                            rest.append(child)
                        else:  # an argument after the delimiter belongs to the command
                            extra_words += self.words([child])
                case _:
                    stream, redirect, words = self._file(node)
                    redirected_input = stream or redirected_input
                    file_redirects += redirect
                    extra_words += words
        return redirected_input, file_redirects, rest, extra_words

    def _heredoc(self, node: Node) -> ShellStream:
        body = next((child for child in node.children if child.type == "heredoc_body"), None)
        start = next(
            (text_of(child) for child in node.children if child.type == "heredoc_start"), ""
        )
        if body is None:
            return ShellStream(text="")
        text = text_of(body)
        if start[:1] in "'\"\\" or not set(text) & set("$`"):
            return ShellStream(text=text)
        self.inside(body)
        alternatives = self.alternatives([body])
        return ShellStream(
            text=known_text(alternatives) or text, programs=programs_of(alternatives)
        )

    def _file(self, node: Node) -> tuple[ShellStream | None, list[Redirect], list[str]]:
        operator = next((child.type for child in node.children if not child.is_named), "")
        targets = [child for child in node.named_children if child.type != "file_descriptor"]
        if not targets:
            return None, [], []
        first, *others = targets
        if first.type == "process_substitution":
            return self.apart(first, None), [], self.words(others)
        words = self.words([first])
        stream = None
        if operator == "<" and len(words) == 1:
            stream = self.state.files.get(self.state.resolve(words[0]))
        file_redirects = [
            Redirect(
                operator=operator,
                target=self.state.resolve(word),
                copies=copies_descriptor(operator, word),
            )
            for word in words
        ]
        return stream, file_redirects, self.words(others)

    def _ended(
        self, out: ShellStream, file_redirects: Sequence[Redirect], rest: Sequence[Node]
    ) -> ShellStream:
        for redirect in file_redirects:
            if redirect.writes:
                before = self.state.files.get(redirect.target, ShellStream(text=""))
                self.state.files[redirect.target] = (
                    joined([before, out]) if ">>" in redirect.operator else out
                )
        # "cat <<X | sh": the grammar puts the following nodes inside the here-document
        for node in rest:
            out = self.run(node, out if node.type == "pipeline" else None)
        return out

    # Commands.

    def _command(
        self, node: Node, stdin: ShellStream | None, redirects: Sequence[Node]
    ) -> ShellStream:
        self.seen.add(node.start_byte)
        own = [child for child in node.children if child.type.endswith("_redirect")]
        assigned = [child for child in node.named_children if child.type == "variable_assignment"]
        others = [
            child
            for child in node.children
            if child not in own and child not in assigned and child.type != "comment"
        ]
        redirected_input, file_redirects, rest, extra_words = self._redirects([*own, *redirects])
        outer = dict(self.state.variables)
        settings = tuple(self._assign(child) for child in assigned)
        if others:
            self.state.variables = outer  # NAME=value before a command is only for that command
        read, substituted = self._program(others)
        words = (*read, *extra_words)
        known = not any(map(unknown, words))
        command = Command(
            words=words,
            cwd=self.state.cwd,
            bare=known and not settings and all(one.changes_nothing for one in file_redirects),
            assigned=settings,
            redirects=tuple(file_redirects),
        )
        if words == ("exec",) and redirected_input is not None:
            self.state.stdin = redirected_input
        out = self._start(command, redirected_input or self.state.stdin or stdin, substituted)
        return self._ended(out, file_redirects, rest)

    def _program(self, nodes: Sequence[Node]) -> tuple[list[str], frozenset[str]]:
        """Returns all words, and the programs whose output is in them. A program with several
        possible names is unknown.
        """
        read = [self.argument(group) for group in groups_of(nodes)]
        words = [
            word
            for alternatives in read[1:]
            for alternative in alternatives
            for word in fields_of(alternative)
        ]
        first = [list(fields_of(alternative)) for alternative in read[0]] if read else [[]]
        if any(alternative != first[0] for alternative in first):
            first = [[UNKNOWN, *(word for alternative in first for word in alternative)]]
        return [*first[0], *words], programs_of(
            alternative for alternatives in read for alternative in alternatives
        )

    def _start(
        self, command: Command, stdin: ShellStream | None, substituted: frozenset[str] = frozenset()
    ) -> ShellStream:
        """A command and every command that it starts in turn."""
        if stdin is not None:
            command = replace(command, fed_by=stdin.programs)
        code = code_of(self.state, command, stdin, substituted)
        self._emit(replace(command, runs=code.programs))
        if code.text is not None:
            out = self._again(code.text, stdin, dialect_for(command, code.text, self.dialect))
            return effect_of(self.state, command, stdin) if command.program == "alias" else out
        if code.opaque:
            self.line.doubts.append(
                f"{command.program} runs text that the command line does not show"
            )
        if other := other_code(command, stdin):
            self.line.texts.append(other)
        if (meant := self._meant(command, stdin)) is not None:
            return meant
        started = [
            self._start(inner, inner_input, substituted)
            if isinstance(inner, Command)
            else self._again(inner, inner_input, Dialect.SH)
            for inner, inner_input in unwrapped(command, stdin)
        ]
        out = (
            effect_of(self.state, command, stdin)
            if not started or command.program == "find"
            else joined(started)
        )
        return replace(out, programs=out.programs | {command.program}) if started else out

    def _meant(self, command: Command, stdin: ShellStream | None) -> ShellStream | None:
        """A name that this text redefined: a function, an alias, a copy of a program."""
        name, *rest = command.words or ("",)
        # Removed during the walk, so recursion is not followed.
        if (body := self.state.functions.pop(name, None)) is not None:
            walk = _Walk(self.line, self.state.copy(), self.layer, self.seen, self.dialect)
            walk.state.set_arguments(rest)
            out = walk._each(body, stdin)
            self.state.functions[name] = body
            return out
        if (text := self.state.names.pop(name, None)) is not None:
            out = self._again(" ".join((text, *map(quoted, rest))), stdin, self.dialect)
            self.state.names[name] = text
            return out
        if "/" in name and (copied := self.state.copies.get(self.state.resolve(name))) is not None:
            self._emit(replace(command, words=(copied, *rest), bare=False))
        return None

    def _count(self, texts: Sequence[str]) -> None:
        self.line.chars += sum(map(len, texts))
        if self.line.chars > MAX_LINE_CHARS:
            raise Unparsed("its commands together are too long")

    def _emit(self, command: Command) -> None:
        if len(self.line.commands) >= MAX_COMMANDS:
            raise Unparsed(f"it starts more than {MAX_COMMANDS} commands")
        self._count(command.words)
        if command.words or command.redirects or command.assigned:
            self.line.commands.append(command)
            self.line.assigns = self.line.assigns or command_assigns(command)
        if command.program in ("declare", "local", "typeset") and any(
            map(_REFERS.match, command.words[1:])
        ):
            self.line.doubts.append("a variable is a reference to another variable")
        for name, _, value in (one.partition("=") for one in command.assigned):
            if name in _RUN_BY_SHELLS and value:
                self._run_variable(name, value)
            elif name in _HANDED_ON and value:
                self._again(value, None, Dialect.SH)
            elif name == "IFS" and value.strip(" \t\n") and command.program in _DECLARING:
                self.line.doubts.append("IFS separates words at other characters than blanks")

    def _run_variable(self, name: str, value: str) -> None:
        if name in ("ENV", "BASH_ENV"):
            stream = self.state.files.get(self.state.resolve(value))
            value = UNKNOWN if stream is None or stream.text is None else stream.text
        elif name.startswith("PS") and "$(" not in value and "`" not in value:
            return
        self._again(value, None, Dialect.SH if name == "ENV" else Dialect.BASH)

    def _again(self, text: str, stdin: ShellStream | None, dialect: Dialect) -> ShellStream:
        """Text that a shell runs inside the text. ``dialect``: that of this shell."""
        if self.layer >= MAX_NESTED_TEXTS:
            raise Unparsed(f"more than {MAX_NESTED_TEXTS} shells are nested")
        self._count((text,))
        if unknown(text):
            self.line.doubts.append("a shell runs text that is partly unknown")
            text = text.replace(UNKNOWN, "$unknown").replace(SOMETHING, "${unknown:?}")
        try:
            root = parse(text, dialect)
        except Unparsed as error:
            raise Unparsed(f"a nested command cannot be parsed: {error}", inside=text) from None
        return _Walk(self.line, self.state, self.layer + 1, dialect=dialect).all_of(root, stdin)
