"""Accounts, holds and entries as the ledger hands them out: plain values that no session watches or writes back."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from service.db.words import Adjacency, EntryKind, FilterName, HoldState, Unit


@dataclass(slots=True)
class Account:
    """A row of `accounts`; the fields are its columns, in their order."""

    id: str
    name: str
    owner: str
    epsilon: float
    delta: float
    unit: Unit
    adjacency: Adjacency
    filter: FilterName
    filter_order: float | None
    capacity_nano: int
    spent_nano: int
    held_nano: int
    frozen: bool
    head_sequence: int
    head_hash: str
    created_at: datetime


@dataclass(slots=True)
class Entry:
    """A row of `entries`; the fields are its columns, in their order."""

    account_id: str
    sequence: int
    kind: EntryKind
    hold_id: str | None
    job_id: str | None
    amount_nano: int
    capacity_nano: int
    spent_nano: int
    held_nano: int
    details: dict[str, Any]
    previous_hash: str
    hash: str
    created_at: datetime


@dataclass(slots=True)
class Hold:
    """A row of `holds`; the fields are its columns, in their order."""

    id: str
    account_id: str
    job_id: str
    state: HoldState
    amount_nano: int
    charged_nano: int
    captured_nano: int
    attempt: int
    armed_attempt: int
    last_sequence: int
    created_at: datetime
    updated_at: datetime
