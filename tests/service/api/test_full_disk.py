"""The service on a disk that is full: it says so, begins nothing, and goes on showing what is there."""

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from service import disk
from service.settings import Settings
from tests.service.api.conftest import SCOPES, Served, npz, serving
from tests.together import wait_until


@pytest.fixture
def short(settings: Settings) -> Iterator[Served]:
    """A service that wants more room than any disk has."""
    with serving(settings.model_copy(update={"disk_free_bytes_min": 2**60}), *SCOPES) as served:
        yield served


def assert_refused(answer: httpx.Response, data_dir: Path) -> None:
    assert (answer.status_code, answer.json()["code"]) == (507, "out_of_disk")
    assert answer.json()["folder"] == "data"
    assert str(data_dir) not in answer.text


def test_readiness_says_that_a_disk_is_full_and_liveness_does_not(tmp_path, settings, monkeypatch):
    """On a real small file system, which is filled."""
    monkeypatch.setattr(disk, "PROBED_SECONDS", 0.1)
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", place], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("this user may not mount")
    try:
        with serving(settings.model_copy(update={"keys_dir": place, "disk_free_bytes_min": 0}), *SCOPES) as served:

            def ready() -> httpx.Response:
                return served.client(None).get("/v1/health/ready")

            assert ready().status_code == 200
            (place / "filling").write_bytes(bytes(2**17))
            with pytest.raises(OSError, match="No space"):
                (place / "more").write_bytes(bytes(2**18))
            wait_until(lambda: ready().status_code == 503, "it is ready still")
            answer = ready()
            assert "keys folder" in answer.json()["detail"]
            assert str(place) not in answer.text
            assert served.client(None).get("/v1/health/live").status_code == 200
            (place / "filling").unlink()
            (place / "more").unlink()
            wait_until(lambda: ready().status_code == 200, "it is not ready again")
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)


def test_an_upload_is_refused_before_it_is_read(short):
    dataset = short.dataset()
    path = f"/v1/datasets/{dataset['id']}/content?format=npz"
    assert_refused(short.client("data").put(path, content=npz(20)), short.data_dir)
    assert short.read(f"datasets/{dataset['id']}")["state"] == "declared"
    assert short.client(None).get("/v1/health/ready").status_code == 503


def test_a_job_is_refused_before_anything_is_held(short):
    account = short.account()
    dataset = short.ready_dataset(account["id"])
    assert_refused(short.train(dataset["id"]), short.data_dir)
    assert short.read(f"accounts/{account['id']}")["balance"]["held_nano"] == 0
    assert short.read("jobs")["items"] == []


FREE: dict[str, dict[str, Any]] = {
    "releases/rel_aaaaaaaaaaaaaaaaaaaa/samples": {"count": 1, "seed": 1, "format": "npz"},
    "releases/rel_aaaaaaaaaaaaaaaaaaaa/evaluations": {"dataset_id": "ds_aaaaaaaaaaaaaaaaaaaa"},
    "previews": {"dataset_id": "ds_aaaaaaaaaaaaaaaaaaaa", "recipe": "datalens", "epsilon": 1.0, "options": {}},
    "sweeps": {
        "dataset_id": "ds_aaaaaaaaaaaaaaaaaaaa", "recipe": "datalens", "epsilon": 1.0, "name": "s", "trials": [{}, {}],
    },
}  # fmt: skip


@pytest.mark.parametrize("path", FREE)
def test_so_is_what_costs_nothing(short, path):
    answer = short.client("train").post(f"/v1/{path}", json=FREE[path], headers={"Idempotency-Key": "k"})
    assert_refused(answer, short.data_dir)
