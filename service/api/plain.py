"""JSON of no fixed shape, as far as both databases can keep it and the ledger can hash it."""

from __future__ import annotations

import math
from typing import Any

DEPTH_MAX = 8


def plain(value: Any, depth: int = 0) -> Any:
    """Let JSON pass that both databases can keep and the ledger can hash.

    Raises:
        ValueError: It nests deeply, or holds a NUL, half a character, an infinity, NaN, or more than 63 bits.
    """
    if depth > DEPTH_MAX:
        raise ValueError(f"it may nest at most {DEPTH_MAX} levels deep")
    match value:
        case str() if "\0" in value or any("\ud800" <= character <= "\udfff" for character in value):
            raise ValueError("texts hold neither a NUL character nor half of a surrogate pair")
        case float() if not math.isfinite(value):
            raise ValueError("numbers are finite")
        case int() if not -(2**63) <= value < 2**63:
            raise ValueError("whole numbers have at most 63 bits")
        case dict():
            for name, item in value.items():
                plain(name, depth)
                plain(item, depth + 1)
        case list():
            for item in value:
                plain(item, depth + 1)
    return value
