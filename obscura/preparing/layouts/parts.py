"""What layouts that come in parts (train, test, ...) have in common."""

from __future__ import annotations

from collections.abc import Sequence

from obscura.preparing.errors import PackingError

PARTS = ("train", "training", "test", "testing", "validation", "valid", "val", "dev")  # as they are called


def choose_part(name: str, parts: Sequence[str], wanted: str | None) -> str:
    """Return the part to take: the one that was asked for, else the only one, else train.

    Raises:
        PackingError: No part has that name, or several stand there of which none is called train.
    """
    chosen = wanted or (parts[0] if len(parts) == 1 else "train")
    if chosen not in parts:
        listed = ", ".join(sorted(parts))
        raise PackingError(f"{name} has {listed}: choose one with --split." if parts else f"{name} is incomplete.")
    return chosen


def title_of(name: str, parts: Sequence[str], chosen: str) -> str:
    """Say what was recognised and which part of it is taken."""
    others = " and ".join(sorted(part for part in parts if part != chosen))
    return f"{name}, {chosen}" + (f" (not {others}; --split chooses)" if others else "")
