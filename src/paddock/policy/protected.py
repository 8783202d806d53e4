"""Protected names, from protected.toml: files that programs outside the sandbox execute or trust
later, with the reason.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from functools import cache

from paddock.frozen import dataclass
from paddock.policy.git_layout import patterns
from paddock.policy.glob import ANY_DEPTH, Glob, component_matches

TABLE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "protected.toml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Names with one reason. Each list has patterns without a beginning (``.git/hooks``);
    protected.toml says where each is searched.
    """

    title: str
    why: str
    any: tuple[str, ...] = ()
    top: tuple[str, ...] = ()
    home: tuple[str, ...] = ()
    open: tuple[str, ...] = ()
    shipped: bool = False

    @property
    def everywhere(self) -> bool:
        """Also in directories that only tools write: a planted repository is harmful everywhere."""
        return self.title == "git"


@dataclass(frozen=True, slots=True, kw_only=True)
class Protected:
    groups: tuple[Group, ...]
    packages: tuple[str, ...]  # directories of installed packages
    flagged: tuple[str, ...]  # may be written, although they are executed outside
    flagged_top: tuple[str, ...]  # likewise, directly in a writable path
    variables: Mapping[str, str]  # of the caller: the name in the home that each replaces

    def named_by(
        self, environ: Mapping[str, str], home: str, cwd: str
    ) -> Iterator[tuple[str, str]]:
        """Each variable that is set, with the paths or patterns that it protects."""
        for variable, name in self.variables.items():
            value = environ.get(variable, "")
            # Some variables contain lists; shells expand the home in theirs.
            for one in value.split(":"):
                written = re.sub(r"^(~(?=/)|\$HOME\b|\$\{HOME\})", lambda _: home, one)
                if not written or written == os.devnull:
                    continue
                path = "/" + os.path.normpath(os.path.join(cwd, written)).lstrip("/")
                yield from (
                    (variable, os.path.join(path, rest) if rest else path)
                    for rest in self._in_place_of(name)
                )

    def _in_place_of(self, name: str) -> tuple[str, ...]:
        """The protected names below a path that replaces this name of the home; "" is the path
        itself.
        """
        names = [one for group in self.groups for one in group.home]
        if "*" in name:
            return tuple(one for one in names if component_matches(name, one.partition("/")[0]))
        if name in names:
            return ("",)
        return tuple(
            one.removeprefix(f"{name}/") for one in names if one.startswith(f"{name}/")
        ) or ("",)


@cache  # part of the installation, like the code
def protected() -> Protected:
    import tomllib

    with open(TABLE, "rb") as file:
        table = tomllib.load(file)
    packages, flagged = tuple(table.pop("packages")), tuple(table.pop("flagged"))
    flagged_top = tuple(table.pop("flagged_top"))
    table["git"]["any"] = list(patterns())
    variables = table.pop("variables")
    groups = tuple(_group(title, entry) for title, entry in table.items())
    return Protected(
        groups=groups,
        packages=packages,
        flagged=flagged,
        flagged_top=flagged_top,
        variables=variables,
    )


def _group(title: str, entry: dict[str, object]) -> Group:
    lists = {key: tuple(value) for key, value in entry.items() if isinstance(value, list)}
    return Group(
        title=title, why=str(entry["why"]), shipped=bool(entry.get("shipped", False)), **lists
    )


def is_flagged(path: str, target: str | None = None) -> bool:
    """Whether programs outside execute a file of this name although commands may write it.
    ``path``: relative to its workspace. ``target``: of a symlink. A link into packages makes files
    that are tolerated there effective at its own path.
    """
    table = protected()
    directories, _, name = path.rpartition("/")

    def is_shipped(path: str) -> bool:
        return any(part in table.packages for part in path.split("/"))

    if is_shipped(directories):
        return False
    if not directories and name in table.flagged_top:
        return True
    end = os.path.normpath(os.path.join(directories, target)) if target else ""
    return is_shipped(end) or any(component_matches(pattern, name) for pattern in table.flagged)


def protected_because(path: str) -> str | None:
    """The reason why a path with such a name, or below such a name, is protected. A pattern is
    treated as the path it names.
    """
    parts = [part for part in path.split("/") if part and part != ANY_DEPTH]
    for end in range(len(parts), 0, -1):
        ancestor = "/" + "/".join(parts[:end])
        for group in protected().groups:
            if any(
                bears(ancestor, name)
                for name in (*group.any, *group.top, *group.home)
                if name != ".git"
            ):
                return group.why
    return None


def bears(path: str, name: str) -> bool:
    """Whether the path ends in the name. The last component is compared first."""
    last = component_matches(name.rpartition("/")[2], path.rpartition("/")[2])
    return last and Glob.parse(f"{ANY_DEPTH}/{name}").matches(path)
