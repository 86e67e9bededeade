"""Names in requests: what cannot be read is refused with the rule."""

import pytest

from obscura.wire.names import RULE
from tests.obscura.wire.test_names import REFUSED
from tests.service.api.conftest import ACCOUNT, DATASET, SMALL

# What a body may carry through JSON, one of each kind.
SENT = ["blank", "turns around", "zero width", "C1", "Hangul filler", "line separator"]


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


def test_names_are_stored_in_form_c(served):
    account = served.send("accounts", {**ACCOUNT, "name": "  Ko\u0308ln\u00a0患者 "}, status=201)
    assert account["name"] == "Köln 患者"
    served.send("accounts", {**ACCOUNT, "name": "Köln 患者"}, status=409)
    made = served.send("datasets", {**DATASET, "classes": ["cafe\u0301", "boot"]}, status=201)
    assert made["classes"] == ["café", "boot"]
