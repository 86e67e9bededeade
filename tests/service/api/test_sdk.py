"""The Python client against the real service: typed errors, safe retries, resuming streams and downloads."""

import hashlib
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import numpy as np
import pytest
from rich.console import Console

from obscura.client import (
    AlreadyTrained,
    AuthError,
    BrokenImages,
    BudgetError,
    Client,
    ConnectionFailed,
    DownloadCorrupt,
    JobFailed,
    JoinedAccount,
    NoSuchName,
    NotFoundError,
    PackingError,
    RequestError,
    WaitTimeout,
)
from obscura.client.one_step import begin, push_for
from obscura.client.transport import Transport
from obscura.wire.job_schemas import EventRecord
from service.api.events import StreamLimits
from tests.obscura.preparing.conftest import colours, motley  # noqa: F401  fixtures
from tests.pictures import saved
from tests.service.api.conftest import SMALL, npz

ASKED = {"recipe": "datalens", "options": SMALL}
PEOPLE = {"name": "p", "owner": "o", "delta": 1e-5, "unit": "record"}
CONTENT = bytes(range(256)) * 4096  # four chunks


@pytest.fixture(scope="module")
def limits() -> dict[str, Any]:
    """Streams that end often, so that clients must come back."""
    return {"stream_limits": StreamLimits(seconds_max=0.2, poll_seconds=0.02, heartbeat_seconds=0.1)}


class Broken(httpx.HTTPTransport):
    """A network that loses the first answers after the service has acted on the requests."""

    def __init__(self, lost: int, *, after_bytes: int | None = None) -> None:
        super().__init__()
        self.lost, self.after_bytes = lost, after_bytes
        self.requests: list[httpx.Request] = []

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        response = super().handle_request(request)
        if self.lost == 0:
            return response
        self.lost -= 1
        if self.after_bytes is None:
            response.close()
            raise httpx.ReadError("the answer was lost", request=request)
        stream = _Torn(response, self.after_bytes)
        return httpx.Response(response.status_code, headers=response.headers, stream=stream)


class _Torn(httpx.SyncByteStream):
    def __init__(self, response: httpx.Response, after_bytes: int) -> None:
        self._response, self._left = response, after_bytes

    def __iter__(self) -> Iterator[bytes]:
        for chunk in self._response.stream:  # type: ignore[union-attr]
            yield chunk[: self._left]
            self._left -= len(chunk)
            if self._left <= 0:
                raise httpx.ReadError("the connection broke")

    def close(self) -> None:
        self._response.close()


def through(served: Any, network: Broken) -> Client:
    headers = {"Authorization": f"Bearer {served.tokens['admin']}"}
    http = httpx.Client(base_url=served.url, headers=headers, transport=network)
    return Client(served.url, None, transport=Transport(served.url, None, http=http, sleep=lambda _: None))


def test_the_whole_vocabulary(served, client):
    account = client.accounts.create(**PEOPLE, epsilon=2)
    assert client.accounts.get(account.id) == account
    assert [found.id for found in client.accounts.list()] == [account.id]
    dataset = client.datasets.create(
        name="d", visibility="private", account_id=account.id, classes=["a", "b"], height=4, width=4, channels=1,
        records_declared=100,
    )  # fmt: skip
    body = npz(20)
    assert dataset.push([body[:100], body[100:]], format="npz").state == "ready"
    assert client.datasets.get(dataset.id).state == "ready"
    plan = client.plan(dataset.id, **ASKED, epsilon=1)
    job = client.jobs.create(dataset.id, **ASKED, epsilon=1)
    assert job.cost_nano == plan.cost_nano
    assert not job.finished
    release_id = served.publish(job.id, served.claim(job.id))
    release = job.refresh().release()
    assert release.id == release_id
    assert (release.card()["epsilon"], release.epsilon, release.recipe) == (1.0, 1.0, "datalens")
    assert [entry.kind for entry in account.entries()] == ["open", "hold", "arm", "charge", "capture"]
    assert [found.id for found in client.releases.list()] == [release_id]
    assert [found.id for found in client.jobs.list()] == [job.id]
    key = client.keys.create(name="k", scopes=["read"])
    assert client.keys.revoke(key.id).revoked_at is not None
    assert client.ready()


def test_lists_go_through_all_pages(served, client):
    made = [served.account(name=f"a{number}")["id"] for number in range(12)]  # a page holds five
    assert [account.id for account in client.accounts.list()] == made


def test_errors_have_types_and_numbers(served, client, dataset):
    with pytest.raises(BudgetError) as budget:
        client.jobs.create(dataset["id"], **ASKED, epsilon=5)
    assert budget.value.numbers["requested_epsilon"] == 5
    assert budget.value.numbers["affordable_epsilon"] == 2
    with pytest.raises(NotFoundError):
        client.jobs.get("job_nothing")
    with pytest.raises(RequestError) as invalid:
        client.jobs.create(dataset["id"], **ASKED, epsilon=-1)
    assert invalid.value.errors[0].pointer == "/body/epsilon"
    for token in (None, "nonsense", served.tokens["data"]):
        with Client(served.url, token) as stranger, pytest.raises(AuthError):
            stranger.jobs.list()


def test_something_else_at_the_address(served):
    with Client(served.url + "/v1", served.tokens["admin"]) as client, pytest.raises(NotFoundError):
        client.jobs.get("x")


def test_a_lost_answer_starts_nothing_twice(served, dataset):
    network = Broken(lost=2)
    with through(served, network) as client:
        job = client.jobs.create(dataset["id"], **ASKED, epsilon=0.5)
    keys = [request.headers["Idempotency-Key"] for request in network.requests]
    assert keys == [keys[0]] * 3
    assert [found["id"] for found in served.read("jobs")["items"]] == [job.id]


def test_what_may_not_be_repeated_is_not(served):
    network = Broken(lost=1)
    with through(served, network) as client, pytest.raises(ConnectionFailed):
        client.accounts.create(**PEOPLE, epsilon=1)
    assert len(network.requests) == 1


def test_waiting_goes_on_over_many_short_streams(served, client, dataset):
    """Each step is reported once the one before it was heard: streams tell the newest state, not every one."""
    job = client.jobs.create(dataset["id"], **ASKED, epsilon=0.5)
    told = [threading.Event() for _ in range(4)]

    def work() -> None:
        attempt = served.claim(job.id)
        for step, heard_of in enumerate(told):
            served.progress(job.id, attempt, stage="votes", step=step, steps=4)
            heard_of.wait(60)
            time.sleep(0.2)  # longer than a stream of this service, so that the next step comes over another
        served.publish(job.id, attempt)

    heard: list[tuple[str, int | None]] = []

    def listen(event: EventRecord) -> None:
        heard.append((event.state, event.progress.step))
        if event.progress.step is not None:
            told[event.progress.step].set()

    worker = threading.Thread(target=work)
    worker.start()
    done = job.wait(listen)
    worker.join()
    assert done.state == "succeeded"
    assert [step for state, step in heard if state == "running" and step is not None][:4] == [0, 1, 2, 3]
    assert heard[-1][0] == "succeeded"
    assert len(heard) == len(set(heard))


def test_waiting_for_a_job_that_does_not_succeed(client, dataset):
    job = client.jobs.create(dataset["id"], **ASKED, epsilon=0.5)
    with pytest.raises(WaitTimeout):
        job.wait(timeout_seconds=0.0)
    job.cancel()
    assert job.cancel_requested, "a method that changes the job updates the record"
    with pytest.raises(JobFailed) as failed:
        job.wait()
    assert (failed.value.state, failed.value.code, job.state) == ("cancelled", "cancelled", "cancelled")


@pytest.fixture
def sample_id(served: Any, released: Callable[[], tuple[dict[str, Any], str]], client: Client) -> str:
    _, release_id = released()
    drawn = client.releases.get(release_id).sample(count=10, seed=1)
    served.finish_sample(drawn.model_dump(), CONTENT, "images.zip")
    return drawn.id


def test_downloading(client, sample_id, tmp_path):
    seen: list[tuple[int, int]] = []
    path = client.samples.get(sample_id).download(tmp_path / "deep" / "images.zip", lambda *done: seen.append(done))
    assert path.read_bytes() == CONTENT
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert list(path.parent.iterdir()) == [path]


def test_a_download_waits_for_the_images(served, released, client, tmp_path):
    drawn = client.releases.get(released()[1]).sample(count=10, seed=1)

    def finish(_seconds: float) -> None:
        if not client.samples.get(drawn.id).sha256:
            served.finish_sample(drawn.model_dump(), CONTENT, "images.zip")

    client.transport.sleep = finish  # between two streams of events
    assert drawn.download(tmp_path / "images.zip").read_bytes() == CONTENT
    assert drawn.state == "succeeded"


def test_a_broken_download_goes_on_where_it_stopped(served, sample_id, tmp_path):
    network = Broken(lost=0, after_bytes=300_000)
    with through(served, network) as client:
        sample = client.samples.get(sample_id)
        network.lost = 2
        network.requests.clear()
        assert sample.download(tmp_path / "images.zip").read_bytes() == CONTENT
    ranges = [request.headers.get("Range") for request in network.requests]
    assert ranges == [None, "bytes=300000-", "bytes=600000-"]


def test_a_download_with_the_wrong_digest_is_not_kept(client, sample_id, tmp_path):
    part = tmp_path / "images.zip.part"
    part.write_bytes(b"x" * 1000)  # of something else
    with pytest.raises(DownloadCorrupt):
        client.samples.get(sample_id).download(tmp_path / "images.zip")
    assert list(tmp_path.glob("images*")) == []
    part.write_bytes(b"x" * (len(CONTENT) + 1))  # longer than the content: started again
    path = client.samples.get(sample_id).download(tmp_path / "images.zip")
    assert hashlib.sha256(path.read_bytes()).digest() == hashlib.sha256(CONTENT).digest()


def test_a_folder_goes_in_as_it_is_and_is_declared_as_stated(served, client, motley, tmp_path, monkeypatch):  # noqa: F811
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    account_id = served.account()["id"]
    before = sorted(motley.rglob("*"))
    said: list[str] = []
    dataset = client.datasets.push(motley, account_id=account_id, at_most=2000, say=said.append)
    assert (dataset.state, dataset.name, dataset.visibility) == ("ready", "motley", "private")
    assert (dataset.height, dataset.width, dataset.channels, dataset.classes) == (32, 32, 3, ["cat", "dog"])
    assert said[0].startswith("13 images: 2 cropped to 32 x 32, 11 scaled to 32 x 32, 1 put on a white background, ")
    assert said[1] == 'Stays here: images by class: "cat" 7, "dog" 6.'
    assert said[-1].startswith('Declaring, and thereby making public: classes "cat", "dog";')
    assert said[-1].endswith("at most 2000 records, each protected by itself.")
    assert [found.id for found in client.datasets.list()] == [dataset.id]
    assert sorted(motley.rglob("*")) == before
    assert list(scratch.iterdir()) == []


@pytest.mark.parametrize("size", ["8", "128", "8x128", "37x61"])
def test_sizes_of_any_aspect(served, client, motley, size):  # noqa: F811
    dataset = client.datasets.push(motley, public=True, size=size, grey=True)
    width, _, height = size.partition("x")
    assert (dataset.state, dataset.width, dataset.height) == ("ready", int(width), int(height or width))
    assert (dataset.channels, dataset.records_declared) == (1, 13)


def test_broken_images_are_named_to_their_owner_and_to_nobody_else(served, client, motley):  # noqa: F811
    (motley / "dog" / "CANARY.jpg").write_bytes((motley / "cat" / "wide.jpeg").read_bytes()[:300])
    with pytest.raises(BrokenImages, match=r"dog/CANARY\.jpg") as error:
        client.datasets.push(motley, public=True)
    assert (error.value.count, error.value.flags) == (1, ("--skip-broken",))
    assert client.datasets.push(motley, public=True, skip_broken=True).state == "ready"
    stored = [file.read_bytes() for file in served.data_dir.rglob("*") if file.is_file()]
    assert not any(b"CANARY" in content for content in stored)


def test_private_or_public_and_not_both(served, client, motley):  # noqa: F811
    for whose in ({}, {"account_id": served.account()["id"], "public": True}):
        with pytest.raises(PackingError, match="not both"):
            client.datasets.push(motley, **whose)
    with pytest.raises(PackingError, match="unit is the subject"):
        client.datasets.push(motley, public=True, subjects_at_most=3)


def test_a_dataset_is_named_by_itself_its_name_or_its_id(client, released):
    release = client.releases.get(released()[1])
    mine = client.datasets.get(release.dataset_id)
    for which in (mine, mine.name, mine.id):
        assert client.plan(which, epsilon=0.1).dataset_id == mine.id
        assert client.preview(which, epsilon=0.1).dataset_id == mine.id
        assert client.jobs.create(which, **ASKED, epsilon=0.1).dataset_id == mine.id
        trials = [{"epsilon": 0.1}, {"epsilon": 0.2}]
        assert client.sweeps.create(which, name="s", trials=trials).dataset_id == mine.id
        with pytest.raises(RequestError, match="public"):
            release.evaluate(which)
    with pytest.raises(NoSuchName, match="no dataset 'other'"):
        client.plan("other", epsilon=0.1)


# --- train ------------------------------------------------------------------------------------------------------------

TERMS = {"at_most": 2000, "skip_broken": True}
QUIET = Console(quiet=True)


@pytest.mark.parametrize(
    "order", [{"recipe": "momants"}, {"options": {"shine": 1}}, {"epsilon": 1e-4}, {"epsilon": 2000.0}]
)
def test_a_training_that_cannot_be_planned_leaves_nothing(served, client, motley, order):  # noqa: F811
    with pytest.raises(RequestError):
        client.train(motley, **{"epsilon": 1, **TERMS, **order}, show=False)
    with pytest.raises(PackingError, match=r"above the limit of 0\.5"):
        client.train(motley, epsilon=1, limit=0.5, **TERMS, show=False)
    assert (client.accounts.list(), client.datasets.list()) == ([], [])


def test_the_limit_of_a_new_account_is_announced_or_stated(client, motley, tmp_path, capsys):  # noqa: F811
    dataset, epsilon = push_for(client, QUIET, motley, None, epsilon=1, **TERMS)
    assert "epsilon 1 becomes the lifetime limit" in capsys.readouterr().err
    assert (epsilon, client.accounts.get(dataset.account_id).epsilon) == (1, 1)
    with pytest.raises(PackingError, match="exists, with epsilon 1 as its limit"):
        push_for(client, QUIET, motley, None, epsilon=1, limit=3, **TERMS)
    other = tmp_path / "other"
    (other / "a").mkdir(parents=True)
    (other / "b").mkdir()
    for number in range(12):
        (other / "ab"[number % 2] / f"{number}.png").write_bytes(saved(np.full((8, 8), 20 * number, np.uint8)))
    dataset, epsilon = push_for(client, QUIET, other, None, epsilon=None, limit=3, **TERMS)
    assert (epsilon, client.accounts.get(dataset.account_id).epsilon) == (1, 3)
    assert "lifetime" not in capsys.readouterr().err


def test_the_same_training_is_not_paid_twice_by_accident(served, client, dataset):
    mine = client.datasets.get(dataset["id"])
    job = begin(client, QUIET, mine, epsilon=0.5, **ASKED)
    with pytest.raises(AlreadyTrained, match="under way") as running:
        begin(client, QUIET, mine, epsilon=0.5, **ASKED)
    assert (running.value.job_id, running.value.release_id) == (job.id, None)
    release_id = served.publish(job.id, served.claim(job.id))
    for epsilon in (0.5, None):  # None asks for a third of what is left, whatever that is
        with pytest.raises(AlreadyTrained, match=f'releases.get."{release_id}".*again=True'):
            client.train(mine, epsilon=epsilon, **ASKED, show=False)
    assert begin(client, QUIET, mine, epsilon=0.4, **ASKED).epsilon == 0.4
    assert begin(client, QUIET, mine, epsilon=0.5, again=True, **ASKED).id != job.id


def test_images_that_another_account_knows_are_reported(client, motley):  # noqa: F811
    first, second = (client.accounts.create(**PEOPLE | {"name": name}, epsilon=1) for name in ("first", "second"))
    known = client.datasets.push(motley, account_id=first, **TERMS)
    with pytest.raises(JoinedAccount, match="Account first already has some of these images") as joined:
        client.datasets.push(motley, account_id="second", name="copy", **TERMS)
    assert joined.value.account_id == known.account_id == first.id
    assert client.datasets.get(joined.value.dataset_id).state == "ready"
    with pytest.raises(JoinedAccount):
        client.train(motley, account=second, epsilon=1, name="third", **TERMS, show=False)
    assert client.jobs.list() == []


def test_the_remaining_epsilon_is_accepted_as_it_is_shown(served, client, dataset):
    mine = client.datasets.get(dataset["id"])
    job = begin(client, QUIET, mine, epsilon=1, **ASKED)
    served.publish(job.id, served.claim(job.id))
    left = client.accounts.get(mine.account_id).balance
    assert left.affordable_epsilon < left.left_epsilon
    assert client.plan(mine, epsilon=left.left_epsilon).budget.affordable
    assert begin(client, QUIET, mine, epsilon=left.left_epsilon).epsilon == left.left_epsilon
