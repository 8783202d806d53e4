"""Converts file bytes to text and back, so that a written file differs only in the changed text."""

from __future__ import annotations

import codecs
from dataclasses import dataclass

from paddock.tools.result import ToolFailure, ToolOutcome

DEFAULT = "utf-8"
_MARKS = (  # UTF-32 first: its little-endian mark begins like that of UTF-16
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
# Encodings of real files. Python's other codecs compress, escape, or are very slow.
ENCODINGS = (
    "utf-8", "utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be", "ascii", "iso8859-1", "iso8859-2",
    "iso8859-5",
    "iso8859-7", "iso8859-9", "iso8859-15", "cp437", "cp850", "cp1250", "cp1251", "cp1252",
    "cp1253", "cp1254",
    "koi8-r", "koi8-u", "mac-roman", "shift_jis", "cp932", "euc_jp", "gb2312", "gbk", "gb18030",
    "big5", "euc_kr",
    "cp949",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """``newline`` is CRLF if every line of the file ends with it; then ``text`` has plain ``\\n``
    instead.
    """

    text: str
    encoding: str = DEFAULT
    mark: bytes = b""
    newline: str = "\n"

    @classmethod
    def read(cls, data: bytes, shown: str, encoding: str | None = None) -> Document:
        mark, marked = next(
            ((mark, name) for mark, name in _MARKS if data.startswith(mark)), (b"", None)
        )
        chosen = named(encoding) if encoding is not None else marked or DEFAULT
        if chosen != marked:
            mark = b""
        rest = data[len(mark) :]
        if b"\0" in rest and not chosen.startswith(("utf-16", "utf-32")):
            raise ToolFailure(
                ToolOutcome.BINARY,
                f"{shown}: not text: it contains NUL bytes ({len(data)} bytes in all)",
            )
        try:
            text = rest.decode(chosen)
        except UnicodeDecodeError as error:
            hint = (
                ""
                if encoding is not None
                else '; if it is text, give its encoding, such as "cp1252"'
            )
            raise ToolFailure(
                ToolOutcome.ENCODING,
                f"{shown}: not {chosen} at byte {len(mark) + error.start}{hint}",
            ) from None
        lines = text.count("\n")
        windows = lines > 0 and text.count("\r\n") == lines and "\r\r\n" not in text
        newline = "\r\n" if windows else "\n"
        return cls(text=text.replace(newline, "\n"), encoding=chosen, mark=mark, newline=newline)

    def as_here(self, text: str) -> str:
        """A text of the caller, with the line ends of ``text``."""
        return text.replace("\r\n", "\n") if self.newline == "\r\n" else text

    def written(self, text: str) -> bytes:
        try:
            data = self.as_here(text).replace("\n", self.newline).encode(self.encoding)
        except UnicodeEncodeError as error:
            letter = f"U+{ord(error.object[error.start]):04X}"
            raise ToolFailure(
                ToolOutcome.ENCODING,
                f"{letter} (character {error.start}) cannot be written in {self.encoding}",
            ) from None
        return self.mark + data


def named(encoding: str) -> str:
    try:
        name = codecs.lookup(encoding).name
    except (LookupError, ValueError, TypeError):
        name = ""
    if name not in ENCODINGS:
        raise ToolFailure(
            ToolOutcome.INVALID_ARGUMENTS,
            f"unknown encoding {encoding!r}; known encodings: {', '.join(ENCODINGS)}",
        )
    return name
