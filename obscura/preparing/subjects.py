"""Whose each picture is. The ids that their owner knows stay here; numbers in random order leave."""

from __future__ import annotations

import secrets
from collections.abc import Iterable

from obscura.preparing.errors import PackingError
from obscura.wire.faults import Refused
from obscura.wire.subjects import SubjectId, canonical


def canonical_id(private_id: SubjectId) -> int | str:
    """Return what decides whether two ids name the same subject.

    Raises:
        PackingError: The id stands for nobody.
    """
    try:
        return canonical(private_id)
    except Refused:
        raise PackingError("A subject id is no id: it is empty, negative, or a word such as 'nan'.") from None


def number_subjects(ids: Iterable[SubjectId]) -> dict[int | str, int]:
    """Number the distinct subjects in random order.

    Raises:
        PackingError: An id stands for nobody.
    """
    names = list({canonical_id(private_id) for private_id in ids})
    secrets.SystemRandom().shuffle(names)
    return {name: number for number, name in enumerate(names)}
