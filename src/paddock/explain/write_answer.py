"""The decision of the landlock init for a name that is made, written, removed or changed.

Landlock has no rule for a name. So these calls wait, and init judges and does them. The core has
the only judge (``core/src/files/writes/judge.rs``), and this file asks it. A name that is only read
is not judged.
"""

from __future__ import annotations

import os
from enum import Enum

from paddock.core import process as core
from paddock.core.canonical import canonical
from paddock.errors import CoreError
from paddock.explain.name_rules import NameRules, protected_reason
from paddock.frozen import dataclass
from paddock.plan.path_containment import with_parents
from paddock.plan.plan import Plan
from paddock.text.path_walk import MAX_LINKS

# No pattern matches it: it stands for any name in a directory.
_ANY_NAME = "a new file"


class NameAct(Enum):
    MAKE = "make"  # or open for writing
    REMOVE = "remove"  # or rename
    CHANGE = "change"  # its metadata


class NameFreedom(Enum):
    FREE = "free"
    BY_CONTENT = "by-content"  # a file of git: harmless content may be written
    UNREAD = "unread"  # a file of git: its metadata may be changed, whatever its content is
    PROTECTED = "protected"
    DENIED = "denied"
    FAILED = "failed"

    @property
    def is_refused(self) -> bool:
        return self in (NameFreedom.PROTECTED, NameFreedom.DENIED, NameFreedom.FAILED)

    @property
    def is_left_to_init(self) -> bool:
        """No mount locks such a file."""
        return self in (NameFreedom.BY_CONTENT, NameFreedom.UNREAD)


@dataclass(frozen=True, slots=True, kw_only=True)
class NameDecision:
    """``metadata``: the metadata of the object may be changed."""

    freedom: NameFreedom
    metadata: bool
    reason: str


def are_judged(plan: Plan) -> bool:
    """In a copy the rules of the plan say what may be applied."""
    return plan.judges_writes and plan.workspace is None


class JudgedWrites:
    def __init__(self, plan: Plan, rules: NameRules) -> None:
        self._plan = plan
        self._rules = rules

    def written(self, path: str) -> NameDecision:
        """``path``: as written. Each link at its end is judged as if it were the file."""
        names = _final_names(path)
        if os.path.isdir(names[-1]):
            return self.made(os.path.join(names[-1], _ANY_NAME))
        decisions = self._ask(names, NameAct.MAKE)
        refused = (decision for decision in decisions if decision.freedom is not NameFreedom.FREE)
        return next(refused, decisions[-1])

    def made(self, path: str) -> NameDecision:
        """A file of this name is created."""
        return self._ask([path], NameAct.MAKE)[0]

    def removed(self, path: str) -> NameDecision:
        """An existing name is removed or renamed."""
        return self._ask([path], NameAct.REMOVE)[0]

    def changed(self, path: str) -> NameDecision:
        """The metadata of an existing name are changed."""
        return self._ask([path], NameAct.CHANGE)[0]

    def _ask(self, paths: list[str], act: NameAct) -> list[NameDecision]:
        question = canonical([{"path": path, "act": act.value} for path in paths])
        answers = core.ask("judge-writes", plan=self._plan, question=question)
        if not answers:
            # The command can write only to private directories.
            return [NameDecision(freedom=NameFreedom.FREE, metadata=True, reason="") for _ in paths]
        try:
            return [
                self._decision(path, NameFreedom(one["answer"]), metadata=bool(one["metadata"]))
                for path, one in zip(paths, answers, strict=True)
            ]
        except (KeyError, TypeError, ValueError) as error:
            raise CoreError(
                f"paddock-core sent an invalid answer: {error!r}", hint="reinstall paddock"
            ) from error

    def _decision(self, path: str, freedom: NameFreedom, *, metadata: bool) -> NameDecision:
        match freedom:
            case NameFreedom.DENIED:
                patterns = (self._rules.denied_by(each) for each in with_parents(path))
                pattern = next(filter(None, patterns), path)
                reason = f"{pattern} is denied, even inside a grant"
            case NameFreedom.PROTECTED:
                reason = protected_reason(path)
            case NameFreedom.FAILED:
                reason = "paddock cannot examine the name, so it does not change it"
            case _:
                reason = ""
        return NameDecision(freedom=freedom, metadata=metadata, reason=reason)


def _final_names(path: str) -> list[str]:
    """The name and, if it is a link, each name that it leads to. Links above are resolved."""
    names: list[str] = []
    for _ in range(MAX_LINKS):
        path = path.rstrip("/") or "/"
        path = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
        names.append(path)
        try:
            target = os.readlink(path)
        except OSError:
            break
        path = os.path.join(os.path.dirname(path), target)
    return names
