"""When two ids name the same subject: one rule for whoever prepares pictures and for whoever receives them."""

from __future__ import annotations

import unicodedata

from obscura.wire.faults import Fault, Refused

SubjectId = int | str | bytes
# How missing values look once made into texts, and what is written in the place of an id that was taken away.
_NOBODY = frozenset(
    [
        "nan",
        "nat",
        "none",
        "null",
        "nil",
        "<na>",
        "na",
        "n/a",
        "n.a",
        "n.a.",
        "#n/a",
        "missing",
        "undefined",
        "unknown",
        "unk",
        "unbekannt",
        "inconnu",
        "anonymous",
        "anonym",
        "anon",
        "anonymised",
        "anonymized",
        "deidentified",
        "de-identified",
        "redacted",
        "removed",
    ]
)


def canonical(private_id: SubjectId) -> int | str:
    """Return what decides whether two ids name the same subject.

    Texts are compared letter by letter in Unicode form C, without white space around them; bytes are read as UTF-8.

    Raises:
        Refused: The id stands for nobody: a negative number, a text without a letter or digit, or a word such as NA.
    """
    if isinstance(private_id, int):
        if private_id < 0:
            raise Refused(Fault.SUBJECT_BLANK)
        return private_id
    text = private_id.decode("utf-8", "surrogateescape") if isinstance(private_id, bytes) else private_id
    text = unicodedata.normalize("NFC", text.strip())
    if not any(map(str.isalnum, text)) or text.casefold() in _NOBODY:
        raise Refused(Fault.SUBJECT_BLANK)
    return text
