"""Text that Paddock prints on a terminal has no control characters and hides nothing."""

from __future__ import annotations

from pathlib import Path

from paddock.text.printable import printable

UNSEEN_IN_BOTH_LANGUAGES = Path(__file__).parents[3] / "schema" / "examples" / "unseen.txt"


def test_exactly_the_listed_code_points_are_escaped() -> None:
    """The test of the core reads the same list (core/src/kernel/stderr.rs). Line ends are kept
    here.
    """
    listed = set[int]()
    for line in UNSEEN_IN_BOTH_LANGUAGES.read_text().splitlines():
        begin, _, end = line.partition("-")
        listed.update(range(int(begin, 16), int(end or begin, 16) + 1))
    escaped = {code for code in range(0x110000) if printable(chr(code)) != chr(code)}
    assert escaped == listed - {ord("\n")}
    assert {0xAD, 0x200B, 0x202E, 0x2028, 0x3164, 0xFE0F, 0xE0041, 0xE0100} < listed
