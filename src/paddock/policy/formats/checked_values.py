"""Turns one written value into one checked value. Both file formats and the command line use it."""

from __future__ import annotations

import os

from paddock.frozen import dataclass
from paddock.policy.formats.expand import CWD_TOKEN, Expander, wrong
from paddock.policy.formats.suggest import did_you_mean
from paddock.policy.glob import ANY_DEPTH, Glob, GlobError
from paddock.policy.model import (
    COMMAND_LINE,
    SOCKETS,
    TMP_TOKEN,
    Access,
    Deny,
    Grant,
    Source,
    Sourced,
)

_ENV_NAME = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_")


@dataclass(frozen=True, slots=True)
class Values:
    expander: Expander

    def grant(self, access: Access, written: str, source: Source) -> Grant:
        optional = written.endswith("?")
        body = written[:-1] if optional else written
        at_workspace = body.startswith(CWD_TOKEN)
        glob = self.pattern(body, source)
        whole = (
            glob.root == "/" and glob.exact and glob.prefix == "/"
        )  # the compiler knows whether it can be enforced
        if glob.floating or (glob.prefix == "/" and (at_workspace or not whole)):
            raise wrong(
                source,
                f"the grant {written!r} would open the whole machine",
                hint="start paddock in a project directory"
                if at_workspace
                else "name the directories that the command needs",
            )
        return Grant(
            access=access,
            pattern=glob.text,
            optional=optional,
            workspace=body.rstrip("/") in (CWD_TOKEN, f"{CWD_TOKEN}/**"),
            source=source,
        )

    def deny(self, written: str, source: Source) -> Deny:
        optional = written.endswith("?")
        glob = self.pattern(written[:-1] if optional else written, source)
        if glob.prefix == "/" and glob.exact:
            raise wrong(source, f"the deny {written!r} would deny every path")
        return Deny(pattern=glob.text, source=source, optional=optional)

    def protected(self, written: str, source: Source) -> Sourced[str]:
        """A pattern that a policy adds to the protected names. A directory includes its content."""
        glob = self.pattern(written, source)
        if set(glob.parts) <= {ANY_DEPTH, "*"}:
            raise wrong(
                source,
                f"{written!r} would protect every path",
                hint="grant these paths for reading only: read_globs",
            )
        if glob.root == TMP_TOKEN:
            raise wrong(
                source,
                f"{written!r} is in the private temporary directory: no program outside uses it",
                hint="remove this pattern",
            )
        if glob.parts[-1] == ANY_DEPTH:
            glob = Glob(root=glob.root, parts=glob.parts[:-1])
        return Sourced(glob.text, source)

    def opened(self, written: str, source: Source) -> Sourced[str]:
        """A pattern that a policy removes from the protected names: whole paths, as in a deny."""
        glob = self.pattern(written, source)
        if set(glob.parts) <= {ANY_DEPTH, "*"}:
            raise wrong(
                source,
                f"{written!r} would open every protected name",
                hint="name the names that the command needs",
            )
        return Sourced(glob.text, source)

    def pattern(self, written: str, source: Source) -> Glob:
        text = self.expander.path(written, source)
        if source.file == COMMAND_LINE and text and not text.startswith(("/", "**", "<")):
            # On the command line a relative path has its usual meaning.
            text = f"{self.expander.path(CWD_TOKEN, source)}/{text}"
        try:
            glob = Glob.parse(text)
        except GlobError as error:
            raise wrong(source, str(error), hint=_pattern_hint(text)) from None
        if glob.text.endswith("?"):
            raise wrong(source, f"a pattern cannot express a name that ends in '?': {glob.text!r}")
        return glob

    def path(self, written: str, source: Source) -> str:
        """One absolute path, without wildcards."""
        glob = self.pattern(written, source)
        if not glob.literal or glob.root != "/":
            raise wrong(source, f"not a plain absolute path: {written!r}")
        return glob.text

    def syscall(self, written: str, source: Source) -> Sourced[str]:
        from paddock.policy.syscalls import table

        if written not in table():
            raise wrong(
                source,
                f"unknown system call {written!r}",
                hint=did_you_mean(written, table()),
            )
        return Sourced(written, source)

    def socket(self, written: str, source: Source) -> Sourced[str]:
        if written not in SOCKETS:
            raise wrong(source, f"a socket family is one of {', '.join(SOCKETS)}: {written!r}")
        return Sourced(written, source)

    def env_name(self, written: str, source: Source) -> Sourced[str]:
        """A variable name; ``*`` matches any text."""
        plain = written.replace("*", "")
        if not written or not _ENV_NAME.issuperset(plain) or written[0].isdigit():
            raise wrong(source, f"not the name of an environment variable: {written!r}")
        return Sourced(written, source)

    def env_setting(self, name: str, value: str, source: Source) -> tuple[str, Sourced[str]]:
        if "*" in name:
            raise wrong(source, f"a variable to set needs its full name, without '*': {name!r}")
        self.env_name(name, source)
        if "\0" in value:
            raise wrong(source, f"the value of {name} contains a NUL byte")
        if source.file != COMMAND_LINE:
            value = self.expander.text(value, source)
        return name, Sourced(value, source)

    def journal(self, written: str, source: Source) -> Sourced[str]:
        return Sourced(self.path(written, source), source)


def _pattern_hint(text: str) -> str | None:
    if text.startswith("/") and os.pardir in text.split("/"):
        return f"write the path without '..': {os.path.normpath(text)}"
    if text.startswith(("/", "~")) or not text or os.pardir in text.split("/"):
        return None
    if text.startswith("<"):
        return did_you_mean(text.split("/")[0], (CWD_TOKEN, "<tmp>"))
    return f"write {CWD_TOKEN}/{text} for a path in the current directory"
