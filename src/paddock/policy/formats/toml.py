"""Parses a TOML policy to a Fragment."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import lru_cache

from paddock.errors import PolicyError
from paddock.frozen import dataclass
from paddock.policy.formats.checked_table import Table
from paddock.policy.formats.checked_values import Values
from paddock.policy.formats.expand import Expander
from paddock.policy.formats.fragment import Fragment
from paddock.policy.formats.policy_keys import SECTIONS
from paddock.policy.formats.toml_line_numbers import Path, positions
from paddock.policy.formats.toml_sections import Sections
from paddock.policy.model import (
    Audit,
    Environment,
    Filesystem,
    Meta,
    Policy,
    Syscalls,
    ToolSettings,
)
from paddock.policy.rules import RuleReader
from paddock.policy.trust.origin import Origin

MAX_KEY_PARTS = 100


def read_toml(text: str, shown: str, origin: Origin) -> Fragment:
    return _TomlReader(document(text, shown), Values(Expander(origin))).fragment()


def document(text: str, shown: str) -> Table:
    """The text as a table in which every key has a line."""
    for number, line in enumerate(text.split("\n"), start=1):
        # Checked before parsing: reading a key takes time and memory quadratic in its parts.
        if line.partition("=")[0].count(".") > MAX_KEY_PARTS:
            raise PolicyError(
                f"the key has more than {MAX_KEY_PARTS} parts", where=f"{shown}:{number}"
            )
    try:
        values, lines = _parsed(text)
    except tomllib.TOMLDecodeError as error:
        raise _not_toml(text, shown, str(error)) from None
    except RecursionError:
        raise PolicyError("the file is nested too deeply", where=shown) from None
    except ValueError as error:  # a number with more digits than Python reads
        raise PolicyError(f"not valid TOML: {error}", where=shown) from None
    return Table(shown, values, lines)


@lru_cache(maxsize=8)  # a session reads the same files at each start of its core
def _parsed(text: str) -> tuple[Mapping[str, object], Mapping[Path, int]]:
    return tomllib.loads(text), positions(text)


def _not_toml(text: str, shown: str, message: str) -> PolicyError:
    """tomllib reports ``what (at line 3, column 7)`` or ``what (at end of document)``."""
    error_text, _, position = message.rpartition(" (at ")
    error_text = error_text or message
    if position.startswith("line "):
        line = int(position.removeprefix("line ").partition(",")[0])
    else:
        line = max(1, len(text.rstrip("\n").split("\n")))
        error_text = f"the file ends too early: {error_text}"
    if error_text == "Cannot overwrite a value":
        key = text.split("\n")[line - 1].partition("=")[0].strip()
        error_text = f"the key {key!r} is given twice" if key else "this key is given twice"
    elif error_text.startswith("Cannot declare"):
        error_text = "this section is given twice"
    return PolicyError(f"not valid TOML: {error_text}", where=f"{shown}:{line}")


@dataclass(frozen=True, slots=True)
class _TomlReader:
    document: Table
    values: Values

    def fragment(self) -> Fragment:
        document = self.document
        if isinstance(document.values.get("filesystem"), str):
            raise document.wrong(
                "filesystem",
                "a file cannot turn the file layer off",
                hint="give it on the command line: --off landlock",
            )
        document.allow_only(SECTIONS)
        sections, rules = Sections(self.values), RuleReader(self.values)
        meta = document.table("meta")
        filesystem = document.table("filesystem")
        network = document.table("network")
        syscalls = document.table("syscalls")
        env = document.table("env")
        limits = document.table("limits")
        audit = document.table("audit")
        tools = document.table("tools")
        shell = document.table("shell")
        container = document.table("container")
        fragment = Fragment(
            policy=Policy(
                profiles=(),
                meta=Meta() if meta is None else sections.meta(meta),
                workdir=None if meta is None else sections.workdir(meta),
                filesystem=Filesystem() if filesystem is None else sections.filesystem(filesystem),
                network=None if network is None else sections.network(network),
                syscalls=Syscalls() if syscalls is None else sections.syscalls(syscalls),
                env=Environment() if env is None else sections.env(env),
                limits=() if limits is None else sections.limits(limits),
                audit=Audit() if audit is None else sections.audit(audit),
                rules=rules.rules(document),
                tools=ToolSettings() if tools is None else rules.tools(tools),
                shell=None if shell is None else sections.shell(shell, document.source("shell")),
                container=() if container is None else sections.container(container),
            ),
            inherit=() if meta is None else sections.inherit(meta),
            speaks_of_files=filesystem is not None,
        )
        rules.check_regexes()
        return fragment
