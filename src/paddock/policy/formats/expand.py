"""Expands ``~``, ``$NAME``, ``${NAME}`` and ``<cwd>`` in written values, once, at load.

``HOME``, ``USER`` and ``UID`` are those of the user (see trust/origin.py). Every other name comes
from the environment. An unset name is an error, because an empty string would grant something else.
The value of a variable is text, never syntax: a value with a wildcard or with ``<tmp>`` is refused.
Otherwise the environment could change the meaning of the policy. ``$$`` is a dollar sign.
"""

from __future__ import annotations

from paddock.errors import PolicyError
from paddock.frozen import dataclass
from paddock.policy.model import COMMAND_LINE, TMP_TOKEN, Source
from paddock.policy.trust.origin import Origin

CWD_TOKEN = "<cwd>"
_NAME_START = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_")
_NAME = _NAME_START | frozenset("0123456789")


def wrong(source: Source, message: str, *, hint: str | None = None) -> PolicyError:
    """The error for a written value: file:line first, then the key; or the flag alone."""
    if source.file != COMMAND_LINE and source.key:
        message = f"{source.key}: {message}"
    return PolicyError(message, where=str(source), hint=hint)


@dataclass(frozen=True, slots=True)
class Expander:
    origin: Origin

    def text(self, value: str, source: Source) -> str:
        """Variables only, for values that are not paths."""
        out: list[str] = []
        rest = value
        while True:
            before, dollar, rest = rest.partition("$")
            out.append(before)
            if not dollar:
                return "".join(out)
            if rest.startswith("$"):
                out.append("$")
                rest = rest[1:]
                continue
            name, rest = _variable(rest, value, source)
            out.append(self._value_of(name, source))

    def path(self, value: str, source: Source) -> str:
        """Variables, then a leading ``~`` or ``<cwd>``. The result may still be relative."""
        if value == "~" or value.startswith("~/"):
            return self._literal(self.origin.home, "the home directory", source) + self.text(
                value[1:], source
            )
        if value.startswith("~"):
            raise wrong(source, f"only '~/', your own home, is supported: {value!r}")
        if value == CWD_TOKEN or value.startswith(f"{CWD_TOKEN}/"):
            workspace = self._literal(self.origin.cwd, "the current directory", source)
            return workspace + self.text(value[len(CWD_TOKEN) :], source)
        return self.text(value, source)

    def _value_of(self, name: str, source: Source) -> str:
        match name:
            case "HOME":
                value: str | None = self.origin.home
            case "USER":
                value = self.origin.user
            case "UID":
                value = str(self.origin.uid)
            case _:
                value = self.origin.environ.get(name)
        if value is None:
            raise wrong(
                source, f"the variable {name} is not set", hint="write $$ for a dollar sign"
            )
        return self._literal(value, f"the value of ${name}", source)

    def _literal(self, value: str, description: str, source: Source) -> str:
        for syntax in ("*", TMP_TOKEN):
            if syntax in value:
                raise wrong(
                    source,
                    f"{description} contains {syntax!r}, which has a meaning in a pattern: "
                    f"{value!r}",
                )
        return value


def _variable(rest: str, value: str, source: Source) -> tuple[str, str]:
    """The name after a ``$``, and the text after it."""
    if rest.startswith("{"):
        name, closed, after = rest[1:].partition("}")
        if not closed or not name or name[0] not in _NAME_START or not _NAME.issuperset(name):
            raise wrong(
                source, f"not a variable: {value!r}", hint="write ${NAME}, or $$ for a dollar sign"
            )
        return name, after
    end = 0
    while end < len(rest) and rest[end] in _NAME:
        end += 1
    if end == 0 or rest[0] not in _NAME_START:
        raise wrong(
            source,
            f"a '$' without a variable name: {value!r}",
            hint="write ${NAME}, or $$ for a dollar sign",
        )
    return rest[:end], rest[end:]
