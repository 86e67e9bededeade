"""Whose presence a guarantee hides: the unit, declared when an account is opened."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

Unit = Literal["record", "subject"]
UNITS: tuple[Unit, ...] = ("record", "subject")
UNIT_WORDS: Mapping[str, str] = {"record": "one record", "subject": "all records of one subject"}
