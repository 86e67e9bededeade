"""What may be a name that people give: of an account or its owner, a dataset or its classes, a sweep, a key, an admin.

Names stand on cards, pages and in the log for ever, and people decide by them. So two names that look alike must not
differ by something that cannot be seen, and no name may turn around the text that it stands in. One rule holds for
requests, for the command line and for pictures before they are sent. Names from before it are shown as they are.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

NAME_CHARACTERS_MAX = 100
RULE = (
    f"a name has 1 to {NAME_CHARACTERS_MAX} characters, no space at its beginning or end, and none that cannot be "
    "seen or that change the direction of the text; joiners (U+200C, U+200D) stand between two letters only"
)
# Persian, Hindi and others need them within words.
_JOINERS = frozenset("\u200c\u200d")
# Drawn as nothing, though Unicode counts them as letters, marks or symbols: fillers, variation selectors, a blank.
_BLANK = (
    (0x034F, 0x034F),
    (0x115F, 0x1160),
    (0x17B4, 0x17B5),
    (0x180B, 0x180F),
    (0x2800, 0x2800),
    (0x3164, 0x3164),
    (0xFE00, 0xFE0F),
    (0xFFA0, 0xFFA0),
    (0xE0100, 0xE01EF),
)


def is_name(text: str) -> bool:
    """Tell whether a text may be a name."""
    if not 1 <= len(text) <= NAME_CHARACTERS_MAX or text.strip() != text:
        return False
    return all(_is_seen(character) or _joins(text, place) for place, character in enumerate(text))


def same_names(names: Sequence[str]) -> list[str]:
    """Return those names that are equal to one before them, however their accents are stored (Unicode form C)."""
    forms = [unicodedata.normalize("NFC", name) for name in names]
    return [name for place, name in enumerate(names) if forms[place] in forms[:place]]


def _is_seen(character: str) -> bool:
    """Tell whether a character is drawn, and is known: no control, mark of direction, or space but the usual one."""
    return character.isprintable() and not any(first <= ord(character) <= last for first, last in _BLANK)


def _joins(text: str, place: int) -> bool:
    beside = (text[place - 1 : place], text[place + 1 : place + 2])
    return text[place] in _JOINERS and all(side and unicodedata.category(side)[0] in "LM" for side in beside)
