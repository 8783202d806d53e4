"""Decides one tool call before anything is done: allow, deny or ask.

The order is fixed, and hard gates come first:

    1  read-only mode
    2  path rules
    3  denied paths
    4  allowed paths
    5  command rules
    6  denied commands
    7  shell commands whose writes are not confined: ask
    8  approval for writes, for execution and for unknown tools: ask
    9  allow

No approval can lift a denial of steps 1 to 6. A rule that allows overrides later questions and
denials of the same user's lists. It does not override the built-in lists. A rule that asks opens
nothing that is denied. A call is judged by the effects of its tool (``ToolSpec``), not by its name.
No call raises an exception here: an invalid call is denied. An invalid policy raises a PolicyError
when it is built.

Paths inside a shell command are not judged, because the text does not show which files a program
opens. The sandbox restricts these.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Collection, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cache
from typing import TYPE_CHECKING, Any, NoReturn

from paddock.errors import PaddockError, PolicyError
from paddock.policy.glob import Glob, GlobError
from paddock.policy.model import Action, CommandRule, Effect, PathRule, ToolSettings
from paddock.shell.dialect import Dialect
from paddock.text.path_compare import LocatedPath, PathError, PathKind, folded, locate, normal
from paddock.text.path_walk import follow
from paddock.tools.policy.calls import (
    BUILTIN_TOOLS,
    DESCRIPTIONS,
    ToolCall,
    ToolSpec,
    wrong_arguments,
)
from paddock.tools.policy.path_arguments import Guess, guess

if TYPE_CHECKING:
    from paddock.shell.denied_commands import Category, Reading
    from paddock.shell.program_arguments import Command

CWD_TOKEN = "<cwd>"
BOUNDARY = (f"{CWD_TOKEN}/**",)
_PATHS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "default_denied_paths.toml")


class Step(IntEnum):
    """The step that decided. 0: the call itself is invalid."""

    ARGUMENTS = 0
    READ_ONLY = 1
    PATH_RULES = 2
    DENIED_PATHS = 3
    ALLOWED_PATHS = 4
    COMMAND_RULES = 5
    DENIED_COMMANDS = 6
    UNCONFINED = 7
    APPROVAL = 8
    ALLOW = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """The scope of an approval: this tool, with this path or this parsed command, in this directory
    only.
    """

    tool: str
    cwd: str
    subject: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """``rule_id``: the deciding rule, for the journal. ``paths``: the files to open, by ``real``.
    ``scope``: the scope of an answer.
    """

    action: Action
    step: Step
    rule_id: str
    reason: str
    scope: Scope
    paths: tuple[LocatedPath, ...] = ()

    @property
    def final(self) -> bool:
        """No question is asked, and no approval changes it."""
        return self.action is not Action.ASK


@dataclass(frozen=True, slots=True, kw_only=True)
class _Denied:
    """One pattern of a list, and its message."""

    id: str
    why: str
    written: str
    glob: Glob


@dataclass(frozen=True, slots=True, kw_only=True)
class _Matched:
    id: str
    action: Action
    reason: str


class ToolPolicy:
    """See the module. The defaults are strict: the current directory, and a question for every
    write and every command. ``writes_confined``: the executor really confines the writes of
    commands. ``dialect``: the shell that runs them; text that it may read differently than bash can
    not be judged. ``lift_defaults``: patterns to remove from the built-in list of denied paths, as
    written there.
    """

    def __init__(
        self,
        *,
        read_only: bool = False,
        allowed_paths: Sequence[str] | None = BOUNDARY,
        denied_paths: Sequence[str] = (),
        path_rules: Sequence[PathRule] = (),
        command_rules: Sequence[CommandRule] = (),
        denied_commands: Sequence[str] = (),
        require_approval_for_writes: bool = True,
        require_approval_for_execute: bool = True,
        unknown_tools: Action = Action.ASK,
        writes_confined: bool = False,
        dialect: Dialect = Dialect.BASH,
        tools: Sequence[ToolSpec] = (),
        lift_defaults: Sequence[str] = (),
        cwd: str | os.PathLike[str] | None = None,
        home: str | os.PathLike[str] | None = None,
        platform: str = sys.platform,
    ) -> None:
        self.platform = platform
        self.cwd = os.fspath(cwd) if cwd is not None else os.getcwd()
        self.home = os.fspath(home) if home is not None else os.path.expanduser("~")
        if not self.cwd.startswith("/") and platform != "win32":
            raise PolicyError(f"the working directory is not absolute: {self.cwd!r}")
        self.read_only = read_only
        self.writes_confined = writes_confined
        self.dialect = dialect
        self.require_approval_for_writes = require_approval_for_writes
        self.require_approval_for_execute = require_approval_for_execute
        self.unknown_tools = _action(unknown_tools, "unknown_tools")
        self._specs = {spec.name: spec for spec in (*BUILTIN_TOOLS, *tools)}
        self._allowed = None if allowed_paths is None else self._globs(allowed_paths)
        self._builtin = tuple(self._builtin_paths(lift_defaults))
        self._denied = tuple(self._own_paths(denied_paths))
        self._path_rules = tuple(self._path_rule(at, rule) for at, rule in enumerate(path_rules))
        self._command_rules = tuple(
            _CommandRule.of(at, rule) for at, rule in enumerate(command_rules)
        )
        self._categories = tuple(_own_commands(denied_commands))

    @classmethod
    def of(cls, tools: ToolSettings, **settings: Any) -> ToolPolicy:
        """From a policy file: ``[tools]`` in TOML or the JSON ``safety`` object. Lists only add."""

        def flag(name: str, default: bool) -> bool:
            sourced = getattr(tools, name)
            return default if sourced is None else bool(sourced.value)

        return cls(
            read_only=flag("read_only", False),
            allowed_paths=BOUNDARY
            if tools.allowed_paths is None
            else [one.value for one in tools.allowed_paths],
            denied_paths=[one.value for one in tools.denied_paths],
            path_rules=tools.path_rules,
            command_rules=tools.command_rules,
            denied_commands=[one.value for one in tools.denied_commands],
            require_approval_for_writes=flag("require_approval_for_writes", True),
            require_approval_for_execute=flag("require_approval_for_execute", True),
            unknown_tools=Action.ASK if tools.unknown_tools is None else tools.unknown_tools.value,
            **settings,
        )

    def confined(self, writes: bool, dialect: Dialect = Dialect.BASH) -> ToolPolicy:
        """The same policy for an executor with these properties."""
        other = copy(self)
        other.writes_confined = writes
        other.dialect = dialect
        return other

    def spec(self, name: str) -> ToolSpec:
        """The description of a tool, with text for a model about the executor."""
        spec = self._specs.get(name) or ToolSpec(name=name)
        return replace(spec, description=DESCRIPTIONS[self.dialect]) if name == "bash" else spec

    def check(self, call: ToolCall, *, annotated: Collection[str] = ()) -> Decision:
        """``annotated``: arguments that are paths by the handler's signature, for a tool without a
        ToolSpec.
        """
        if not isinstance(call.name, str) or not isinstance(call.cwd, str | None):
            plain = ToolCall(name=repr(call.name), arguments={})
            return _Judging(plain, self.cwd).deny(
                Step.ARGUMENTS, "invalid-arguments", "a name or a path is not text"
            )
        spec = self._specs.get(call.name)
        known = spec is not None
        spec = spec or ToolSpec(name=call.name)
        cwd = call.cwd if call.cwd is not None else self.cwd
        judging = _Judging(call, cwd)
        wrong = wrong_arguments(spec, call, cwd, self.platform)
        if wrong is not None:
            return judging.deny(Step.ARGUMENTS, "invalid-arguments", wrong)
        try:
            if not known:
                judging.guess = guess(call, annotated=annotated, cwd=cwd, home=self.home)
            judging.locate(spec, self.home, self.platform)
        except PathError as error:
            return judging.deny(Step.ARGUMENTS, "invalid-path", str(error))
        if self.read_only and spec.does & {Effect.WRITE, Effect.EXECUTE}:
            return judging.deny(
                Step.READ_ONLY,
                "read-only",
                f"read_only is set, and {call.name} does more than read",
            )
        return (
            self._paths(judging, spec)
            or self._command(judging, spec)
            or self._approval(judging, spec, known=known)
            or judging.allow()
        )

    # Steps 2 to 4

    def _paths(self, judging: _Judging, spec: ToolSpec) -> Decision | None:
        settled = []
        for located in judging.paths:
            rule = self._rule_for(located, spec)
            if rule is not None and rule.action is Action.DENY:
                return judging.deny(Step.PATH_RULES, rule.id, rule.reason)
            lifted = rule is not None and rule.action is Action.ALLOW
            if rule is not None and rule.action is Action.ASK:
                judging.ask(Step.PATH_RULES, rule.id, rule.reason)
            for denied in self._builtin if lifted else (*self._builtin, *self._denied):
                if any(denied.glob.covers(spelling) for spelling in located.spellings):
                    return judging.deny(
                        Step.DENIED_PATHS, denied.id, f"{located.written}: {denied.why}"
                    )
            if not lifted and not self._inside(located):
                return judging.deny(
                    Step.ALLOWED_PATHS,
                    "allowed-paths",
                    f"{located.written} is outside allowed_paths",
                )
            settled.append(lifted)
        judging.settled = bool(settled) and all(settled)
        return None

    def _rule_for(self, located: LocatedPath, spec: ToolSpec) -> _Matched | None:
        """The first match for each spelling; the strictest of these."""
        found = [
            next(
                (
                    rule
                    for rule, op, glob in self._path_rules
                    if (op is None or op in spec.does) and glob.covers(one)
                ),
                None,
            )
            for one in located.spellings
        ]
        for action in (Action.DENY, Action.ASK):
            strict = next(
                (rule for rule in found if rule is not None and rule.action is action), None
            )
            if strict is not None:
                return strict
        return found[0] if found and all(rule is not None for rule in found) else None

    def _inside(self, located: LocatedPath) -> bool:
        if self._allowed is None:
            return True
        return all(
            any(glob.covers(spelling) for glob in self._allowed) for spelling in located.spellings
        )

    # Steps 5 and 6

    def _command(self, judging: _Judging, spec: ToolSpec) -> Decision | None:
        if spec.command is None:
            return None
        from paddock.shell.denied_commands import default_categories, findings
        from paddock.shell.denied_commands import read as read_command

        text = str(judging.call.arguments[spec.command])
        reading = read_command(text, cwd=judging.cwd, home=self.home, dialect=self.dialect)
        judging.subject = reading.tokens
        matched = list(self._rules_for(reading))
        for rule in matched:
            if rule is not None and rule.action is Action.DENY:
                return judging.deny(Step.COMMAND_RULES, rule.id, rule.reason)
        asks = next(
            (rule for rule in matched if rule is not None and rule.action is Action.ASK), None
        )
        judging.settled = bool(matched) and asks is None and all(matched)
        if asks is not None:
            judging.ask(Step.COMMAND_RULES, asks.id, asks.reason)
        own: Sequence[Category] = () if judging.settled else self._categories
        for finding in findings(reading, (*default_categories(), *own)):
            name = f"denied-commands.{finding.category}"
            if finding.sure:
                return judging.deny(Step.DENIED_COMMANDS, name, finding.why)
            judging.ask(Step.DENIED_COMMANDS, name, f"perhaps {finding.why}")
        for doubt in _doubts(reading):
            judging.ask(Step.DENIED_COMMANDS, "unclear-command", doubt)
        return None

    def _rules_for(self, reading: Reading) -> Iterator[_Matched | None]:
        """For each command of the line the first matching rule; then one for the whole line."""
        commands = reading.line.commands if reading.line is not None else []
        for command in commands:
            if command.words == ("{",) and command.bare:
                continue
            yield next(
                (rule.matched for rule in self._command_rules if rule.is_about(command)), None
            )
        yield from (
            rule.matched
            for rule in self._command_rules
            if rule.matched.action is not Action.ALLOW and rule.is_about_text(reading.text)
        )

    # Steps 7 and 8

    def _approval(self, judging: _Judging, spec: ToolSpec, *, known: bool) -> Decision | None:
        judged = f"; {judging.guess}" if judging.guess is not None and str(judging.guess) else ""
        unsaid = f"{spec.name} has no declared effects{judged}"
        if not judging.settled:
            if spec.command is not None and self._allowed is not None and not self.writes_confined:
                judging.ask(
                    Step.UNCONFINED,
                    "unconfined-command",
                    "the executor cannot stop the command from writing outside allowed_paths",
                )
            if self.require_approval_for_writes and Effect.WRITE in spec.does:
                judging.ask(Step.APPROVAL, "approve-writes", f"{spec.name} writes")
            if self.require_approval_for_execute and Effect.EXECUTE in spec.does:
                judging.ask(
                    Step.APPROVAL, "approve-execute", f"{spec.name} executes" if known else unsaid
                )
        if not known and self.unknown_tools is not Action.ALLOW:
            if self.unknown_tools is Action.DENY:
                return judging.deny(
                    Step.APPROVAL, "unknown-tool", f"{spec.name} has no declared effects"
                )
            judging.ask(Step.APPROVAL, "unknown-tool", unsaid)
        return judging.question

    # From written values to compared values.

    def _globs(self, written: Sequence[str]) -> tuple[Glob, ...]:
        """A path below a link counts by both names. Resolved once, so a later chdir moves no
        boundary.
        """
        globs: list[Glob] = []
        for one in _texts(written, "allowed_paths"):
            glob = self._glob(one, "allowed_paths")
            if glob.floating:
                raise PolicyError(
                    f"allowed_paths: the pattern has no directory: {one!r}",
                    hint=f"write {CWD_TOKEN}/**",
                )
            globs += [glob, *self._resolved(glob)]
        return tuple(globs)

    def _resolved(self, glob: Glob) -> Iterator[Glob]:
        if glob.floating or self.platform == "win32" or ":" in glob.prefix[:3]:
            return
        try:
            walk = follow(glob.prefix)
        except PaddockError:
            return
        if not walk.straight:
            rest = glob.text.removeprefix(glob.prefix)
            yield Glob.parse(folded(walk.end.path, self.platform) + rest)

    def _glob(self, written: str, key: str) -> Glob:
        text = written
        for token, value in ((CWD_TOKEN, self.cwd), ("~", self.home)):
            if text == token or text.startswith(f"{token}/"):
                if "*" in value:
                    raise PolicyError(f"{key}: a pattern cannot contain {value!r}")
                text = value + text[len(token) :]
        if not text.startswith(("/", "**/")):
            kind, drive = normal(text, cwd="/", home="/", platform=self.platform)
            if kind is PathKind.POSIX:
                raise PolicyError(
                    f"{key}: not an absolute pattern: {written!r}",
                    hint=f"write {CWD_TOKEN}/{written}",
                )
            text = drive
        try:
            return Glob.parse(folded(text, self.platform))
        except GlobError as error:
            raise PolicyError(f"{key}: {error}") from None

    def _builtin_paths(self, lifted: Sequence[str]) -> Iterator[_Denied]:
        defaults = default_denied_paths()
        for pattern in lifted:
            if not any(pattern in paths for _, _, paths in defaults):
                raise PolicyError(f"lift_defaults: {pattern!r} is not one of the built-in patterns")
        for name, why, paths in defaults:
            for pattern in paths:
                if pattern in lifted:
                    continue
                glob = self._glob(pattern, "default_denied_paths.toml")
                for each in (glob, *self._resolved(glob)):
                    yield _Denied(id=f"denied-paths.{name}", why=why, written=pattern, glob=each)

    def _own_paths(self, written: Sequence[str]) -> Iterator[_Denied]:
        for pattern in _texts(written, "denied_paths"):
            glob = self._glob(pattern, "denied_paths")
            for each in (glob, *self._resolved(glob)):
                yield _Denied(
                    id="denied-paths", why=f"denied by {pattern}", written=pattern, glob=each
                )

    def _path_rule(self, at: int, rule: PathRule) -> tuple[_Matched, Effect | None, Glob]:
        key = f"path_rules[{at}]"
        action = _action(rule.action, key)
        try:
            operation = None if rule.op is None else Effect(rule.op)
        except ValueError:
            raise PolicyError(f"{key}: {rule.op!r} is not one of read, write, execute") from None
        reason = rule.reason or f"{action.value} {rule.path}"
        return (
            _Matched(id=rule.id or key, action=action, reason=reason),
            operation,
            self._glob(rule.path, key),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _CommandRule:
    matched: _Matched
    exe: str | None
    argv: Any
    line: Any

    @classmethod
    def of(cls, at: int, rule: CommandRule) -> _CommandRule:
        key = f"command_rules[{at}]"
        action = _action(rule.action, key)
        if not (rule.exe or rule.argv_regex or rule.command_regex):
            raise PolicyError(f"{key}: a command rule needs exe, argv_regex or command_regex")
        shown = " ".join(word for word in (rule.exe, rule.argv_regex, rule.command_regex) if word)
        return cls(
            matched=_Matched(
                id=rule.id or key, action=action, reason=rule.reason or f"{action.value} {shown}"
            ),
            exe=rule.exe,
            argv=_regex(rule.argv_regex, f"{key}.argv_regex"),
            line=_regex(rule.command_regex, f"{key}.command_regex"),
        )

    def is_about(self, command: Command) -> bool:
        if self.matched.action is Action.ALLOW and not command.bare:
            return False  # its words do not show its context
        words = " ".join(command.words)
        # A program that is allowed by name must be the one that PATH finds: `./ls` may be written
        # by the agent.
        exact = self.matched.action is Action.ALLOW or "/" in (self.exe or "")
        if self.exe is not None and not (
            command.words and self.exe == (command.words[0] if exact else command.program)
        ):
            return False
        return all(
            one is None or one.search(_plain(words)) is not None for one in (self.argv, self.line)
        )

    def is_about_text(self, text: str) -> bool:
        return self.exe is None and self.argv is None and self.line.search(_plain(text)) is not None


@dataclass(slots=True)
class _Judging:
    """One call during the steps. The first question is stored: a later step may deny."""

    call: ToolCall
    cwd: str
    paths: tuple[LocatedPath, ...] = ()
    subject: tuple[str, ...] = ()
    settled: bool = False
    question: Decision | None = None
    guess: Guess | None = None

    def locate(self, spec: ToolSpec, home: str, platform: str) -> None:
        written = [self.call.arguments[name] for name in spec.paths if name in self.call.arguments]
        if self.guess is not None:
            written += self.guess.paths
        self.paths = tuple(
            locate(one, cwd=self.cwd, home=home, platform=platform) for one in written
        )
        self.subject = tuple(path.real or path.spellings[0] for path in self.paths)
        # the effects of its other arguments are unknown
        if self.paths and spec not in BUILTIN_TOOLS:
            others = {
                name: value for name, value in self.call.arguments.items() if name not in spec.paths
            }
            self.subject += (_written(others),) if others else ()

    def ask(self, step: Step, rule_id: str, reason: str) -> None:
        self.question = self.question or self._decided(Action.ASK, step, rule_id, reason)

    def deny(self, step: Step, rule_id: str, reason: str) -> Decision:
        return self._decided(Action.DENY, step, rule_id, reason)

    def allow(self) -> Decision:
        return self._decided(Action.ALLOW, Step.ALLOW, "allow", "no rule denies it")

    def _decided(self, action: Action, step: Step, rule_id: str, reason: str) -> Decision:
        subject = self.subject or (_written(self.call.arguments),)
        scope = Scope(tool=self.call.name, cwd=self.cwd, subject=subject)
        return Decision(
            action=action, step=step, rule_id=rule_id, reason=reason, scope=scope, paths=self.paths
        )


@cache  # part of the installation, like the code
def default_denied_paths() -> tuple[tuple[str, str, tuple[str, ...]], ...]:
    """Category, reason, patterns."""
    import tomllib

    with open(_PATHS, "rb") as file:
        return tuple(
            (name, entry["why"], tuple(entry["paths"]))
            for name, entry in tomllib.load(file).items()
        )


def _written(arguments: object) -> str:
    try:
        return json.dumps(arguments, sort_keys=True, default=repr)
    except (TypeError, ValueError):  # keys of several types, or cycles
        with contextlib.suppress(ValueError, RecursionError):  # numbers with thousands of digits
            return repr(arguments)
    except RecursionError:
        pass
    # An approval is for this call only.
    return f"{type(arguments).__name__} that cannot be written, {os.urandom(16).hex()}"


def _doubts(reading: Reading) -> Iterator[str]:
    from paddock.shell.words import unknown

    if reading.line is None:
        yield f"the command cannot be parsed: {reading.error}"
        return
    yield from reading.line.doubts
    if any(command.words and unknown(command.words[0]) for command in reading.line.commands):
        yield "the text does not show which program starts"


def _own_commands(written: Sequence[str]) -> Iterator[Category]:
    texts = _texts(written, "denied_commands")
    if not texts:
        return
    from paddock.shell.denied_commands import Category, own_command

    for command in texts:
        yield Category(name="own", why=f"denied by {command!r}", patterns=(own_command(command),))


def _texts(written: Sequence[str], key: str) -> Sequence[str]:
    if isinstance(written, str):
        raise PolicyError(f"{key}: expected a list of texts, found one text")
    for one in written:
        if not isinstance(one, str) or not one.strip() or "\0" in one:
            raise PolicyError(f"{key}: not a pattern: {one!r}")
    return written


def _action(value: object, key: str) -> Action:
    try:
        return Action(str(value))
    except ValueError:
        raise PolicyError(f"{key}: {value!r} is not one of allow, deny, ask") from None


def _regex(pattern: str | None, key: str) -> Any:
    """RE2, whose time is linear in the text, as for the exec rules: the text of a command can not
    stall the policy.
    """
    if pattern is None:
        return None
    import re2

    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except (re2.error, UnicodeEncodeError) as error:
        _not_a_regex(key, error)


def _not_a_regex(key: str, error: Exception) -> NoReturn:
    message = error.args[0] if error.args else error
    message = message.decode("utf-8", "replace") if isinstance(message, bytes) else message
    raise PolicyError(f"{key}: not a regular expression: {message}") from None


def _plain(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8")
