"""Output on the terminal. Messages go to stderr with the prefix ``paddock:``. Requested results go
to stdout.
"""

from __future__ import annotations

import sys

from paddock.text.printable import printable


def complain(message: str, hint: str | None = None) -> None:
    print(f"paddock: {printable(message)}", file=sys.stderr)
    if hint:
        print(f"hint: {printable(hint)}", file=sys.stderr)


def say(line: str = "") -> None:
    """Prints one line of a result. Names come from untrusted sources: nothing in them may control
    the terminal or add a line.
    """
    sys.stdout.write(printable(line).replace("\n", "\\n") + "\n")
