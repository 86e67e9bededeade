"""Names in requests: what cannot be read is refused with the rule, and what has such a name already is still served."""

import pytest

from obscura.wire.names import RULE
from service.db.dataset_tables import Dataset
from service.db.session import transaction
from tests.obscura.wire.test_names import REFUSED
from tests.service.api.conftest import ACCOUNT, DATASET, SMALL

# What a body may carry through JSON, one of each kind.
SENT = ["blank", "turns around", "zero width", "C1", "no-break space", "Hangul filler", "line separator"]


@pytest.mark.parametrize("kind", SENT)
def test_no_request_names_anything_so(served, kind):
    bad = REFUSED[kind]
    account = served.account()["id"]
    private = served.ready_dataset(account)["id"]
    trial = {"epsilon": 0.1, "options": SMALL}
    search = {"dataset_id": private, "recipe": "datalens", "trials": [trial, trial]}
    for path, body in (
        ("accounts", {**ACCOUNT, "name": bad}),
        ("accounts", {**ACCOUNT, "name": "people", "owner": bad}),
        ("datasets", {**DATASET, "name": bad}),
        ("datasets", {**DATASET, "classes": ["cat", bad]}),
        ("keys", {"name": bad, "scopes": ["read"]}),
        ("sweeps", {**search, "name": bad}),
        ("admins", {"name": bad, "reason": "more people", "introduction": f"key_{'a' * 20}:{'0' * 64}"}),
    ):
        refused = served.send(path, body, key="k", status=422)
        assert [RULE in fault["message"] for fault in refused["errors"]] == [True], path


def test_two_classes_are_not_one_name_in_two_spellings(served):
    refused = served.send("datasets", {**DATASET, "classes": ["café", "cafe\u0301"]}, status=422)
    assert "distinct" in refused["detail"]


def test_what_has_such_a_name_already_is_still_served(served, released):
    """From before the rule: it is listed, and its classes can be drawn by their names."""
    _account, release_id = released()
    old = f"{REFUSED['turns around']} "
    with transaction(served.factory) as session:
        release = served.read(f"releases/{release_id}")
        dataset = session.get_one(Dataset, release["dataset_id"])
        dataset.name, dataset.classes = old, [old, "dog"]
    shown = served.read(f"datasets/{release['dataset_id']}")
    assert (shown["name"], shown["classes"][0]) == (old, old)
    body = {"count": 2, "seed": 1, "format": "npz", "classes": [old]}
    sample = served.send(f"releases/{release_id}/samples", body, key="k", status=202)
    assert sample["classes"] == [old]
