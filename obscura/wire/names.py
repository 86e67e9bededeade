"""The common rule for text that people write and read: names, reasons, and texts in options.

Such text stays on cards, on pages and in the log forever, and people base decisions on it. So two texts that look alike
must not differ by an invisible character, and no text may reverse the direction of surrounding text.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

NAME_CHARACTERS_MAX = 100
REASON_CHARACTERS_MAX = 500
# Zero-width (non-)joiners are part of the spelling in these blocks: Arabic to Myanmar, and Khmer to Mongolian.
_JOINERS = frozenset("\u200c\u200d")
_JOINED = ((0x0600, 0x109F), (0x1780, 0x18AF))
# Invisible, although Unicode counts them as letters, marks or symbols: fillers, variation selectors, a blank.
_BLANK = (
    (0x034F, 0x034F), (0x115F, 0x1160), (0x17B4, 0x17B5), (0x180B, 0x180F), (0x2800, 0x2800), (0x3164, 0x3164),
    (0xFE00, 0xFE0F), (0xFFA0, 0xFFA0), (0xE0100, 0xE01EF),
)  # fmt: skip
_SPACES = re.compile("[\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000]")  # every Unicode space except U+0020
_RULE = (  # the rule of `clean_text`, as part of a sentence
    "a text for people has 1 to {} characters, and no control or invisible character, nor one that changes the "
    "direction of the text; joiners (U+200C, U+200D) only between letters of a script that needs them"
)
RULE = _RULE.format(NAME_CHARACTERS_MAX)


def clean_text(text: str, characters_max: int = NAME_CHARACTERS_MAX) -> str:
    """Normalise text: Unicode form C, plain spaces, stripped.

    Raises:
        ValueError: It is empty or too long, or has an invisible character or one that changes the text's direction.
    """
    cleaned = normalize_text(text).strip(" ")
    if not 1 <= len(cleaned) <= characters_max or not is_readable(cleaned):
        raise ValueError(_RULE.format(characters_max))
    return cleaned


def normalize_text(text: str) -> str:
    """Return text in Unicode form C with plain spaces."""
    return unicodedata.normalize("NFC", _SPACES.sub(" ", text))


def is_readable(text: str) -> bool:
    """Return whether all characters are visible and keep the text's direction."""
    for place, character in enumerate(text):
        blank = any(first <= ord(character) <= last for first, last in _BLANK)
        beside = text[place - 1 : place] + text[place + 1 : place + 2]
        if character in _JOINERS and len(beside) == 2:
            joined = (any(first <= ord(side) <= last for first, last in _JOINED) for side in beside)
            if all(joined) and all(unicodedata.category(side)[0] in "LM" for side in beside):
                continue
        if blank or not character.isprintable():  # a control character, a direction mark, or a space other than U+0020
            return False
    return True


def is_name(text: str) -> bool:
    """Return whether a text is a valid name, apart from its Unicode form."""
    try:
        return clean_text(text) == unicodedata.normalize("NFC", text)
    except ValueError:
        return False


def same_names(names: Sequence[str]) -> list[str]:
    """Return the names that equal an earlier name in Unicode form C."""
    forms = [unicodedata.normalize("NFC", name) for name in names]
    return [name for place, name in enumerate(names) if forms[place] in forms[:place]]
