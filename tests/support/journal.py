"""The journal as the host reads it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def events(directory: Path) -> list[dict[str, Any]]:
    """All events, oldest first. A line without a line end is still being written: it is left
    out.
    """
    files = sorted(directory.glob("*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_bytes().split(b"\n")[:-1]]
