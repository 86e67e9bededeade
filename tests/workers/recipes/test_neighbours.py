"""Everything that leaves, while a job runs and afterwards, is the same for neighbours, but for what was released.

Every recipe is run by the real runner, from the accepted job to the published release, on datasets that were declared
alike and differ in how many units they hold: one fewer than declared, on both sides of a block, and one alone.
Whatever the API could have shown after any transaction is compared, and so are the log, the ledger, the journal, the
exit status, and names and sizes of the release's files. No time is told more exactly than by the minute, or by the hour
where it is kept. The clock is the only thing that is not real: it ticks once for each look at it, so that equal times
left are not an accident.
"""

import itertools
import json
import re
import shutil
import threading
import zipfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import event
from sqlalchemy.orm import Session

from obscura.wire.schemas import EntryRecord, record_of, to_the_minute
from obscura.wire.words import JobState
from service import ledger
from service.audit.signing import trusted_keys
from service.audit.verify import verify
from service.db.dataset_tables import Dataset
from service.db.job_tables import Job, Release
from service.db.session import transaction
from service.logs import configure_logging
from service.storage import storage_of
from service.storage.interface import key_of
from service.storage.journals import read_journal
from service.times import to_the_hour
from service.views import accounts, jobs, releases
from tests.conftest import clear_postgres
from tests.workers.conftest import OPTIONS, build
from tests.workers.recipes.conftest import BLOCK
from tests.workers.small_trainings import all_digits
from workers.recipes.interface import TrainingData
from workers.recipes.registry import TRAINERS
from workers.supervise.attempts import ExitStatus
from workers.train import publishing
from workers.train.progress import ReportedProgress
from workers.train.runner import run

DECLARED, SUBJECTS_DECLARED = 300, 30
PARITY = ("even", "odd")
STEPS: dict[str, Any] = {"expected_batch": 30, "epochs": 1.0, "anchors": 20, "basis_size": 20, "rank": 2}
NETWORKS: dict[str, Any] = {**STEPS, "epochs": 0.5, "features": 4}
DIFFUSION: dict[str, Any] = {
    **NETWORKS, "blocks": 1, "multiplicity": 2, "sampling_steps": 2, "central_images": 2, "central_batch": 150,
    "central_steps": 3, "basis_size": 60,
}  # fmt: skip
CASES: list[tuple[str, str, dict[str, Any]]] = [
    ("class_histogram", "record", {}),
    ("class_histogram", "subject", {}),
    ("datalens", "record", OPTIONS),
    ("datalens", "subject", {**OPTIONS, "teachers": 7}),
    ("datalens", "record", {**OPTIONS, "preset": "published"}),
    ("datalens", "record", {**OPTIONS, "teacher_bandwidth": 3.0}),
    ("moments", "record", {"components": 6, "evaluation_samples": 300}),
    ("moments", "subject", {"components": 6, "evaluation_samples": 300}),
    ("moments", "record", {"guide": True, "components": 6, "evaluation_samples": 300}),
    ("moments", "subject", {"guide": True, "components": 6, "evaluation_samples": 300}),
    ("dp_classifier", "record", {**STEPS, "architecture": "scatter_linear", "epochs": 0.5}),
    ("dp_classifier", "subject", {**STEPS, "architecture": "scatter_linear", "expected_batch": 5}),
    ("dp_classifier", "record", {**STEPS, "architecture": "cnn", "estimator": "gep"}),
    ("dp_diffusion", "record", DIFFUSION),
    ("dp_diffusion", "record", {**DIFFUSION, "central_images": 0, "moments_fraction": 0.3, "moments_steps": 3}),
    ("dpgan", "record", {**NETWORKS, "latent": 4, "generator_batch": 16, "discriminator_steps": 2}),
    ("select_public", "record", {"choices": 3}),
    ("select_public", "subject", {"choices": 3, "iterations": 1}),
]
# Every case on SQLite; what the database could change does not depend on the recipe, so two on PostgreSQL.
EVERYWHERE = [
    *(pytest.param("sqlite", case) for case in CASES),
    *(pytest.param("postgresql", case, marks=pytest.mark.services) for case in (CASES[0], CASES[2])),
]
# Files whose bytes are released values: pictures, and numbers written out. Of them, the form is compared.
RELEASED_VALUES = {"grid.png", "tiles.png", "images.zip", "report.json", "histogram.json"}


def named(value: str | tuple[str, str, dict[str, Any]]) -> str:
    if isinstance(value, str):
        return value
    recipe, unit, options = value
    return "-".join([recipe, unit, str(options.get("estimator", options.get("architecture", len(options))))])


def dataset(units: int, unit: str) -> TrainingData:
    """The first units of all that are there: digits, or subjects of one to nineteen digits each."""
    images, digits = all_digits()
    subjects = np.repeat(np.arange(SUBJECTS_DECLARED), 1 + np.arange(SUBJECTS_DECLARED) % 19)[:DECLARED]
    records = np.arange(units) if unit == "record" else np.flatnonzero(subjects < units)
    owners = None if unit == "record" else subjects[records] * 7_919 % 104_729
    return TrainingData(images[records], digits[records] % 2, PARITY, owners)


Told = Callable[[datetime], bool]
MOMENT = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|\+00:00| UTC)?")


def by_the_minute(moment: datetime) -> bool:
    """How the service shows when something was."""
    return moment == to_the_minute(moment)


def by_the_hour(moment: datetime) -> bool:
    """How what is signed or kept for ever is dated."""
    return moment == to_the_hour(moment)


def exactly(_moment: datetime) -> bool:
    """How the operator's log is dated, and nothing else."""
    return True


def plain(document: Any, told: Told) -> Any:
    """Without what is drawn at random, or is a time, in every run: identifiers, hashes, moments.

    No moment may be told more exactly than is said.
    """

    def checked(found: re.Match[str]) -> str:
        moment = datetime.fromisoformat(found[0].replace(" UTC", "").replace("Z", "").replace("+00:00", ""))
        assert told(moment.replace(tzinfo=UTC)), f"{found[0]} is not told {told.__name__}"
        return "time"

    text = document if isinstance(document, str) else json.dumps(document, default=str, sort_keys=True)
    text = re.sub(r"\b(acc|ds|job|rel|hold|smp|key)_[a-z2-7]{20}", r"\1", text)
    text = re.sub(r"\b[0-9a-f]{64}\b", "hash", text)
    text = MOMENT.sub(checked, text)
    return text if isinstance(document, str) else json.loads(text)


def form(value: Any) -> Any:
    """What is there, without how much it is."""
    if isinstance(value, dict):
        return {name: form(part) for name, part in value.items()}
    return [form(part) for part in value] if isinstance(value, list) else type(value).__name__


def by_the_hour_or_as_opened(shop: Any) -> Told:
    """How the log is dated: an account's opening stands in it exactly, and no entry bears an earlier time."""
    with transaction(shop.factory, read_only=True) as session:
        opened = ledger.get_account(session, shop.account_id).created_at
    return lambda moment: by_the_hour(moment) or moment == opened


def release_facts(shop: Any, job: Job) -> dict[str, Any]:
    with transaction(shop.factory, read_only=True) as session:
        row = session.get_one(Release, job.release_id)
        record = releases.records(session, [row])[0].model_dump(mode="json")
        card, receipt = dict(row.card), dict(row.receipt)
    folder = shop.settings.data_dir / key_of(row.id)
    assert all(by_the_hour(datetime.fromtimestamp(path.stat().st_mtime, UTC)) for path in folder.iterdir())
    for path in folder.glob("*.zip"):
        with zipfile.ZipFile(path) as archive:
            assert {member.date_time for member in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
    sizes = {path.name: path.stat().st_size for path in folder.iterdir()}
    documents = {path.name: plain(json.loads(path.read_text("utf-8")), by_the_hour) for path in folder.glob("*.json")}
    for name in RELEASED_VALUES & set(sizes):
        sizes[name] = -1
    if record["histogram"] is not None:
        record["histogram"] = form(record["histogram"])
        documents["histogram.json"] = form(documents["histogram.json"])
        documents["release.json"]["summary"]["histogram"] = form(documents["release.json"]["summary"]["histogram"])
        sizes["release.json"] = -1
    if "report.json" in documents:
        synthetic = documents["report.json"]["synthetic"]
        del synthetic["collapsed"]  # the classes whose released images are too alike
        documents["report.json"] |= {
            "synthetic": form(synthetic),
            "pictures": form(documents["report.json"]["pictures"]),
        }
    del receipt["signature"]
    return {
        "record": plain(record, by_the_minute),
        "card": plain(card, by_the_hour),
        "receipt": plain(receipt, by_the_hour_or_as_opened(shop)),
        "sizes": sizes,
        "documents": documents,
    }


def everything_that_leaves(shop: Any, job_id: str, capfd: Any, monkeypatch: Any) -> dict[str, Any]:
    """Run one attempt of a job, here, and return all that somebody who does not see the data could see."""
    seen: list[Any] = []
    looking = threading.local()

    def look(_session: Session) -> None:
        """What the API would tell after this transaction, if it differs from before."""
        if getattr(looking, "now", False):
            return
        looking.now = True
        try:
            with transaction(shop.factory, read_only=True) as session:
                row, dataset = session.get_one(Job, job_id), session.get_one(Dataset, shop.dataset_id)
                shown = {
                    "event": jobs.event(session, row).model_dump(mode="json"),
                    "job": jobs.records(session, [row])[0].model_dump(mode="json"),
                    "version": row.progress_version,
                    "dataset": releases.dataset_record(dataset).model_dump(mode="json"),
                    "account": accounts.account(ledger.get_account(session, shop.account_id)).model_dump(mode="json"),
                }
        finally:
            looking.now = False
        shown = plain(shown, by_the_minute)
        if not seen or seen[-1] != shown:
            seen.append(shown)

    ticks = itertools.count()
    monkeypatch.setitem(ReportedProgress.__init__.__kwdefaults__, "clock", lambda: float(next(ticks)))
    attempt = shop.claim(job_id)
    configure_logging("INFO")
    capfd.readouterr()
    event.listen(Session, "after_commit", look)
    try:
        status = run(shop.settings, attempt, stop=threading.Event(), trainers=TRAINERS)
    finally:
        event.remove(Session, "after_commit", look)
    told = capfd.readouterr()
    job = shop.job(job_id)
    assert (status, job.state) == (ExitStatus.ENDED, JobState.SUCCEEDED), told.err[-3000:]
    with transaction(shop.factory, read_only=True) as session:
        log = [
            record_of(EntryRecord, row).model_dump(mode="json")
            for row in ledger.entries(session, shop.account_id, 0, 1000)
        ]
        checked = verify(session, trusted=trusted_keys(shop.settings.ledger_key_path))
        assert checked.clean, checked.findings
    return {
        "status": status,
        "said": plain(told.out + told.err, exactly),
        "seen": seen,
        "ledger": plain(log, by_the_hour_or_as_opened(shop)),
        "journal": [plain(str(line), by_the_hour) for line in read_journal(storage_of(shop.settings), job_id)],
        **release_facts(shop, job),
    }


Observe = Callable[[tuple[str, str, dict[str, Any]], int], dict[str, Any]]


@pytest.fixture
def observe(request: pytest.FixtureRequest, tmp_path: Path, capfd: Any, monkeypatch: Any) -> Observe:
    """Run a case on so many units, in a workshop of its own; on PostgreSQL, in one after the other."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(publishing, "_REPORT_PER_CLASS", 10)  # of 200: drawing and comparing them takes seconds
    sqlite = request.param == "sqlite"
    url = "" if sqlite else request.getfixturevalue("postgres_url")
    template = request.getfixturevalue("sqlite_template")

    def observed(case: tuple[str, str, dict[str, Any]], units: int) -> dict[str, Any]:
        recipe, unit, options = case
        home = tmp_path / str(units)
        home.mkdir()
        if sqlite:
            shutil.copyfile(template, home / "obscura.db")
        bounds = {"declared": DECLARED, "subjects_declared": SUBJECTS_DECLARED if unit == "subject" else None}
        own_url = f"sqlite:///{home / 'obscura.db'}" if sqlite else url
        shop = build(home / "var", own_url, unit=unit, data=dataset(units, unit), **bounds)
        try:
            job_id = shop.train(recipe=recipe, epsilon=4.0, **options)
            return everything_that_leaves(shop, job_id, capfd, monkeypatch)
        finally:
            shop.factory.kw["bind"].dispose()
            if not sqlite:
                clear_postgres(url)

    return observed


def assert_alike(one: dict[str, Any], other: dict[str, Any]) -> None:
    for first, second in zip(one["seen"], other["seen"], strict=False):  # the first difference says most
        assert first == second
    for name in one:
        assert one[name] == other[name], name


@pytest.mark.parametrize(("observe", "case"), EVERYWHERE, indirect=["observe"], ids=named)
def test_nothing_that_leaves_tells_how_many_units_there_are(observe, case):
    """The declared number and a single one; of each recipe's first case one fewer, too. None where subjects may
    withdraw, and both sides of a block where features come in blocks.

    No recipe refuses few records, or a class without any: whether a training succeeds follows from what was declared.
    """
    recipe, unit, options = case
    declared = SUBJECTS_DECLARED if unit == "subject" else DECLARED
    counts = [1, 0] if unit == "subject" else [1]
    if case is next(each for each in CASES if each[0] == recipe):
        counts.append(declared - 1)
    if options.get("architecture") == "scatter_linear" and unit == "record":
        counts += [BLOCK + 1, BLOCK]
    first = observe(case, declared)
    reports = [shown["event"]["progress"] for shown in first["seen"]]
    assert {report["stage"] for report in reports} > {None}
    over_at_once = ("class_histogram", "datalens", "moments", "select_public")  # before a whole second has passed
    assert recipe in over_at_once or any(report["eta_seconds"] is not None for report in reports)
    assert first["ledger"][-1]["kind"] == "capture"
    for units in counts:
        assert_alike(first, observe(case, units))


def test_the_cases_are_every_recipe():
    assert {recipe for recipe, _, _ in CASES} == set(TRAINERS)
