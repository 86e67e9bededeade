"""Releases, samples and evaluations over HTTP: cards, reports, downloads by range, what a cancellation publishes."""

import hashlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from models.portable.dcgan import DcganConfig, DcganGenerator
from models.released import save_released
from obscura.wire.words import DatasetState, ReleaseKind
from service import ledger
from service.db.base import new_id
from service.db.dataset_tables import Dataset
from service.db.job_tables import Job, Release, Sample
from service.db.session import transaction
from service.jobs.kinds.evaluate import samples_for
from service.main import utc_now
from service.storage.interface import digest_directory
from tests.service.api.conftest import problem
from tests.service.steps import charge
from tests.service.test_times import moments

CONTENT = bytes(range(256)) * 8


@pytest.fixture
def release(released) -> str:
    return str(released()[1])


@pytest.fixture
def public(served) -> str:
    return served.public_like_a_training()


def draw(served: Any, release_id: str, *, key: str = "once", status: int = 202, **changes: Any) -> Any:
    body = {"count": 10, "seed": 1, "format": "imagefolder"} | changes
    return served.send(f"releases/{release_id}/samples", body, key=key, scope="train", status=status)


def test_reading_a_release(served, released):
    account, release_id = released()
    release = served.read(f"releases/{release_id}")
    assert (release["account_id"], release["summary"]) == (account["id"], {"accuracy": {"cnn": 0.7}})
    assert "artifact_dir" not in release
    assert served.read("releases")["items"] == [release]
    assert served.read(f"releases/{release_id}/card")["epsilon"] == release["epsilon"] == 1.0


def test_files_of_a_release(served, release):
    kinds = {"report.html": "text/html", "report.json": "application/json", "grid.png": "image/png"}
    for name, kind in kinds.items():
        path = f"/v1/releases/{release}/{name}"
        first = served.client("read").get(path)
        assert first.status_code == 200
        assert first.headers["content-type"].startswith(kind)
        assert first.headers["etag"] == f'"{hashlib.sha256(first.content).hexdigest()}"'
        assert "script-src" not in first.headers["content-security-policy"]
        assert served.client("read").get(path, headers={"If-None-Match": first.headers["etag"]}).status_code == 304


def test_sampling_is_free(served, released):
    account, release_id = released()
    before = served.balance(account["id"])
    body = {"count": 10, "seed": 1, "format": "imagefolder"}
    path = f"/v1/releases/{release_id}/samples"
    answer = served.client("train").post(path, json=body, headers={"Idempotency-Key": "once"})
    sample = answer.json()
    assert (answer.status_code, answer.headers["location"]) == (202, f"/v1/samples/{sample['id']}")
    served.finish_sample(sample, CONTENT, "images.zip")
    assert served.balance(account["id"]) == before
    kinds = [entry["kind"] for entry in served.everything(f"accounts/{account['id']}/entries")]
    assert kinds == ["open", "hold", "arm", "charge", "capture"]


def test_a_pending_sample_says_when_to_ask_again_and_a_cancelled_one_has_no_content(served, release):
    sample = draw(served, release)
    path = f"/v1/samples/{sample['id']}"
    answer = served.client("read").get(f"{path}/content")
    assert (answer.status_code, answer.json()["code"]) == (409, "pending")
    assert int(answer.headers["retry-after"]) > 0
    assert int(served.client("read").get(path).headers["retry-after"]) > 0
    served.send(f"jobs/{sample['job_id']}/cancel", scope="train")
    answer = served.client("read").get(f"{path}/content")
    assert (answer.status_code, answer.json()["code"]) == (409, "job_failed")
    assert "retry-after" not in answer.headers


def test_a_sample_whose_files_were_removed_says_how_to_have_it_again(served, release):
    sample = draw(served, release)
    served.finish_sample(sample, CONTENT, "images.zip")
    served.change(Sample, sample["id"], removed_at=utc_now())
    answer = problem(served.client("read").get(f"/v1/samples/{sample['id']}/content"), 410, "sample_removed")
    assert (answer["release_id"], answer["seed"]) == (release, sample["seed"])
    shown = served.read(f"samples/{sample['id']}")
    assert shown["state"] == "succeeded"
    assert shown["removed_at"] is not None
    assert shown["sha256"] == hashlib.sha256(CONTENT).hexdigest()


def test_a_histogram_shows_its_counts_and_gives_no_images(served, release):
    counts = {"classes": ["cat", "dog"], "counts": [0, 61], "noisy_counts": [-3, 61], "standard_error": 4.5}
    served.change(Release, release, kind=ReleaseKind.HISTOGRAM, summary={"histogram": counts, "seconds": {}})
    record = served.read(f"releases/{release}")
    assert (record["kind"], record["histogram"], record["summary"]) == ("histogram", counts, {"seconds": {}})
    for name in ("grid.png", "report.html", "report.json"):
        assert "shows this release" in served.read(f"releases/{release}/{name}", status=404)["detail"]
    drawn = draw(served, release, status=409)
    assert (drawn["code"], drawn["kind"]) == ("conflict", "histogram")
    assert "not a generator" in drawn["detail"]


def evaluate(served: Any, release_id: str, *, key: str = "once", status: int = 202, **body: Any) -> Any:
    return served.send(f"releases/{release_id}/evaluations", body, key=key, scope="train", status=status)


def test_an_evaluation_is_free_and_the_same_key_asks_once(served, released, public):
    account, release_id = released()
    before = served.balance(account["id"])
    path, headers = f"/v1/releases/{release_id}/evaluations", {"Idempotency-Key": "once"}
    answer = served.client("train").post(path, json={"dataset_id": public}, headers=headers)
    made = answer.json()
    assert (answer.status_code, answer.headers["location"]) == (202, f"/v1/jobs/{made['job_id']}")
    assert (made["state"], made["samples"], made["seed"], made["accuracy"]) == ("queued", 1000, 0, None)
    assert evaluate(served, release_id, dataset_id=public)["id"] == made["id"]
    again = evaluate(served, release_id, dataset_id=public, seed=1, status=422)
    assert again["code"] == "idempotency_mismatch"
    job = served.read(f"jobs/{made['job_id']}")
    assert (job["kind"], job["release_id"], job["evaluation_dataset_id"]) == ("evaluate", release_id, public)
    assert (job["cost_nano"], job["publishes_if_cancelled"]) == (0, None)
    served.finish_evaluation(made, cnn=0.8)
    assert served.balance(account["id"]) == before


@pytest.mark.parametrize(("test_images", "samples"), [(10, 1000), (1000, 3000), (10_000, 30_000), (60_000, 180_000)])
def test_an_evaluation_generates_in_proportion_to_its_test_set(test_images, samples):
    assert samples_for(test_images) == samples


def test_the_newest_evaluation_stands_in_the_summary_and_all_of_them_in_the_report(served, release, public):
    path = f"releases/{release}"
    before = served.read(path)

    def report() -> Any:
        return served.client("read").get(f"/v1/{path}/report.html")

    page = report()
    assert "was not measured" in page.text
    for number, accuracy in enumerate((0.71, 0.82)):
        made = evaluate(served, release, key=str(number), dataset_id=public, seed=number, samples=40)
        served.finish_evaluation(made, cnn=accuracy)
    after = served.read(path)
    assert after["summary"]["accuracy"] == {"cnn": 0.82}
    assert after["artifact_sha256"] == before["artifact_sha256"]
    assert served.read("releases")["items"] == [after]
    listed = served.read(f"{path}/evaluations")["items"]
    found = [(evaluation["seed"], evaluation["accuracy"]["cnn"], evaluation["state"]) for evaluation in listed]
    assert found == [(1, 0.82, "succeeded"), (0, 0.71, "succeeded")]
    joined = report()
    assert joined.headers["etag"] != page.headers["etag"]
    assert "was not measured" not in joined.text
    order = [joined.text.index(part) for part in ("82%", "Earlier evaluations", "71%", 'id="technical"')]
    assert order == sorted(order)
    data = served.read(f"{path}/report.json")
    assert [found["accuracy"]["cnn"] for found in data["evaluations"]] == [0.82, 0.71]
    assert data["evaluations"][0]["confusion"] == [[3, 1], [0, 3]]
    assert data["release"]["name"] == "release"  # what was published is there as it was


def test_a_cancelled_or_failed_evaluation_leaves_the_release_and_can_be_repeated(served, release, public):
    first = evaluate(served, release, dataset_id=public)
    assert served.send(f"jobs/{first['job_id']}/cancel", scope="train")["state"] == "cancelled"
    assert served.read(f"releases/{release}")["summary"] == {"accuracy": {"cnn": 0.7}}
    served.finish_evaluation(evaluate(served, release, key="again", dataset_id=public), cnn=0.9)
    assert served.read(f"releases/{release}")["summary"]["accuracy"] == {"cnn": 0.9}


def test_an_automatic_evaluation_tells_the_moment_of_a_publication_to_the_minute(served, public):
    """It is queued with the publication of its release. Other routes, and entries: tests/service/test_times.py."""
    dataset = served.ready_dataset(served.account()["id"])
    job = served.train(dataset["id"], evaluation_dataset_id=public).json()
    release = served.publish(job["id"], served.claim(job["id"]))
    (evaluation,) = served.everything(f"releases/{release}/evaluations")
    served.finish_evaluation(evaluation, cnn=0.75)
    paths = [f"releases/{release}{part}" for part in ("", "/evaluations", "/report.html", "/report.json")]
    shown = [served.client("read").get(f"/v1/{path}").text for path in [f"jobs/{evaluation['job_id']}", *paths]]
    times = [moment for text in shown for moment in moments(text)]
    assert len(times) > 5
    assert all((moment.second, moment.microsecond) == (0, 0) for moment in times)
    assert re.search(r'"finished_at": ?"\d{4}-', shown[-1])


def test_evaluations_that_cannot_be(served, released, public):
    account, release_id = released()
    for status, code, body in (
        (422, "invalid_input", {"dataset_id": served.ready_dataset(account["id"])["id"]}),
        (422, "invalid_input", {"dataset_id": served.dataset(height=5)["id"]}),
        (409, "conflict", {"dataset_id": served.dataset()["id"]}),
        (404, "not_found", {"dataset_id": "ds_none"}),
        (422, "invalid_input", {"dataset_id": public, "samples": 10**9}),
        (422, "invalid_request", {"dataset_id": public, "samples": 0}),
        (422, "invalid_request", {"dataset_id": public, "seed": -1}),
    ):
        assert evaluate(served, release_id, key=new_id("key"), **body, status=status)["code"] == code, body
    served.change(Dataset, public, state=DatasetState.DELETED)
    evaluate(served, release_id, key="late", dataset_id=public, status=409)


@pytest.mark.parametrize(("kind", "status"), [(ReleaseKind.HISTOGRAM, 409), (ReleaseKind.CLASSIFIER, 202)])
def test_what_kinds_of_releases_can_be_evaluated(served, release, public, kind, status):
    served.change(Release, release, kind=kind)
    evaluate(served, release, dataset_id=public, status=status)
    if kind is ReleaseKind.CLASSIFIER:
        evaluate(served, release, key="more", dataset_id=public, samples=5, status=422)


def running(served: Any, charge_nano: Callable[[dict[str, Any]], int]) -> str:
    """A training that has charged so much of its plan, by its id."""
    account = served.account()
    job_id = str(served.train(served.ready_dataset(account["id"])["id"]).json()["id"])
    attempt = served.claim(job_id)
    with transaction(served.factory) as session:
        job = session.get_one(Job, job_id)
        paying: dict[str, Any] = {"hold_id": job.hold_id, "attempt": attempt, "now": utc_now()}
        ledger.arm(session, **paying)
        if amount_nano := charge_nano(job.plan):
            charge(session, **paying, amount_nano=amount_nano, stage="x")
    return job_id


def start_nano(plan: dict[str, Any]) -> int:
    """The price of one vote, without which there is no generator."""
    (votes,) = plan["stages"]
    return int(votes["cost_nano"] // votes["event"]["count"])


@pytest.mark.parametrize(
    ("charge_nano", "publishes"),
    [(lambda _: 0, False), (lambda plan: start_nano(plan) - 1, False), (start_nano, True)],
    ids=["nothing", "too little", "a start"],
)
def test_a_job_says_before_whether_cancelling_it_publishes_anything(served, charge_nano, publishes):
    job_id = running(served, charge_nano)
    assert served.read(f"jobs/{job_id}")["publishes_if_cancelled"] is publishes

    def cancel(body: dict[str, Any] | None = None, status: int = 200) -> Any:
        return served.send(f"jobs/{job_id}/cancel", body, scope="train", status=status)

    job = cancel()
    assert (job["state"], job["cancel_requested"], job["ended_early"]) == ("running", True, "cancelled")
    assert cancel({})["ended_early"] == "cancelled"
    job = cancel({"discard": True})
    assert (job["state"], job["ended_early"]) == ("running", "discarded")
    cancel({"discard": True, "really": 1}, status=422)


# --- files, and what goes with a generator, made when it is asked for -------------------------------------------------


MADE = ("README.md", "load_generator.py")
CARD = {"epsilon": 1.0, "delta": 1e-5, "unit": "record", "adjacency": "add_remove", "recipe": "dpgan"}


@pytest.fixture
def generator(served, released) -> str:
    """A release whose files hold a real generator and its card, by its id."""
    release_id = str(released()[1])
    folder = served.data_dir / "releases" / release_id
    config = DcganConfig(classes=2, channels=1, height=4, width=4, latent=3, features=4)
    save_released(DcganGenerator(config), folder)
    (folder / "privacy_card.json").write_text("{}\n")
    served.change(Release, release_id, card=CARD, name="pictures | <b> · dpgan")
    return release_id


def fetch(served: Any, release_id: str, name: str, **headers: str) -> Any:
    return served.client("read").get(f"/v1/releases/{release_id}/files/{name}", headers=headers)


def test_what_is_made_is_the_same_every_time_and_leaves_the_release_as_it_is(served, generator):
    folder: Path = served.data_dir / "releases" / generator
    before = digest_directory(folder)
    for name in MADE:
        first, again = fetch(served, generator, name), fetch(served, generator, name)
        assert (first.status_code, first.headers["content-type"]) == (200, "text/plain; charset=utf-8")
        assert first.content == again.content
        assert first.headers["etag"] == f'"{hashlib.sha256(first.content).hexdigest()}"'
        assert fetch(served, generator, name, **{"If-None-Match": first.headers["etag"]}).status_code == 304
    assert digest_directory(folder) == before


def test_the_model_card_states_the_guarantee_and_how_to_draw(served, generator):
    header, body = fetch(served, generator, "README.md").text.removeprefix("---\n").split("\n---\n", 1)
    assert yaml.safe_load(header) == {
        "model_name": "pictures | <b> · dpgan",
        "license": "other",
        "library_name": "pytorch",
        "pipeline_tag": "unconditional-image-generation",
        "tags": ["synthetic", "differential-privacy"],
    }
    assert body.startswith("# pictures \\| \\<b\\> · dpgan\n")
    for said in ("| 1.0 | 1e-05 | record | add_remove |", "DCGAN", "`dpgan`", "4 x 4 pixels, grey, 2 classes"):
        assert said in body
    assert "python load_generator.py --count 100 --out images/" in body
    assert "| 1 | dog |" in body


def test_the_program_is_of_this_releases_network_and_classes(served, generator):
    program = fetch(served, generator, "load_generator.py").text
    assert "class DcganGenerator" in program
    assert "CLASSES = ('cat', 'dog')" in program


@pytest.mark.parametrize("name", MADE)
def test_only_generators_that_are_known_have_these_files(served, generator, name):
    description = served.data_dir / "releases" / generator / "generator.json"
    written = description.read_text()
    description.unlink()
    assert served.read(f"releases/{generator}/files/{name}", status=404)["code"] == "not_found"
    description.write_text(written)
    served.change(Release, generator, kind=ReleaseKind.CLASSIFIER)
    assert "Only generators have" in served.read(f"releases/{generator}/files/{name}", status=404)["detail"]


def test_a_network_of_another_time_has_no_program(served, generator):
    description = served.data_dir / "releases" / generator / "generator.json"
    description.write_text(description.read_text().replace('"dcgan"', '"stylegan"'))
    assert "stylegan" in served.read(f"releases/{generator}/files/load_generator.py", status=404)["detail"]


def test_the_client_saves_all_of_them(served, generator, client, tmp_path):
    saved = client.releases.get(generator).save_weights(tmp_path / "weights")
    names = {"generator.json", "generator.safetensors", "privacy_card.json", "artifact.json", *MADE}
    assert {path.name for path in saved} == {path.name for path in (tmp_path / "weights").iterdir()} == names


def test_a_name_that_is_no_file_is_answered_with_those_that_are(served, generator):
    assert "load_generator.py" in served.read(f"releases/{generator}/files/release.json", status=404)["detail"]
