"""``[[rule]]`` and ``[tools]``: what is judged by text. Shapes and expressions are checked here, once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from paddock.policy.expand import wrong
from paddock.policy.model import TMP_TOKEN, Action, Match, Rule, Setting, Sourced
from paddock.policy.regex import wrong_regexes
from paddock.policy.schema import (
    COMMAND_RULE_KEYS,
    KEYS,
    MATCH_KEYS,
    NOT,
    PATH_RULE_KEYS,
    PATH_RULE_OPS,
    RULE_KEYS,
)
from paddock.policy.sections import check_host
from paddock.policy.suggest import did_you_mean
from paddock.policy.table import Table
from paddock.policy.values import Values

_HEX = frozenset("0123456789abcdef")
_UID_MAX = 2**32 - 2


@dataclass(frozen=True, slots=True)
class RuleReader:
    values: Values
    _regexes: list[Sourced[str]] = field(default_factory=list)

    def check_regexes(self) -> None:
        """All that were read, at once: asking the engine costs a process."""
        for word, error in zip(self._regexes, wrong_regexes([word.value for word in self._regexes]), strict=True):
            if error is not None:
                raise wrong(word.source, f"not a regular expression: {error}")

    def rules(self, document: Table) -> tuple[Rule, ...]:
        rules: dict[str, Rule] = {}
        for table in document.tables("rule"):
            rule = self._rule(table)
            if rule.id in rules:
                raise table.wrong("id", f"the rule {rule.id!r} stands in line {rules[rule.id].source.line} already")
            rules[rule.id] = rule
        return tuple(rules.values())

    def _rule(self, table: Table) -> Rule:
        table.allow_only(RULE_KEYS)
        name = table.string("id")
        if name is None or not name.value:
            raise table.wrong("id", "every rule needs an id: it is what the journal says")
        _no_nul(name)
        action = table.choice("action", Action)
        if action is None:
            raise table.wrong("action", f"the rule {name.value!r} has no action", hint="allow, deny or ask")
        reason = table.string("reason")
        if reason is not None:
            _no_nul(reason)
        matches = tuple(self._matches(table))
        if not matches:
            raise table.wrong(
                "id",
                f"the rule {name.value!r} has nothing to match, so it would be about every program",
                hint="meta.default_action is what happens to all that no rule is about",
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
                    raise table.wrong(written, "an empty list never matches", hint="leave the key out")
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
                    raise wrong(word.source, f"{TMP_TOKEN} has its name only while the command runs: {word.value!r}")
                return glob.text
            case "exe_basename":
                if not word.value or "/" in word.value:
                    raise wrong(word.source, f"a base name holds no '/': {word.value!r}", hint="use exe or exe_glob")
            case "exe_sha256":
                digest = word.value.lower()
                if len(digest) != 64 or not _HEX.issuperset(digest):
                    raise wrong(word.source, f"not the 64 hex digits of a SHA-256: {word.value!r}")
                return digest
            case "argv_regex" | "parent_argv":
                self._regexes.append(word)
            case "argv_host_in":
                check_host(word)
                if word.value.startswith("@"):
                    raise wrong(word.source, f"a rule names hosts one by one: {word.value!r}")
        return word.value

    def tools(self, table: Table) -> tuple[Setting, ...]:
        """Kept as written but for expansion; the tool policy gives them their meaning."""
        table.allow_only(KEYS["tools"])
        return tuple(
            Setting(key=key, value=self._tool_value(table, key), source=table.source(key))
            for key in KEYS["tools"]
            if key in table
        )

    def _tool_value(self, table: Table, key: str) -> object:
        match key:
            case "allowed_paths" | "denied_paths":
                return tuple(self.values.pattern(p.value, p.source).text for p in table.strings(key))
            case "denied_commands":
                return tuple(_not_empty(word) for word in table.strings(key))
            case "path_rules":
                return tuple(self._path_rule(rule) for rule in table.tables(key))
            case "command_rules":
                return tuple(self._command_rule(rule) for rule in table.tables(key))
            case _:
                flag = table.boolean(key)
                return flag is not None and flag.value

    def _path_rule(self, table: Table) -> tuple[tuple[str, str], ...]:
        table.allow_only(PATH_RULE_KEYS)
        fields = _action_and_reason(table)
        path = table.string("path")
        if path is None:
            raise table.wrong("path", "a path rule needs a path")
        fields["path"] = self.values.pattern(path.value, path.source).text
        operation = table.string("op")
        if operation is not None:
            if operation.value not in PATH_RULE_OPS:
                raise wrong(
                    operation.source,
                    f"{operation.value!r} is not one of {', '.join(PATH_RULE_OPS)}",
                    hint=did_you_mean(operation.value, PATH_RULE_OPS),
                )
            fields["op"] = operation.value
        return _in_order(fields, PATH_RULE_KEYS)

    def _command_rule(self, table: Table) -> tuple[tuple[str, str], ...]:
        table.allow_only(COMMAND_RULE_KEYS)
        fields = _action_and_reason(table)
        conditions = [word for key in ("exe", "argv_regex", "command_regex") if (word := table.string(key))]
        if not conditions:
            raise table.wrong("action", "a command rule needs exe, argv_regex or command_regex")
        for word in conditions:
            key = word.source.key.rpartition(".")[2]
            if key != "exe":
                _no_nul(word)
                self._regexes.append(word)
            fields[key] = _not_empty(word)
        return _in_order(fields, COMMAND_RULE_KEYS)


def _uids(table: Table, key: str) -> tuple[str, ...]:
    if isinstance(table.values[key], list):
        return tuple(str(number.value) for number in table.integers(key, low=0, high=_UID_MAX))
    number = table.integer(key, low=0, high=_UID_MAX)
    return () if number is None else (str(number.value),)


def _no_nul(word: Sourced[str]) -> None:
    if "\0" in word.value:
        raise wrong(word.source, "no path and no argument holds a NUL byte")


def _not_empty(word: Sourced[str]) -> str:
    if not word.value.strip():
        raise wrong(word.source, "the text is empty")
    return word.value


def _action_and_reason(table: Table) -> dict[str, str]:
    action = table.choice("action", Action)
    if action is None:
        raise table.wrong("action", "the rule has no action", hint="allow, deny or ask")
    reason = table.string("reason")
    fields = {"action": action.value.value}
    if reason is not None:
        fields["reason"] = reason.value
    return fields


def _in_order(fields: dict[str, str], order: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    return tuple((key, fields[key]) for key in order if key in fields)
