"""What a service says after a restore: which trainings are refused and why, and which datasets nothing can open."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime

from sqlalchemy.orm import Session

from service.datasets import states, vault
from service.db.ledger_tables import EVERYWHERE, ArmingStop
from tests.service.api.conftest import SMALL, Served, npz, problem


@contextmanager
def stopped(served: Served, code: str, now: datetime) -> Iterator[None]:
    """Stop everything because of a finding, until the end of a block."""
    served.do(Session.add, ArmingStop(scope=EVERYWHERE, code=code, found_at=now))
    yield
    served.do(lambda session: session.delete(session.get_one(ArmingStop, EVERYWHERE)))


def test_a_training_is_refused_with_the_reason_while_trainings_are_stopped(served, dataset, now):
    path = f"accounts/{dataset['account_id']}"
    before = served.read(path)["balance"]
    with stopped(served, "trigger_missing", now):
        refused = problem(served.train(dataset["id"]), 409, "arming_stopped")
        assert "`trigger_missing`" in refused["detail"]
        assert "verify --clear" in refused["detail"]
        trials = [{"epsilon": 0.1, "options": SMALL}] * 2
        search = {"dataset_id": dataset["id"], "recipe": "datalens", "name": "s", "trials": trials}
        assert served.send("sweeps", search, key="k", status=409)["code"] == "arming_stopped"
    assert served.read(path)["balance"] == before
    assert served.read("jobs")["items"] == []
    assert served.train(dataset["id"]).status_code == 202


def test_a_locked_installation_lets_admins_read_and_nobody_else_do_anything(served, dataset, now):
    admin, reader = served.client("admin"), served.client("read")
    with stopped(served, "journal_ahead", now):
        assert admin.get("/v1/accounts").status_code == 200
        assert admin.get("/v1/ledger").status_code == 200
        refused = [
            reader.get("/v1/accounts"),
            admin.delete(f"/v1/datasets/{dataset['id']}"),
            admin.post("/v1/accounts", json={}),
            served.train(dataset["id"]),
            served.upload(dataset["id"], npz(10)),
        ]
        for answer in refused:
            assert (answer.status_code, answer.json()["code"]) == (503, "installation_locked")
            assert "obscura ledger accept ACCOUNT" in answer.json()["detail"]
    assert reader.get("/v1/accounts").status_code == 200
    assert served.train(dataset["id"]).status_code == 202


def test_a_dataset_whose_key_is_gone_is_not_shown_as_ready_and_refuses_jobs(served, settings):
    dataset_id = served.dataset(account_id=served.account()["id"], visibility="private")["id"]
    assert served.upload(dataset_id, npz(10)).status_code == 200
    path = vault.Vault.of(settings).key_path(dataset_id)
    key = path.read_bytes()

    def checked() -> dict[str, object]:
        served.do(states.check_keys, settings)
        return dict(served.read(f"datasets/{dataset_id}"))

    assert checked()["state"] == "ready"
    path.unlink()
    shown = checked()
    assert (shown["state"], shown["failure_code"]) == ("failed", "key_missing")
    refused = served.train(dataset_id)
    assert refused.status_code == 409
    assert "key of its images is missing" in refused.json()["detail"]
    path.write_bytes(key)
    path.chmod(0o600)
    shown = checked()
    assert (shown["state"], shown["failure_code"]) == ("ready", None)
    assert served.train(dataset_id).status_code == 202
