"""A bound on the number of records for owners who state none: counted with noise, and paid for."""

from __future__ import annotations

import secrets

from obscura.client import Client
from privacy.mechanisms.noise import KEY_BYTES, SecureNoise
from privacy.mechanisms.record_count import propose_bound

DELTA = 1e-6  # Of an account that is opened before anything is known of its records: good up to 100,000 of them


def counted_bound(client: Client, account_id: str, private_records: int) -> int:
    """Return an upper bound that may be declared. Each call costs the account a little, and draws anew.

    Raises:
        BudgetError: The account cannot pay; nothing was drawn.
        RequestError: The account is frozen, or protects subjects; nothing was drawn.
    """
    paid = client.pay_for_count(account_id)  # in the ledger for good, before any noise exists
    return propose_bound(private_records, paid.noise_stddev, SecureNoise(secrets.token_bytes(KEY_BYTES)))
