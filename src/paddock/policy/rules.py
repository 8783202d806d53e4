"""Parses ``[[rule]]`` and ``[tools]``. Types and expressions are checked here, once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field

from paddock.frozen import dataclass
from paddock.policy.formats.checked_table import Table
from paddock.policy.formats.checked_values import Values
from paddock.policy.formats.expand import wrong
from paddock.policy.formats.policy_keys import (
    COMMAND_RULE_KEYS,
    KEYS,
    MATCH_KEYS,
    NOT,
    PATH_RULE_KEYS,
    RULE_KEYS,
)
from paddock.policy.glob import ANY_DEPTH
from paddock.policy.model import (
    TMP_TOKEN,
    Action,
    CommandRule,
    Effect,
    Match,
    PathRule,
    Rule,
    Sourced,
    ToolSettings,
)
from paddock.policy.regex import wrong_regexes

_HEX = frozenset("0123456789abcdef")
_HOST = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._:[]")
_UID_MAX = 2**32 - 2


@dataclass(frozen=True, slots=True)
class RuleReader:
    values: Values
    _regexes: list[Sourced[str]] = field(default_factory=list)

    def check_regexes(self) -> None:
        """Checks all expressions at once, because asking the engine takes a process."""
        for word, error in zip(
            self._regexes, wrong_regexes([word.value for word in self._regexes]), strict=True
        ):
            if error is not None:
                raise wrong(word.source, f"not a regular expression: {error}")

    def rules(self, document: Table) -> tuple[Rule, ...]:
        rules: dict[str, Rule] = {}
        for table in document.tables("rule"):
            rule = self._rule(table)
            if rule.id in rules:
                raise table.wrong(
                    "id",
                    f"the rule {rule.id!r} is already in line {rules[rule.id].source.line}",
                )
            rules[rule.id] = rule
        return tuple(rules.values())

    def _rule(self, table: Table) -> Rule:
        table.allow_only(RULE_KEYS)
        name = table.string("id")
        if name is None or not name.value:
            raise table.wrong("id", "every rule needs an id, which the journal records")
        _no_nul(name)
        action = table.choice("action", Action)
        if action is None:
            raise table.wrong(
                "action",
                f"the rule {name.value!r} has no action",
                hint="write 'allow', 'deny' or 'ask'",
            )
        reason = table.string("reason")
        if reason is not None:
            _no_nul(reason)
        matches = tuple(self._matches(table))
        if not matches:
            raise table.wrong(
                "id",
                f"the rule {name.value!r} has no condition, so it would match every program",
                hint="for programs that no rule matches, write meta.default_action",
            )
        return Rule(
            id=name.value,
            action=action.value,
            matches=matches,
            reason=None if reason is None else reason.value,
            source=table.source(),
        )

    def _matches(self, table: Table) -> Iterator[Match]:
        for key in MATCH_KEYS:
            for written in (key, key + NOT):
                if written not in table:
                    continue
                values = _uids(table, written) if key == "uid" else self._words(table, key, written)
                if not values:
                    raise table.wrong(
                        written, "an empty list never matches", hint="leave the key out"
                    )
                yield Match(key=key, values=values, negate=written != key)

    def _words(self, table: Table, key: str, written: str) -> tuple[str, ...]:
        return tuple(self._checked(key, word) for word in table.string_or_strings(written))

    def _checked(self, key: str, word: Sourced[str]) -> str:
        _no_nul(word)
        match key:
            case "exe" | "parent_exe":
                return self.values.path(word.value, word.source)
            case "exe_glob" | "cwd_glob":
                glob = self.values.pattern(word.value, word.source)
                if glob.root == TMP_TOKEN:
                    raise wrong(
                        word.source,
                        f"{TMP_TOKEN} cannot be used here, because it has a path only during a "
                        f"run: {word.value!r}",
                    )
                return glob.text
            case "exe_basename":
                if not word.value or "/" in word.value:
                    raise wrong(
                        word.source,
                        f"a base name contains no '/': {word.value!r}",
                        hint="use exe or exe_glob",
                    )
            case "exe_sha256":
                digest = word.value.lower()
                if len(digest) != 64 or not _HEX.issuperset(digest):
                    raise wrong(word.source, f"not the 64 hex digits of a SHA-256: {word.value!r}")
                return digest
            case "argv_regex" | "parent_argv":
                self._regexes.append(word)
            case "argv_host_in":
                _is_host(word)
        return word.value

    def tools(self, table: Table) -> ToolSettings:
        table.allow_only(KEYS["tools"])
        return ToolSettings(
            read_only=table.boolean("read_only"),
            allowed_paths=tuple(self._path_pattern(p) for p in table.strings("allowed_paths"))
            if "allowed_paths" in table
            else None,
            denied_paths=tuple(self._pattern(p) for p in table.strings("denied_paths")),
            path_rules=tuple(self._path_rule(rule) for rule in table.tables("path_rules")),
            command_rules=tuple(self._command_rule(rule) for rule in table.tables("command_rules")),
            denied_commands=tuple(_not_empty(word) for word in table.strings("denied_commands")),
            require_approval_for_writes=table.boolean("require_approval_for_writes"),
            require_approval_for_execute=table.boolean("require_approval_for_execute"),
            unknown_tools=table.choice("unknown_tools", Action),
            log_all_commands=table.boolean("log_all_commands"),
        )

    def _pattern(self, written: Sourced[str]) -> Sourced[str]:
        glob = self.values.pattern(written.value, written.source)
        if glob.root == TMP_TOKEN:
            raise wrong(
                written.source,
                f"{TMP_TOKEN} cannot be used here, because it has a path only during a run: "
                f"{written.value!r}",
            )
        return Sourced(glob.text, written.source)

    def _path_pattern(self, written: Sourced[str]) -> Sourced[str]:
        pattern = self._pattern(written)
        if pattern.value.startswith(ANY_DEPTH):
            raise wrong(
                written.source,
                f"the pattern has no directory: {written.value!r}",
                hint="write <cwd>/**",
            )
        return pattern

    def _path_rule(self, table: Table) -> PathRule:
        table.allow_only(PATH_RULE_KEYS)
        path = table.string("path")
        action = _action(table)
        if path is None:
            raise table.wrong("path", "a path rule needs a path")
        operation = table.choice("op", Effect)
        return PathRule(
            action=action,
            path=self._pattern(path).value,
            op=None if operation is None else operation.value,
            reason=_text(table, "reason"),
            id=_text(table, "id"),
            source=table.source(),
        )

    def _command_rule(self, table: Table) -> CommandRule:
        table.allow_only(COMMAND_RULE_KEYS)
        action = _action(table)
        if not {"exe", "argv_regex", "command_regex"} & set(table.values):
            raise table.wrong("action", "a command rule needs exe, argv_regex or command_regex")
        return CommandRule(
            action=action,
            exe=_text(table, "exe"),
            argv_regex=self._regex(table, "argv_regex"),
            command_regex=self._regex(table, "command_regex"),
            reason=_text(table, "reason"),
            id=_text(table, "id"),
            source=table.source(),
        )

    def _regex(self, table: Table, key: str) -> str | None:
        word = table.string(key)
        if word is not None:
            self._regexes.append(word)
        return _text(table, key)


def _uids(table: Table, key: str) -> tuple[str, ...]:
    if isinstance(table.values[key], list):
        return tuple(str(number.value) for number in table.integers(key, low=0, high=_UID_MAX))
    number = table.integer(key, low=0, high=_UID_MAX)
    return () if number is None else (str(number.value),)


def _no_nul(word: Sourced[str]) -> None:
    if "\0" in word.value:
        raise wrong(word.source, "a path or an argument contains a NUL byte")


def _is_host(word: Sourced[str]) -> None:
    """``name``, ``*.name``, ``*`` or an address, in an argument (core/src/gate/argv_hosts.rs)."""
    if word.value.startswith("@"):
        raise wrong(word.source, f"a rule must name each host separately: {word.value!r}")
    bare = word.value.removeprefix("*.")
    if word.value != "*" and (not bare or not _HOST.issuperset(bare) or bare.startswith(".")):
        raise wrong(
            word.source,
            f"not a host: {word.value!r}",
            hint="write a name without scheme, port or path; it may begin with '*.'",
        )


def _not_empty(word: Sourced[str]) -> Sourced[str]:
    _no_nul(word)
    if not word.value.strip():
        raise wrong(word.source, "the text is empty")
    return word


def _text(table: Table, key: str) -> str | None:
    word = table.string(key)
    return None if word is None else _not_empty(word).value


def _action(table: Table) -> Action:
    action = table.choice("action", Action)
    if action is None:
        raise table.wrong("action", "the rule has no action", hint="write 'allow', 'deny' or 'ask'")
    return action.value
