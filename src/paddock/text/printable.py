"""Makes untrusted text safe for a terminal."""

from __future__ import annotations

from bisect import bisect_right


def printable(text: str) -> str:
    """Shows control, format (bidi), surrogate and invisible characters as escapes; line breaks
    stay.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(one if _shown(one) else _escape(one) for one in text)


# Code points that control a terminal, or are shown as nothing or as a blank: control and format
# characters, separators, Unicode's Default_Ignorable_Code_Point (tags, variation selectors,
# fillers), private use, surrogates, noncharacters, an empty Braille pattern. The core has the same
# list (core/src/kernel/stderr.rs); schema/examples/unseen.txt tests both.
_UNSEEN = (
    (0x0000, 0x001F), (0x007F, 0x00A0), (0x00AD, 0x00AD), (0x034F, 0x034F), (0x0600, 0x0605),
    (0x061C, 0x061C),
    (0x06DD, 0x06DD), (0x070F, 0x070F), (0x0890, 0x0891), (0x08E2, 0x08E2), (0x115F, 0x1160),
    (0x1680, 0x1680),
    (0x17B4, 0x17B5), (0x180B, 0x180F), (0x2000, 0x200F), (0x2028, 0x202F), (0x205F, 0x206F),
    (0x2800, 0x2800),
    (0x3000, 0x3000), (0x3164, 0x3164), (0xD800, 0xF8FF), (0xFDD0, 0xFDEF), (0xFE00, 0xFE0F),
    (0xFEFF, 0xFEFF),
    (0xFFA0, 0xFFA0), (0xFFF0, 0xFFFB), (0xFFFE, 0xFFFF), (0x110BD, 0x110BD), (0x110CD, 0x110CD),
    (0x13430,
    0x1343F), (0x16FE4, 0x16FE4), (0x1BCA0, 0x1BCA3), (0x1D173, 0x1D17A), (0x1FFFE, 0x1FFFF),
    (0x2FFFE, 0x2FFFF),
    (0x3FFFE, 0x3FFFF), (0x4FFFE, 0x4FFFF), (0x5FFFE, 0x5FFFF), (0x6FFFE, 0x6FFFF), (0x7FFFE,
    0x7FFFF), (0x8FFFE,
    0x8FFFF), (0x9FFFE, 0x9FFFF), (0xAFFFE, 0xAFFFF), (0xBFFFE, 0xBFFFF), (0xCFFFE, 0xCFFFF),
    (0xDFFFE, 0xE0FFF),
    (0xEFFFE, 0x10FFFF),
)  # fmt: skip
_BEGINS = [begin for begin, _ in _UNSEEN]


def _shown(one: str) -> bool:
    return one in "\n" or ord(one) > _UNSEEN[bisect_right(_BEGINS, ord(one)) - 1][1]


def _escape(one: str) -> str:
    if 0xDC80 <= ord(one) <= 0xDCFF:  # a byte that is not UTF-8, as Python represents it
        return f"\\x{ord(one) - 0xDC00:02x}"
    return one.encode("unicode_escape").decode("ascii")
