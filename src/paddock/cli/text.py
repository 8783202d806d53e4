"""Words on the terminal. Paddock speaks on stderr, ``paddock:`` first; answers that were asked for go to stdout."""

from __future__ import annotations

import sys
import unicodedata


def complain(message: str, hint: str | None = None) -> None:
    print(f"paddock: {printable(message)}", file=sys.stderr)
    if hint:
        print(f"hint: {printable(hint)}", file=sys.stderr)


def say(line: str = "") -> None:
    """One line of an answer. Names come from untrusted places: nothing in them may steer the terminal or add a line."""
    sys.stdout.write(printable(line).replace("\n", "\\n") + "\n")


def printable(text: str) -> str:
    """Control, format (bidi), surrogate and invisible characters shown as escapes; lines stay lines."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(one if _shown(one) else _escape(one) for one in text)


# Letters and marks that are shown as nothing, or as a blank: fillers, variation selectors, an empty Braille pattern.
_UNSEEN = frozenset({0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x2800, 0x3164, 0xFFA0, 0x16FE4}).union(
    range(0x180B, 0x1810), range(0xFE00, 0xFE10), range(0xE0100, 0xE01F0)
)


def _shown(one: str) -> bool:
    if one in "\n ":
        return True
    return unicodedata.category(one) not in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Zs") and ord(one) not in _UNSEEN


def _escape(one: str) -> str:
    if 0xDC80 <= ord(one) <= 0xDCFF:  # a byte that is not UTF-8, as Python carries it
        return f"\\x{ord(one) - 0xDC00:02x}"
    return one.encode("unicode_escape").decode("ascii")
