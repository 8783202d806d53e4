"""Parses the line format to a Fragment: one directive on a line, ``ro /usr``, ``block ptrace``,
``inherit ai-agent``.

The value is the rest of the line, so a path may contain blanks. A comment is a line that begins
with ``#``. A layer can be turned ``on`` here but never off: a sandboxed program would write a file
that turns the sandbox off.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from paddock.errors import PolicyError
from paddock.policy.formats.checked_values import Values
from paddock.policy.formats.expand import Expander, wrong
from paddock.policy.formats.fragment import Fragment
from paddock.policy.formats.policy_keys import CONTAINER_LISTS, LIMITS, MAX_LIMIT
from paddock.policy.formats.suggest import did_you_mean
from paddock.policy.formats.toml_sections import Sections
from paddock.policy.model import (
    Access,
    Audit,
    Environment,
    Filesystem,
    Grant,
    Limit,
    Policy,
    Setting,
    Source,
    Sourced,
    Switch,
    Syscalls,
)
from paddock.policy.trust.origin import Origin

MAX_LINE_BYTES = 4096

GRANTS = {"ro": Access.READ, "rw": Access.ALLOW, "exec": Access.EXEC}
SWITCHES = {switch.value: switch for switch in Switch}
CONTAINER_SCALARS = ("rootdir", "uid", "gid", "username", "netns", "loopback", "hostname", "id-map")
DIRECTIVES = (
    *GRANTS,
    "block",
    "env-deny",
    *SWITCHES,
    "audit-log",
    "workdir",
    "inherit",
    "limit",
    *CONTAINER_SCALARS,
    *CONTAINER_LISTS,
)
_ID_MAX = 2**32 - 2


def read_conf(text: str, shown: str, origin: Origin) -> Fragment:
    reader = _ConfReader(Values(Expander(origin)))
    if text and not text.endswith("\n"):
        raise PolicyError(
            "the last line of the file has no line break",
            where=f"{shown}:{text.count(chr(10)) + 1}",
            hint="end the last line with a line break",
        )
    for number, line in enumerate(text.split("\n"), start=1):
        if len(line.encode("utf-8")) > MAX_LINE_BYTES:
            raise PolicyError(
                f"the line is longer than {MAX_LINE_BYTES} bytes", where=f"{shown}:{number}"
            )
        words = line.strip()
        if words and not words.startswith("#"):
            directive, *rest = words.split(maxsplit=1)
            reader.take(directive, "".join(rest), Source(file=shown, line=number, key=directive))
    return reader.fragment()


@dataclass(slots=True)
class _ConfReader:
    values: Values
    grants: list[Grant] = field(default_factory=list)
    blocks: list[Sourced[str]] = field(default_factory=list)
    env_denies: list[Sourced[str]] = field(default_factory=list)
    inherit: list[Sourced[str]] = field(default_factory=list)
    scalars: dict[str, Sourced[str]] = field(default_factory=dict)
    lists: dict[str, list[Sourced[str]]] = field(default_factory=dict)
    limits: dict[str, Limit] = field(default_factory=dict)
    audit: Sourced[bool] | None = None

    def take(self, directive: str, value: str, source: Source) -> None:
        if directive not in DIRECTIVES:
            unnamed = Source(file=source.file, line=source.line)
            raise wrong(
                unnamed,
                f"unknown directive {directive!r}",
                hint=did_you_mean(directive, DIRECTIVES),
            )
        if not value:
            raise wrong(source, "the value is missing")
        if directive in GRANTS:
            self.grants.append(self.values.grant(GRANTS[directive], value, source))
        elif directive in SWITCHES:
            self._switch(SWITCHES[directive], value, source)
        elif directive == "block":
            self.blocks.append(self.values.syscall(one_word(value, source), source))
        elif directive == "env-deny":
            self.env_denies.append(self.values.env_name(one_word(value, source), source))
        elif directive == "inherit":
            self.inherit.append(Sourced(value if "/" in value else one_word(value, source), source))
        elif directive == "limit":
            self._limit(value.split(), source)
        elif directive in CONTAINER_LISTS:
            self.lists.setdefault(directive, []).append(Sourced(value, source))
        else:
            self._scalar(directive, value, source)

    def _switch(self, switch: Switch, value: str, source: Source) -> None:
        if not on_or_off(value, source):
            raise wrong(
                source,
                f"a file cannot turn {switch.value} off",
                hint=f"give it on the command line: --off {switch.value}",
            )
        if switch is Switch.AUDIT:
            self.audit = Sourced(True, source)

    def _limit(self, words: list[str], source: Source) -> None:
        name = words[0]
        if name not in LIMITS:
            raise wrong(source, f"unknown limit {name!r}", hint=did_you_mean(name, LIMITS))
        if name in self.limits:
            raise wrong(source, f"{name} is already in line {self.limits[name].source.line}")
        digits = words[1] if len(words) == 2 else ""
        if not (
            digits.isascii()
            and digits.isdigit()
            and len(digits) <= 16
            and 0 < int(digits) <= MAX_LIMIT
        ):
            raise wrong(
                source, "a limit is a name and a whole number above 0", hint=f"limit {name} 512"
            )
        self.limits[name] = Limit(name=name, value=int(digits), source=source)

    def _scalar(self, directive: str, value: str, source: Source) -> None:
        if directive in self.scalars:
            raise wrong(
                source, f"this directive is already in line {self.scalars[directive].source.line}"
            )
        self.scalars[directive] = Sourced(value, source)

    def fragment(self) -> Fragment:
        workdir, journal = self.scalars.get("workdir"), self.scalars.get("audit-log")
        return Fragment(
            policy=Policy(
                profiles=(),
                filesystem=Filesystem(grants=tuple(self.grants)),
                syscalls=Syscalls(block=tuple(self.blocks)),
                env=Environment(deny=tuple(self.env_denies)),
                audit=Audit(
                    enabled=self.audit,
                    dir=None
                    if journal is None
                    else self.values.journal(journal.value, journal.source),
                ),
                limits=tuple(self.limits.values()),
                container=tuple(self._container()),
                workdir=None
                if workdir is None
                else Sourced(self.values.path(workdir.value, workdir.source), workdir.source),
            ),
            inherit=tuple(self.inherit),
            speaks_of_files=bool(self.grants),
        )

    def _container(self) -> list[Setting]:
        sections = Sections(self.values)
        found: list[Setting] = []
        for key in CONTAINER_SCALARS:
            written = self.scalars.get(key)
            if written is not None:
                found.append(
                    Setting(
                        key=key,
                        value=self._container_scalar(sections, written),
                        source=written.source,
                    )
                )
        for key in CONTAINER_LISTS:
            if key in self.lists:
                each = tuple(
                    sections.container_word(key, word.value, word.source)
                    for word in self.lists[key]
                )
                found.append(Setting(key=key, value=each, source=self.lists[key][0].source))
        return found

    def _container_scalar(self, sections: Sections, written: Sourced[str]) -> object:
        source = written.source
        match source.key:
            case "uid" | "gid":
                word = one_word(written.value, source)
                if not (
                    word.isascii() and word.isdigit() and len(word) <= 10 and int(word) <= _ID_MAX
                ):
                    raise wrong(source, f"not a number between 0 and {_ID_MAX}: {word!r}")
                return int(word)
            case "loopback":
                return on_or_off(written.value, source)
            case "rootdir":
                return sections.container_word("rootdir", written.value, source)
            case key:
                return sections.container_word(key, one_word(written.value, source), source)


def one_word(value: str, source: Source) -> str:
    words = value.split()
    if len(words) > 1:
        raise wrong(source, f"expected one word; {words[1]!r} is too much")
    return value


def on_or_off(value: str, source: Source) -> bool:
    if value not in ("on", "off"):
        raise wrong(source, f"the value is 'on' or 'off', not {value!r}")
    return value == "on"
