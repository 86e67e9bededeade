"""What the folder of each class is called, where images lie in class folders."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence


def folder_names(names: Sequence[str]) -> tuple[str, ...]:
    """Turn declared class names into distinct, harmless folder names whose alphabetical order is the label order.

    Names that already do so stay as they are ("0", "1", ...); otherwise every name gets its label in front:
    "T-shirt/top" becomes "0_T-shirt_top". Readers such as torchvision's number the folders alphabetically.
    """
    plain = tuple(_harmless(name) for name in names)
    if plain == tuple(sorted(plain)) and len({name.lower() for name in plain}) == len(plain):
        return plain
    digits = len(str(len(names) - 1))
    return tuple(f"{label:0{digits}d}_{name}" for label, name in enumerate(plain))


def _harmless(name: str) -> str:
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    return re.sub(r"[^A-Za-z0-9-]+", "_", plain).strip("_-")[:64] or "class"
