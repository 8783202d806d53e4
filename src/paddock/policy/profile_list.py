"""The available profiles: their purposes and their errors.

An invalid file is an error for its user. In the list it is one row among others.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from paddock.errors import PolicyError
from paddock.policy.command_line import Request
from paddock.policy.load import load
from paddock.policy.model import COMMAND_LINE, Source
from paddock.policy.trust.origin import Origin
from paddock.policy.trust.search import FoundProfile, ProfileSearch, read_text

_REQUEST_SOURCE = Source(file=COMMAND_LINE, key="profile")


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedProfile:
    """``about``: the first sentence of the opening comment. ``error``: the reason why the profile
    can not be used.
    """

    name: str
    path: str
    shown: str
    about: str
    error: PolicyError | None = None


def text_of(name: str, origin: Origin) -> str:
    """The text of a profile as written."""
    return read_text(
        ProfileSearch(origin).find(name, _REQUEST_SOURCE, relative_to=origin.cwd), origin
    ).text


def listed(origin: Origin) -> tuple[ListedProfile, ...]:
    # Loaded in a neutral directory: an unsuitable current directory is not a fault of the profile.
    neutral = replace(origin, cwd="/nonexistent")
    return tuple(
        _listed(name, path, neutral) for name, path in sorted(ProfileSearch(origin).names().items())
    )


def _listed(name: str, path: str, origin: Origin) -> ListedProfile:
    try:
        found = ProfileSearch(origin).find(name, _REQUEST_SOURCE, relative_to=origin.cwd)
        about = _about(found, read_text(found, origin).text)
        load(Request(profiles=(name,), trust_required=False), origin)
    except PolicyError as error:
        return ListedProfile(name=name, path=path, shown=path, about="", error=error)
    return ListedProfile(name=name, path=found.path, shown=found.shown, about=about)


def _about(found: FoundProfile, text: str) -> str:
    comment: list[str] = []
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        comment.append(line.lstrip("# ").strip())
    return " ".join(comment).removeprefix(f"{found.name}:").strip().partition(". ")[0]
