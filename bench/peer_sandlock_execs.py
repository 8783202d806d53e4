"""Runs a command under the sandlock library once per line of stdin, and prints its output.

A policy callback reads the arguments of every exec.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any


def judge(event: Any, _context: Any) -> bool:
    """True denies the exec."""
    return bool(event.argv) and event.argv[:2] == ("git", "push")


def main() -> None:
    places = [
        "/usr",
        "/lib",
        "/lib64",
        "/bin",
        "/etc",
        "/proc",
        "/dev",
        sys.argv[1].rpartition("/")[0],
    ]
    box = importlib.import_module("sandlock").Sandbox(
        fs_readable=places, fs_writable=["/tmp"], policy_fn=judge
    )
    for _ in sys.stdin:
        result = box.run(sys.argv[1:])
        if not result.success:
            sys.exit(f"sandlock: {result}")
        text = result.stdout
        print((text.decode() if isinstance(text, bytes) else text).strip(), flush=True)


main()
