"""The hammer of joint holds judges by the rows: what is admitted by half, or overspent, is counted."""

from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy import text

from benchmarks.joint_holds import judge, lay_in
from service import jobs
from service.audit.signing import make_signing_key
from service.db.session import SessionFactory, transaction
from service.settings import Settings


@pytest.mark.parametrize(
    ("damage", "wrong"),
    [
        ("", set()),
        ("DELETE FROM holds WHERE account_id != (SELECT account_id FROM jobs)", {"half_admitted", "findings"}),
        ("UPDATE holds SET state = 'armed' WHERE id = (SELECT hold_id FROM jobs)", {"half_admitted", "findings"}),
        ("UPDATE entries SET capacity_nano = 1 WHERE kind = 'hold'", {"overspends", "findings"}),
    ],
)
def test_what_is_wrong_is_counted(factory: SessionFactory, tmp_path: Path, damage: str, wrong: set[str]) -> None:
    settings = Settings(data_dir=tmp_path / "var")
    make_signing_key(settings.ledger_key_path)
    first, *further = lay_in(factory, 3)
    order = {"dataset_id": first, "further_dataset_ids": further, "recipe": "moments", "epsilon": 0.1, "options": {}}
    order |= {"principal": "key_me", "idempotency_key": None, "evaluation_dataset_id": None, "now": datetime.now(UTC)}
    with transaction(factory) as session:
        jobs.submit(session, jobs.KINDS["train"], **order)
    with transaction(factory) as session:
        if session.get_bind().dialect.name == "sqlite":
            session.execute(text("PRAGMA ignore_check_constraints=ON"))
            session.execute(text("DROP TRIGGER entries_no_update"))
        else:
            session.execute(text("ALTER TABLE entries DISABLE TRIGGER USER"))
        session.execute(text(damage or "SELECT 1"))
    found = judge(factory, settings)
    assert (found["jobs"], found["joint"]) == (1, 1)
    assert {name for name in ("overspends", "half_admitted", "findings") if found[name]} == wrong
