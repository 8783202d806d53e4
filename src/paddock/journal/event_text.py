"""Events as text: one ``key=value`` line each. No value can look like another field or line."""

from __future__ import annotations

import json
import re
from typing import Any

from paddock.journal.reader import Event

_PLAIN = re.compile(r"[A-Za-z0-9_@%+:,./>()-]+")
_HIDDEN = frozenset({"seq", "prev", "ts", "requested", "actual"})


def line(event: Event) -> str:
    fields = event.fields
    stamp = str(fields.get("ts", "?")).replace("T", " ")[:19]
    shown = [f"[{stamp}]"]
    shown += [f"{key}={_value(key, value)}" for key, value in fields.items() if key not in _HIDDEN]
    shown += [f"{key}={_value(key, value)}" for key, value in _enforced(fields).items()]
    return " ".join(shown)


def _enforced(fields: dict[str, Any]) -> dict[str, Any]:
    """The applied mechanisms, in words that people search for."""
    actual = fields.get("actual")
    if not isinstance(actual, dict):
        return {}
    return {
        "landlock": int(bool(actual.get("landlock_abi"))),
        "seccomp": int(bool(actual.get("seccomp"))),
        "paths": actual.get("paths"),
        "blocked": actual.get("blocked"),
        "network": actual.get("network") or "open",
    }


def _value(key: str, value: object) -> str:
    if value is None:
        return "-"
    if key == "ppid_chain" and isinstance(value, list):
        return _word("->".join(str(one) for one in value))
    if key in ("command", "argv", "subject") and isinstance(value, list):
        return json.dumps(" ".join(str(one) for one in value))
    return _word(value if isinstance(value, str) else json.dumps(value))


def _word(text: str) -> str:
    return text if _PLAIN.fullmatch(text) else json.dumps(text)
