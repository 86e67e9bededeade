"""When two ids name the same subject: one rule for whoever prepares pictures and for whoever receives them."""

from __future__ import annotations

import unicodedata

from obscura.wire.faults import Fault, Refused

SubjectId = int | str | bytes
_MISSING_WORDS = frozenset({"nan", "nat", "none", "null", "<na>"})  # how missing values look once made into texts


def canonical(private_id: SubjectId) -> int | str:
    """Return what decides whether two ids name the same subject.

    Texts are compared letter by letter in Unicode form C, without white space around them; bytes are read as UTF-8.

    Raises:
        Refused: The id stands for a missing value: empty, a negative number, or a word such as "nan".
    """
    if isinstance(private_id, int):
        if private_id < 0:
            raise Refused(Fault.SUBJECT_BLANK)
        return private_id
    text = private_id.decode("utf-8", "surrogateescape") if isinstance(private_id, bytes) else private_id
    text = unicodedata.normalize("NFC", text.strip())
    if not text or text.casefold() in _MISSING_WORDS:
        raise Refused(Fault.SUBJECT_BLANK)
    return text
