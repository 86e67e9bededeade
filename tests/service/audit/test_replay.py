"""The replay has rules for every kind of entry, and computes the same hash as the writer."""

import pytest

from obscura.wire.words import EntryKind
from service.audit.findings import Fault, FindingCode
from service.audit.replay import Line, LogReplay, Prices
from service.db.ledger_tables import Entry
from service.ledger.chain import GENESIS_HASH, canonical_json, entry_hash, utc_text
from service.wording import ENTRIES

REFUSED = {FindingCode.TRANSITION_REFUSED, FindingCode.AMOUNT_MISMATCH, FindingCode.ENTRY_MALFORMED}


@pytest.mark.parametrize("kind", EntryKind)
def test_every_kind_of_entry_is_hashed_alike_has_rules_and_a_name(kind, now):
    balances = {"capacity_nano": 9, "spent_nano": 0, "reserved_nano": 0}
    entry = Entry(
        account_id="acc_" + "a" * 20,
        sequence=2,
        kind=kind,
        hold_id=None,
        job_id=None,
        amount_nano=1,
        details={},
        previous_hash=GENESIS_HASH,
        created_at=now,
        **balances,
    )
    entry.hash = entry_hash(entry)
    as_stored = {name: getattr(entry, name) for name in Line._fields if name not in ("created_at", "text")}
    line = Line(**as_stored, created_at=utc_text(now), text=canonical_json(entry.details).decode())
    with pytest.raises(Fault) as fault:  # it says too little, whatever it is; that its hash is wrong is not said
        LogReplay(entry.account_id, Prices(), sequence=1, **balances).apply(line)
    assert fault.value.code in REFUSED
    assert kind in ENTRIES
