"""Compare subject ids, by one rule for the client, which prepares images, and the service, which receives them."""

from __future__ import annotations

import re
import unicodedata

from obscura.wire.faults import Fault, Refused

SubjectId = int | str | bytes
KEY_CHECK_CHARACTERS = 16  # hexadecimal digits in the check value of a subjects key
# Missing values in tables, without punctuation: (null), N/A and n.a. become "null" and "n a".
MISSING = frozenset(
    ["nan", "nat", "none", "null", "nil", "na", "n a", "missing", "undefined", "not available", "tbd", "todo"]
)
# Placeholders for a missing or removed id.
_NOBODY = MISSING.union(
    ("unspecified", "blank", "empty", "unknown", "unk", "unbekannt", "inconnu", "desconocido", "noid", "noname"),
    ("dummy", "default", "placeholder", "test", "anonymous", "anonym", "anon", "anonymised", "anonymized"),
    ("deidentified", "de identified", "redacted", "removed"),
    ("not known", "not provided", "not applicable", "nicht bekannt", "no id"),
)
_BESIDE = frozenset(["patient", "patients", "subject", "person", "id", "name"])  # ignored beside such a word
_NO_NUMBER = re.compile(r"-\d+(?:\.0+)?|x{2,}|\\n|#(?:ref|value|name|null|num|div/0)[!?]", re.IGNORECASE)


def canonical(private_id: SubjectId) -> int | str:
    """Return the canonical form of a subject id: two ids with the same form are one subject.

    Text is stripped and compared in Unicode form C; bytes are decoded as UTF-8.

    Raises:
        Refused: The id is a placeholder: a negative number, text without letters or digits, or a word such as NA.
    """
    if isinstance(private_id, int):
        if private_id < 0:
            raise Refused(Fault.SUBJECT_BLANK)
        return private_id
    text = private_id.decode("utf-8", "surrogateescape") if isinstance(private_id, bytes) else private_id
    text = unicodedata.normalize("NFC", text.strip())
    if _NO_NUMBER.fullmatch(text) or is_nobody(text):
        raise Refused(Fault.SUBJECT_BLANK)
    return text


def is_nobody(text: str) -> bool:
    """Return whether a text is a placeholder: no letters or digits, or a word for a missing value."""
    plain = without_marks(text)
    words = set(plain.split()) - _BESIDE
    return not plain or plain in _NOBODY or (bool(words) and words <= _NOBODY)


def without_marks(text: str) -> str:
    """Return the words of a text in lower case, separated by single spaces."""
    return re.sub(r"[\W_]+", " ", text.casefold()).strip()
