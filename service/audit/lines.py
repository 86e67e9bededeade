"""One entry of a log as it is stored, and the hash that it demands. Pure."""

from __future__ import annotations

import hashlib
from json.encoder import encode_basestring_ascii as _quote
from typing import Any, NamedTuple

from service.audit.findings import Fault, FindingCode
from service.ledger.chain import CHAIN_VERSION


class Line(NamedTuple):
    """An entry as it is stored; `created_at` in the form that is hashed, `text` is what `details` was read from."""

    sequence: int
    kind: str
    hold_id: str | None
    job_id: str | None
    amount_nano: int
    capacity_nano: int
    spent_nano: int
    held_nano: int
    details: dict[str, Any]
    previous_hash: str
    hash: str
    created_at: str
    text: str


def check_hash(account_id: str, line: Line) -> None:
    """Assert that an entry's hash covers its contents, down to the spelling of its details.

    Raises:
        Fault: it does not.
    """
    if hashlib.sha256(_body(account_id, line).encode()).hexdigest() == line.hash:
        return
    raise Fault(FindingCode.HASH_MISMATCH, "does not match its hash: it was changed after it was written")


def _body(account_id: str, line: Line) -> str:
    """Return the canonical JSON of `chain.entry_body`, with the details as they are stored: canonical already.

    Nothing is parsed and written again, so no byte can change unseen, and most of the time of a verification is saved.
    """
    return (
        f'{{"account_id":{_quote(account_id)},"amount_nano":{line.amount_nano},"capacity_nano":{line.capacity_nano},'
        f'"created_at":{_quote(line.created_at)},"details":{line.text},"held_nano":{line.held_nano},'
        f'"hold_id":{_text(line.hold_id)},"job_id":{_text(line.job_id)},"kind":{_text(line.kind)},'
        f'"previous_hash":{_text(line.previous_hash)},"sequence":{line.sequence},"spent_nano":{line.spent_nano},'
        f'"version":{CHAIN_VERSION}}}'
    )


def _text(value: str | None) -> str:
    return "null" if value is None else _quote(str(value))


def require(condition: bool, code: FindingCode, message: str) -> None:
    """Let a condition pass that holds.

    Raises:
        Fault: it does not hold.
    """
    if not condition:
        raise Fault(code, message)


def whole(value: Any) -> int:
    """Return a whole number.

    Raises:
        TypeError: the value is none.
    """
    if type(value) is not int:
        raise TypeError
    return value


def truth(value: Any) -> bool:
    """Return a truth value.

    Raises:
        TypeError: the value is none.
    """
    if type(value) is not bool:
        raise TypeError
    return value
