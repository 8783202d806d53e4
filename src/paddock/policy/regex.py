"""Checks the regular expressions of rules with the engine that will use them: Rust's ``regex``, in
the core.

Its time is linear in the text, because it has no back-references and no look-around. Only one
engine defines the meaning.
"""

from __future__ import annotations

from collections.abc import Sequence

from paddock.core.canonical import canonical
from paddock.errors import CoreError


def wrong_regexes(patterns: Sequence[str]) -> list[str | None]:
    """The error of each expression, in one line; None: valid."""
    if not patterns:
        return []
    # Imported here: a policy without rules never pays for it.
    from paddock.core import process as core

    answer = core.ask("regexes", question=canonical(list(patterns)))
    if not isinstance(answer, list) or len(answer) != len(patterns):
        raise CoreError("paddock-core sent an invalid answer", hint="reinstall paddock")
    return [None if one is None else str(one) for one in answer]
