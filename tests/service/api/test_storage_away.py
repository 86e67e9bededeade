"""Requests that need a storage that does not answer."""

from service.storage import BACKENDS
from tests.service.api.conftest import SCOPES, serving
from tests.service.storage.toy_storage import Fickle


def test_a_request_is_answered_without_the_particulars(settings, monkeypatch):
    monkeypatch.setattr(Fickle, "away", False)
    monkeypatch.setitem(BACKENDS, "fickle", Fickle)
    with serving(settings.model_copy(update={"storage": "fickle"}), *SCOPES) as served:
        dataset = served.dataset()
        monkeypatch.setattr(Fickle, "away", True)
        answer = served.client("data").delete(f"/v1/datasets/{dataset['id']}")
        monkeypatch.setattr(Fickle, "away", False)
        assert (answer.status_code, answer.json()["code"]) == (503, "storage_unavailable")
        assert "Retry-After" in answer.headers
        assert "secret-bucket" not in answer.text
