"""Glob: the only pattern engine, for grants, denies, exe_glob, cwd_glob and tool paths.

There are two wildcards: ``*`` matches any text inside one path component, and ``**`` alone between
slashes matches any number of whole components (also none). ``?``, ``[`` and ``{`` are ordinary
characters. Matching takes at most components times pattern length, so no path can make it slow.

Paths and patterns are ``str``. Names that are not UTF-8 are surrogate escapes and compare byte for
byte.
"""

from __future__ import annotations

from collections.abc import Callable

from paddock.frozen import dataclass
from paddock.policy.model import TMP_TOKEN

ANY_DEPTH = "**"


class GlobError(ValueError):
    """The pattern is invalid; the text has the reason. The caller knows its file and line."""


def written(path: str) -> str | None:
    """The pattern that matches only this path, as a flag or a policy takes it. None: there is no
    such pattern.
    """
    if "*" in path or TMP_TOKEN in path or path.endswith("?"):
        return None
    return path.replace("$", "$$")


@dataclass(frozen=True, slots=True)
class Glob:
    """``root`` is ``/``, ``<tmp>``, or empty for a floating pattern (``**/name``)."""

    root: str
    parts: tuple[str, ...]

    @classmethod
    def parse(cls, pattern: str) -> Glob:
        if not pattern:
            raise GlobError("the pattern is empty")
        if "\0" in pattern:
            raise GlobError("a pattern cannot contain a NUL byte")
        root, rest = _split_root(pattern)
        parts: list[str] = []
        for part in rest.split("/"):
            if part in ("", "."):
                continue
            if part == "..":
                raise GlobError(f"'..' is not allowed in a pattern: {pattern!r}")
            if ANY_DEPTH in part and part != ANY_DEPTH:
                raise GlobError(f"'**' must stand alone between slashes: {pattern!r}")
            if part == ANY_DEPTH and parts and parts[-1] == ANY_DEPTH:
                continue
            parts.append(part)
        if not root and (parts[:1] != [ANY_DEPTH] or len(parts) < 2):
            raise GlobError(f"not an absolute pattern: {pattern!r}")
        return cls(root=root, parts=tuple(parts))

    @property
    def text(self) -> str:
        """The pattern in its normal form."""
        joined = "/".join(self.parts)
        if self.root == "/" or not self.root:
            return self.root + joined
        return f"{self.root}/{joined}" if joined else self.root

    @property
    def floating(self) -> bool:
        return not self.root

    @property
    def literal(self) -> bool:
        return all("*" not in part for part in self.parts)

    @property
    def prefix(self) -> str:
        """The whole path of a literal, else the longest directory without a wildcard; empty when
        floating.
        """
        if self.floating:
            return ""
        static: list[str] = []
        for part in self.parts:
            if "*" in part:
                break
            static.append(part)
        return Glob(root=self.root, parts=tuple(static)).text

    @property
    def exact(self) -> bool:
        """Whether a kernel rule on ``prefix`` expresses exactly this pattern: one literal path, or
        a subtree ``/x/**``.
        """
        if self.floating:
            return False
        body = self.parts[:-1] if self.parts[-1:] == (ANY_DEPTH,) else self.parts
        return all("*" not in part for part in body)

    def matches(self, path: str) -> bool:
        """``/x/**`` also matches ``/x``, because ``**`` may match no component."""
        return len(self.parts) in self._reached(path)[-1]

    def covers(self, path: str) -> bool:
        """Whether the path or a directory above it matches: the extent of a grant or a deny."""
        return covering(path)(self)

    def _covers(self, path: str) -> bool:
        return any(len(self.parts) in states for states in self._reached(path))

    def may_contain(self, prefix: str) -> bool:
        """Whether a path at or below ``prefix`` could match."""
        return self.floating or bool(self._reached(prefix)[-1])

    def _reached(self, path: str) -> list[frozenset[int]]:
        """The possible positions in the pattern: before the first component, then after each."""
        root, rest = _split_root(path)
        if root != self.root and not (self.floating and root):
            return [frozenset()]
        states = self._past_any_depth({0})
        reached = [states]
        for name in rest.split("/"):
            if name in ("", "."):
                continue
            ahead: set[int] = set()
            for at in states:
                if at == len(self.parts):
                    continue
                if self.parts[at] == ANY_DEPTH:
                    ahead.add(at)
                elif component_matches(self.parts[at], name):
                    ahead.add(at + 1)
            states = self._past_any_depth(ahead)
            reached.append(states)
        return reached

    def _past_any_depth(self, states: set[int]) -> frozenset[int]:
        for at in tuple(states):
            if at < len(self.parts) and self.parts[at] == ANY_DEPTH:
                states.add(at + 1)
        return frozenset(states)


def covering(path: str) -> Callable[[Glob], bool]:
    """``Glob.covers`` for many patterns and one path, which is split once."""
    root, rest = _split_root(path)
    names = [name for name in rest.split("/") if name not in ("", ".")]

    def covers(glob: Glob) -> bool:
        if glob.root or len(glob.parts) != 2:
            return glob._covers(path)
        pattern = glob.parts[1]  # of ``**/name``, the most common one
        if not root or "*" not in pattern:
            return bool(root) and pattern in names
        return any(component_matches(pattern, name) for name in names)

    return covers


def component_matches(pattern: str, name: str) -> bool:
    """Matches ``*`` against one name. Only the last ``*`` is backtracked, so the time is at most
    quadratic.
    """
    head, star, tail = pattern.partition("*")
    if not star:
        return pattern == name
    if "*" not in tail:  # most patterns have at most one, and each start matches thousands
        long_enough = len(name) >= len(head) + len(tail)
        return long_enough and name.startswith(head) and name.endswith(tail)
    at = in_name = 0
    last_star = -1
    resume = 0
    while in_name < len(name):
        if at < len(pattern) and pattern[at] == "*":
            last_star, resume = at, in_name
            at += 1
        elif at < len(pattern) and pattern[at] == name[in_name]:
            at += 1
            in_name += 1
        elif last_star >= 0:
            resume += 1
            at, in_name = last_star + 1, resume
        else:
            return False
    return all(letter == "*" for letter in pattern[at:])


def _split_root(text: str) -> tuple[str, str]:
    if text.startswith("/"):
        return "/", text[1:]
    if text == TMP_TOKEN or text.startswith(f"{TMP_TOKEN}/"):
        return TMP_TOKEN, text[len(TMP_TOKEN) :]
    return "", text
