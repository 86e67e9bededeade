"""Subject ids. They stay on the owner's machine; only numbers in random order, or keyed hashes, leave it."""

from __future__ import annotations

import hashlib
import hmac
import operator
import re
import secrets
import unicodedata
from collections.abc import Iterable, Mapping

from obscura.errors import ChoiceNeeded, PackingError, some
from obscura.preparing.questions import folded, look_alike
from obscura.wire.uploads import KEY_CHECK_CHARACTERS, Refused, SubjectId, canonical, is_nobody

_CHECK_LABEL = b"obscura check of a subjects key 1\0"
_LABEL, _NUMBER_BYTES = b"obscura subject of an owner 1\0", 8
_INVISIBLE = frozenset(("Cc", "Cf", "Zl", "Zp"))  # categories of Unicode
_SEPARATORS = re.compile(r"[,;|\t\r\n]")
_QUOTES = re.compile("[\"\u201c\u201d\u201e\u00ab\u00bb]|^['`\u2018\u2019]|['`\u2018]$")  # O'Neill is a name
_SCIENTIFIC = re.compile(r"\d+[.,]\d+e[+-]?\d+|\d+e[+-]\d+", re.IGNORECASE)
_DECIMAL = re.compile(r"\d+\.0+")
OPEN_BY_SUBJECT = "obscura accounts create NAME --unit subject --epsilon E --delta D"


def canonical_id(private_id: SubjectId) -> int | str:
    """Return the canonical form of an id: two ids with the same form are one subject."""
    try:
        known = private_id if isinstance(private_id, str | bytes) else operator.index(private_id)  # including NumPy's
    except TypeError:
        raise PackingError(
            f"A subject id is an integer or a text, not {private_id!r} ({type(private_id).__name__}). Convert the ids "
            "to text, as written in your records, without decimals."
        ) from None
    try:
        return canonical(known)
    except Refused:
        raise _placeholder(private_id) from None


def require_plain_ids(places: Mapping[SubjectId, str], *, join: bool, withdrawal: bool = False) -> None:
    """Raise unless every id is plain text, because an id rewritten by a program would become another subject.

    Args:
        places: Where each id is, for messages, such as "line 3 of ids.csv"; "" if unknown.
        join: True if ids that look alike, such as 12 and 12.0, are one subject.
        withdrawal: True if the ids must be spelled as they were pushed.
    """
    texts = {_text(each): f"{place[0].upper()}{place[1:]}:" if place else "The" for each, place in places.items()}
    nothing = " Nothing was sent." if withdrawal else ""
    for text, place in texts.items():
        if (fault := _fault(text)) is not None:
            raise PackingError(f"{place} subject id {text!r} {fault}{nothing}")
    if join:
        return
    padded = [len(text) for text in texts if re.fullmatch(r"0\d+", text)]
    width = min(padded, default=0)
    for text, place in texts.items():
        if _DECIMAL.fullmatch(text):
            fault = "is a number with decimals, as spreadsheets and pandas write whole numbers."
        elif text.isdecimal() and len(text) < width:
            fault = f"has {len(text)} digits, but others have {width} with leading zeros, which spreadsheets remove."
        else:
            continue
        if withdrawal:
            raise PackingError(
                f"{place} subject id {text!r} {fault} Write each id as it was pushed. If you pushed with "
                f"--join-subjects, add --join-subjects here, too.{nothing}"
            )
        raise ChoiceNeeded(
            f"{place} subject id {text!r} {fault} Save the column of ids as text; or treat ids that differ only in "
            "zeros and decimals as one subject.",
            ["--join-subjects"],
        )


def _fault(text: str) -> str | None:
    hidden = next((character for character in text.strip() if unicodedata.category(character) in _INVISIBLE), None)
    if hidden == "\ufeff":
        return "contains a byte-order mark (U+FEFF). Remove it: save the file as UTF-8 without BOM."
    if _SCIENTIFIC.fullmatch(text.strip()):
        return "is in scientific notation, in which digits are lost. Export the column of ids as text."
    if _SEPARATORS.search(text):
        return "contains a separator (a comma, semicolon, bar, tab or line break). Write one id for each subject."
    if hidden is not None or "\ufffd" in text:
        return f"contains the invisible character U+{ord(hidden or chr(0xFFFD)):04X}. Write the id without it."
    if _QUOTES.search(text.strip()):
        return "contains a quotation mark. Write the id without it."
    return None


def require_told_apart(ids: Iterable[SubjectId]) -> None:
    """Raise if two ids may be the same person, or if an id looks like a placeholder."""
    texts = sorted({_text(private_id) for private_id in ids})
    numbered = [text for text in texts if (word := re.match(r"\D*[^\W\d]\D*", text)) and is_nobody(word[0])]
    blank = [
        text
        for text in texts
        if re.fullmatch(r"0{4,}|9{4,}", text)
        and not any(str(int(text) + step).zfill(len(text)) in texts for step in (-1, 1))
    ]
    for text in (*blank, *(numbered if 2 * len(numbered) < len(texts) else ())):
        raise _placeholder(text)
    for group in look_alike(texts):
        shown = some([repr(name) for name in group])
        raise ChoiceNeeded(
            f"These subject ids may be the same person: {shown}. A person who counts as two subjects is protected less "
            "than the account promises. Write each id in only one way; or treat such ids as one subject, which can "
            "only increase protection.",
            ["--join-subjects"],
        )


def subject_key(private_id: SubjectId, *, join: bool) -> int | str:
    """Return the key that identifies a subject. With `join`, ids that look alike share one key."""
    return folded(str(canonical_id(private_id))) if join else canonical_id(private_id)


def by_subject(why: str, otherwise: str = "") -> PackingError:
    """Return the error for subjects in an account that protects single records. `otherwise` is another way out."""
    return PackingError(
        f"{why}, but the account protects single records: a person with several images would be protected less than it "
        "seems. Use an account whose unit is the subject, and state the largest number of images (--at-most) and of "
        f"subjects (--subjects-at-most): {OPEN_BY_SUBJECT}. {otherwise}".strip()
    )


def number_subjects(ids: Iterable[SubjectId]) -> dict[int | str, int]:
    """Number the distinct subjects in random order."""
    names = list({canonical_id(private_id) for private_id in ids})
    secrets.SystemRandom().shuffle(names)
    return {name: number for number, name in enumerate(names)}


def keyed_numbers(names: Iterable[int | str], secret: bytes) -> dict[int | str, int]:
    """Return a number per subject: 63 bits of an HMAC, equal in every upload with this secret. It reveals no id."""
    numbers = {name: hmac.new(secret, _LABEL + str(name).encode(), hashlib.sha256).digest() for name in names}
    return {name: int.from_bytes(digest[:_NUMBER_BYTES], "big") >> 1 for name, digest in numbers.items()}


def key_check(secret: bytes, *, join: bool) -> str:
    """Return 64 bits that identify a subjects key together with the join option, and reveal nothing else.

    The service compares the value with the first upload's, because another key would not recognise known subjects.
    """
    label = _CHECK_LABEL + (b"joined" if join else b"")
    return hmac.new(secret, label, hashlib.sha256).hexdigest()[:KEY_CHECK_CHARACTERS]


def _placeholder(private_id: SubjectId) -> PackingError:
    return PackingError(
        f"A subject id is a placeholder, not a person: {str(private_id)[:40]!r}. All images with this id would count "
        "as one person. Write one id for each person, or leave these images out."
    )


def _text(private_id: SubjectId) -> str:
    return private_id.decode("utf-8", "surrogateescape") if isinstance(private_id, bytes) else str(private_id)
