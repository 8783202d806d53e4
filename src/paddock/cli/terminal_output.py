"""Words on the terminal. Paddock speaks on stderr, ``paddock:`` first; answers that were asked for
go to stdout.
"""

from __future__ import annotations

import sys

from paddock.text.printable import printable


def complain(message: str, hint: str | None = None) -> None:
    print(f"paddock: {printable(message)}", file=sys.stderr)
    if hint:
        print(f"hint: {printable(hint)}", file=sys.stderr)


def say(line: str = "") -> None:
    """One line of an answer. Names come from untrusted places: nothing in them may steer the
    terminal or add a line.
    """
    sys.stdout.write(printable(line).replace("\n", "\\n") + "\n")
