"""The only encoding of data for the core: JSON with sorted keys, without blanks, in ASCII.

The core refuses blanks and other characters (``core/src/plan/wire/reader.rs``). Lone surrogates,
from paths that are not UTF-8, are written as escapes. The core turns them back into bytes.
"""

from __future__ import annotations

import json
from typing import Any

_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def canonical(value: Any) -> str:
    return _ENCODER.encode(value)
