"""A rule's regular expression is checked by the engine that will use it: Rust's ``regex``, in the
core.

Its time is linear in the text, because it has no back-references and no look-around. What it means
has one place.
"""

from __future__ import annotations

from collections.abc import Sequence

from paddock.core.canonical import canonical
from paddock.errors import CoreError


def wrong_regexes(patterns: Sequence[str]) -> list[str | None]:
    """For each what is wrong with it, in one line; None: nothing."""
    if not patterns:
        return []
    # Imported here: a policy without rules never pays for it.
    from paddock.core import process as core

    answer = core.ask("regexes", question=canonical(list(patterns)))
    if not isinstance(answer, list) or len(answer) != len(patterns):
        raise CoreError("paddock-core sent an invalid answer", hint="reinstall paddock")
    return [None if one is None else str(one) for one in answer]
