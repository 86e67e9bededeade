"""Whose each picture is. The ids that their owner knows stay here; numbers in random order leave."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable

from obscura.preparing.errors import ChoiceNeeded, PackingError, some
from obscura.preparing.questions import folded, look_alike
from obscura.wire.faults import Refused
from obscura.wire.subjects import KEY_CHECK_CHARACTERS, SubjectId, canonical, is_nobody

_CHECK_LABEL = b"obscura check of a subjects key 1\0"
_LABEL, _NUMBER_BYTES = b"obscura subject of an owner 1\0", 8
OPEN_BY_SUBJECT = "obscura accounts create NAME --unit subject --epsilon E --delta D"


def canonical_id(private_id: SubjectId) -> int | str:
    """Return what decides whether two ids name the same subject.

    Raises:
        PackingError: The id stands for nobody.
    """
    try:
        return canonical(private_id)
    except Refused:
        raise _stands_for_nobody(private_id) from None


def require_told_apart(ids: Iterable[SubjectId]) -> None:
    """Let ids pass of which no two look like one person's, and none beside the others like nobody's.

    Raises:
        ChoiceNeeded: Some differ in nothing but case, marks, spaces, zeros or how characters are stored.
        PackingError: One is 00000000 or unknown01 among others that are not.
    """
    texts = sorted({_text(private_id) for private_id in ids})
    numbered = [text for text in texts if (word := re.match(r"\D*[^\W\d]\D*", text)) and is_nobody(word[0])]
    blank = [text for text in texts if re.fullmatch(r"0{4,}|9{4,}", text) and not _counts_on(text, texts)]
    for text in (*blank, *(numbered if 2 * len(numbered) < len(texts) else ())):
        raise _stands_for_nobody(text)
    for group in look_alike(texts):
        shown = some([repr(name) for name in group], len(group))
        raise ChoiceNeeded(
            f"These subject ids may name one person: {shown}. As two subjects, a person would be protected less than "
            "the account promises. Write each id in one way; or have such ids joined, which protects too much "
            "rather than too little.",
            ["--join-subjects"],
        )


def subject_key(private_id: SubjectId, *, join: bool) -> int | str:
    """Return what decides whether two ids name one subject here: with `join` also where they only look like one.

    Raises:
        PackingError: The id stands for nobody.
    """
    return folded(str(canonical_id(private_id))) if join else canonical_id(private_id)


def refuse_owned(what: str) -> None:
    """Refuse files that tell whose each picture is, for an account that protects single records.

    Args:
        what: that tells it: "The column 'subject' of labels.csv".

    Raises:
        PackingError: Always.
    """
    raise PackingError(
        f"{what} says whose each picture is, and the account protects single records: somebody with several pictures "
        "would be protected less than it seems. Use an account whose unit is the subject and state how many there are "
        f"(--subjects-at-most): {OPEN_BY_SUBJECT}"
    )


def number_subjects(ids: Iterable[SubjectId]) -> dict[int | str, int]:
    """Number the distinct subjects in random order.

    Raises:
        PackingError: An id stands for nobody.
    """
    names = list({canonical_id(private_id) for private_id in ids})
    secrets.SystemRandom().shuffle(names)
    return {name: number for number, name in enumerate(names)}


def keyed_numbers(names: Iterable[int | str], secret: bytes) -> dict[int | str, int]:
    """Number subjects as in every other upload under this secret: 63 bits that tell nobody else an id."""
    numbers = {name: hmac.new(secret, _LABEL + str(name).encode(), hashlib.sha256).digest() for name in names}
    return {name: int.from_bytes(digest[:_NUMBER_BYTES], "big") >> 1 for name, digest in numbers.items()}


def key_check(secret: bytes, *, join: bool) -> str:
    """Return a check value of a subjects key, and of whether ids are joined: 64 bits that reveal nothing else of it.

    The service compares it with that of the first upload, since under another key no subject would be found.
    """
    label = _CHECK_LABEL + (b"joined" if join else b"")
    return hmac.new(secret, label, hashlib.sha256).hexdigest()[:KEY_CHECK_CHARACTERS]


def _stands_for_nobody(private_id: SubjectId) -> PackingError:
    return PackingError(
        f"A subject id stands for nobody: {str(private_id)[:40]!r}. All pictures that have it would count as those of "
        "one person. Write whose each is, one id for each person, or leave those pictures out."
    )


def _counts_on(number: str, texts: list[str]) -> bool:
    """Whether the number before or after this one is an id, too: 00000000 is the first of those that count from 0."""
    return any(str(int(number) + step).zfill(len(number)) in texts for step in (-1, 1))


def _text(private_id: SubjectId) -> str:
    return private_id.decode("utf-8", "surrogateescape") if isinstance(private_id, bytes) else str(private_id)
