"""Backups, wrong databases and forgotten addresses: a service that is started on them removes nothing, and says so.

Services are started as they are elsewhere than in the embedded mode; one has done its first round, with a sweep, by the
time that it has been stopped.
"""

import hashlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from obscura.wire.words import DatasetState, JobState
from service import ledger
from service.backups.accepting import accept
from service.backups.making import back_up
from service.backups.restoring import restore
from service.datasets import vault
from service.db.base import new_id
from service.db.job_tables import Job
from service.db.session import SessionFactory, make_engine, make_session_factory, transaction
from service.inspection import find_losses, follow_up, inspect_ledger
from service.ledger.stops import arming_stops
from service.main import create_app
from service.settings import Settings
from service.storage.interface import digest_directory
from tests.conftest import dataset_row
from tests.together import ready
from tests.workers.conftest import Workshop, opened
from tests.workers.small_trainings import work
from tests.workers.tiny_runner import TRAINERS
from workers.supervise.attempts import ExitStatus, claim_job
from workers.supervise.reconcile import reconcile, sweep

PAID = ("releases", "samples", "journals", "receipts", "work", "keys", "datasets", "quarantine")


@dataclass(frozen=True)
class Served:
    trainings: str
    codes: set[str]
    warning: str | None


def serve(settings: Settings) -> Served:
    app = create_app(settings, send=lambda *_: None)
    with TestClient(app) as client:
        trainings = ready(client)["trainings"]
        with transaction(app.state.service.factory, read_only=True) as session:
            codes = {stop.code for stop in arming_stops(session)}
    return Served(trainings, codes, getattr(app.state, "warning", None))


def held(settings: Settings) -> dict[str, str]:
    """Everything in the data folder that must not be lost, by path, with a digest."""
    paths = [settings.admin_key_path]
    paths += [path for name in PAID for path in (settings.data_dir / name).rglob("*") if path.is_file()]
    paths += list(settings.data_dir.glob("installation*"))
    digests = {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths if path.exists()}
    return {path.relative_to(settings.data_dir).as_posix(): digest for path, digest in digests.items()}


def backup(shop: Workshop, target: Path) -> str:
    engine = shop.factory.kw["bind"]
    with engine.connect() as connection:
        connection.exec_driver_sql("ROLLBACK")
        connection.exec_driver_sql(f"VACUUM INTO '{target}'")
    return f"sqlite:///{target}"


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory, sqlite_template: Path) -> Iterator[Workshop]:
    """An installation with a release and a sample, which a service has served once; every test has a copy."""
    folder = tmp_path_factory.mktemp("installation")
    shutil.copyfile(sqlite_template, folder / "obscura.db")
    with opened(folder / "var", f"sqlite:///{folder / 'obscura.db'}") as made:
        made.settings = made.settings.model_copy(update={"mode": "celery", "lease_seconds": 600})
        publish(made)
        assert serve(made.settings) == Served("open", set(), None)
        made.factory.kw["bind"].dispose()  # the whole database is in one file
        yield made


@pytest.fixture
def shop(installation: Workshop, tmp_path: Path) -> Iterator[Workshop]:
    folder = tmp_path / "shop"
    shutil.copytree(installation.settings.data_dir.parent, folder)
    url = f"sqlite:///{folder / 'obscura.db'}"
    settings = installation.settings.model_copy(update={"data_dir": folder / "var", "database_url": url})
    engine = make_engine(url)
    yield replace(installation, settings=settings, factory=make_session_factory(engine))
    engine.dispose()


def publish(shop: Workshop) -> str:
    job_id = shop.train(images=5, epsilon=0.5)
    work(shop, job_id, TRAINERS)
    release_id = shop.release_of(job_id).id
    work(shop, shop.sample(release_id))
    return release_id


def with_database(shop: Workshop, url: str) -> Settings:
    return shop.settings.model_copy(update={"database_url": url})


def accept_losses(settings: Settings, factory: SessionFactory, account_id: str, shop: Workshop) -> None:
    """Accept an account's losses with the admin's key, which opens the installation."""
    token = shop.settings.admin_key_path.read_text().strip()
    assert not accept(settings, factory, account_id, token, reason="restored", now=datetime.now(UTC)).locked


def test_a_service_on_yesterdays_backup_keeps_what_was_paid_for_since(shop, tmp_path):
    restored = with_database(shop, backup(shop, tmp_path / "yesterday.db"))
    newer = publish(shop)
    before = held(shop.settings)
    assert f"releases/{newer}/release.json" in before
    served = serve(restored)
    assert held(shop.settings) == before
    assert served.trainings == "stopped"
    assert {"older_than_receipt"} <= served.codes
    assert "obscura ledger verify" in served.warning
    serve(restored)  # nor does another start
    assert held(shop.settings) == before
    assert serve(shop.settings) == Served("open", set(), None)


def test_a_database_and_its_receipts_restored_together_are_betrayed_by_what_runners_wrote(shop, tmp_path):
    restored = with_database(shop, backup(shop, tmp_path / "yesterday.db"))
    receipts = shop.settings.data_dir / "receipts"
    shutil.copytree(receipts, tmp_path / "receipts")
    spent_before_nano = shop.balance().spent_nano
    newer = publish(shop)
    spent_nano = shop.balance().spent_nano
    shutil.rmtree(receipts)
    shutil.copytree(tmp_path / "receipts", receipts)
    before = held(shop.settings)
    served = serve(restored)
    assert held(shop.settings) == before
    assert f"releases/{newer}/release.json" in before
    assert served.trainings == "stopped"
    factory = make_session_factory(make_engine(restored.database_url))
    found = {finding.code.value: finding.message for finding in inspect_ledger(restored, factory).findings}
    assert found.keys() == {"journal_unknown", "release_unknown"}
    assert f"shows releases for {spent_nano - spent_before_nano} nano-units" in found["journal_unknown"]

    (account_id,) = find_losses(restored, factory)
    accept_losses(restored, factory, account_id, shop)
    with transaction(factory, read_only=True) as session:
        account = ledger.get_account(session, shop.account_id)
    factory.kw["bind"].dispose()
    assert account.capacity_nano - account.spent_nano <= shop.balance().left_nano
    assert serve(restored) == Served("open", set(), None)
    paid = {name: digest for name, digest in before.items() if name.startswith(("releases/", "samples/", "journals/"))}
    assert paid.items() <= held(shop.settings).items()


def test_what_a_training_published_after_the_backup_it_was_under_way_in_stays(shop, tmp_path):
    """Its job is discarded, and what discarded jobs have made goes to the trash, to be removed for good."""
    job_id, now = shop.train(images=5, epsilon=0.3), datetime.now(UTC)
    attempt = shop.claim(job_id)
    restored = with_database(shop, backup(shop, tmp_path / "yesterday.db"))
    assert shop.work(attempt, TRAINERS) is ExitStatus.ENDED
    release = shop.release_of(job_id)
    factory = make_session_factory(make_engine(restored.database_url))
    follow_up(factory, inspect_ledger(restored, factory), now=now)
    ((account_id, loss),) = find_losses(restored, factory).items()
    assert loss.releases == [release.id]
    accept_losses(restored, factory, account_id, shop)
    later = now + timedelta(days=1)
    for days in (0, 1, restored.trash_days + 2):
        reconcile(restored, factory, send=lambda *_: None, now=later)
        sweep(restored, factory, now=now + timedelta(days=days), proved=True)
    with transaction(factory, read_only=True) as session:
        assert session.get_one(Job, job_id).state is JobState.CANCELLED
    assert digest_directory(shop.settings.data_dir / "releases" / release.id) == release.artifact_sha256
    assert inspect_ledger(restored, factory, thorough=True).clean
    factory.kw["bind"].dispose()


@pytest.fixture
def other(tmp_path: Path, sqlite_template: Path) -> Iterator[Workshop]:
    path = tmp_path / "other.db"
    shutil.copyfile(sqlite_template, path)
    with opened(tmp_path / "other", f"sqlite:///{path}") as made:
        made.settings = made.settings.model_copy(update={"mode": "celery"})
        assert serve(made.settings).trainings == "open"
        yield made


@pytest.mark.parametrize("found", ["none", "other", pytest.param("postgres_url", marks=pytest.mark.services)])
def test_a_service_on_a_database_that_is_not_its_own_keeps_everything(shop, request, found):
    """On none, on another installation's, or on an empty one."""
    before = held(shop.settings)
    assert "admin.key" in before
    if found == "none":
        settings, theirs = Settings(data_dir=shop.settings.data_dir, mode="celery"), None
    elif found == "other":
        other = request.getfixturevalue(found)
        settings, theirs = with_database(shop, other.settings.database_url), held(other.settings)
    else:
        settings, theirs = with_database(shop, request.getfixturevalue(found)), None
    served = serve(settings)
    assert held(shop.settings) == before
    assert served.trainings == "stopped"
    assert "installation_mismatch" in served.codes
    assert "OBSCURA_DATABASE_URL" in (served.warning or "") or found != "none"
    assert theirs is None or held(other.settings) == theirs
    assert found == "postgres_url" or serve(shop.settings) == Served("open", set(), None)


def test_an_installation_of_before_is_not_taken_over_by_an_empty_database_and_taken_on_quietly_by_its_own(workshop):
    workshop.settings = workshop.settings.model_copy(update={"mode": "celery"})
    publish(workshop)
    workshop.settings.admin_key_path.write_text("a key\n")
    before = held(workshop.settings)
    served = serve(Settings(data_dir=workshop.settings.data_dir, mode="celery"))
    assert held(workshop.settings) == before
    assert served.trainings == "stopped"
    assert "1 releases and 1 samples and 1 journals" in served.warning
    workshop.settings.admin_key_path.unlink()
    assert serve(workshop.settings) == Served("open", set(), None)
    kept = {path: digest for path, digest in before.items() if not path.startswith(("work/", "admin"))}  # its job ended
    assert kept.items() <= held(workshop.settings).items()
    assert os.stat(workshop.settings.data_dir / "installation").st_mode & 0o777 == 0o600


@pytest.mark.parametrize("because", ["a stop", "a finding", "a verification that cannot run"])
def test_nothing_is_swept_while_anything_stands_that_was_found(shop, because):
    job_id = shop.train(epsilon=0.2)
    shop.cancel(job_id)
    data_dir = shop.settings.data_dir
    folder = data_dir / "work" / job_id
    folder.mkdir(parents=True)
    (folder / "checkpoint.sealed").touch()
    public = shop.settings.ledger_key_path.with_suffix(".pub.pem")
    receipt = next((data_dir / "receipts").glob("acc_*.json"))
    whole = (public.read_bytes(), receipt.read_bytes())
    if because == "a verification that cannot run":
        public.write_text("no key")
    elif because == "a finding":
        receipt.write_text("{}")
    else:
        receipt.write_text("{}")
        serve(shop.settings)
        receipt.write_bytes(whole[1])  # the stop of the first start still stands
    assert serve(shop.settings).trainings == "stopped"
    assert folder.is_dir()


def test_uploads_remains_and_keys_are_not_destroyed_on_the_word_of_another_database(shop, other, tmp_path):
    """The other database calls our dataset deleted, and knows of no upload."""
    deleted = {"id": shop.dataset_id, "state": DatasetState.DELETED}
    other.do(lambda session: session.add(dataset_row(other.account_id, datetime.now(UTC), **deleted)))
    remains = shop.settings.data_dir / "quarantine" / f"{new_id('ds')}.1"
    remains.parent.mkdir(exist_ok=True)
    remains.write_bytes(b"sealed")
    unfinished = shop.settings.data_dir / "datasets" / f"{new_id('ds')}.1.tmp"
    unfinished.mkdir()
    before = held(shop.settings)
    serve(with_database(shop, other.settings.database_url))
    assert held(shop.settings) == before
    assert unfinished.is_dir()
    assert vault.Vault.of(shop.settings).key_path(shop.dataset_id).exists()


def test_a_key_that_comes_back_with_a_backup_is_destroyed_again_unless_something_was_found(shop):
    key = vault.Vault.of(shop.settings).key_path(shop.dataset_id)
    kept = key.read_bytes()
    with TestClient(create_app(shop.settings, send=lambda *_: None)) as client:
        token = shop.settings.admin_key_path.read_text().strip()
        headers = {"Authorization": f"Bearer {token}"}
        assert client.delete(f"/v1/datasets/{shop.dataset_id}", headers=headers).json()["state"] == "deleted"
    key.write_bytes(kept)
    receipt = next((shop.settings.data_dir / "receipts").glob("acc_*.json"))
    whole = receipt.read_bytes()
    receipt.write_text("{}")
    assert serve(shop.settings).trainings == "stopped"
    assert key.read_bytes() == kept
    receipt.write_bytes(whole)
    shop.do(lambda session: [session.delete(stop) for stop in arming_stops(session)])
    assert serve(shop.settings).trainings == "open"
    assert not key.exists()


def test_nothing_is_claimed_of_another_installations_database(shop, other):
    job_id = other.train(epsilon=0.2)
    settings, now = with_database(shop, other.settings.database_url), datetime.now(UTC)
    later = now + timedelta(days=1)
    assert claim_job(settings, other.factory, job_id=job_id, worker="test", now=now) is None
    reconcile(settings, other.factory, send=lambda *message: pytest.fail(f"sent {message}"), now=later)
    assert claim_job(other.settings, other.factory, job_id=job_id, worker="test", now=now) is not None


def test_the_work_of_an_ended_job_goes_to_the_trash_and_stays_where_anything_was_found(shop, tiny_runner):
    data_dir = shop.settings.data_dir
    first, second = shop.train(images=5, epsilon=0.3), shop.train(images=5, epsilon=0.3)
    shop.supervise(first, tiny_runner)
    assert not (data_dir / "work" / first).exists()
    (put_away,) = (data_dir / "trash").glob(f"*.work.{first}")
    assert (put_away / "trained").is_dir()
    attempt = shop.claim(second)
    (data_dir / "installation").rename(data_dir / "elsewhere")
    shop.supervise(attempt, tiny_runner)
    assert (data_dir / "work" / second).is_dir()


def test_a_training_that_was_under_way_draws_nothing_from_its_secret_after_a_restore_of_everything(shop, tmp_path):
    job_id, now = shop.train(images=5, epsilon=0.3), datetime.now(UTC)
    shop.claim(job_id)
    shop.do(ledger.arm, hold_id=shop.hold(job_id).id, attempt=1, now=now)
    back_up(shop.settings, shop.factory, tmp_path / "backup", with_keys=True, now=now)
    url = f"sqlite:///{tmp_path / 'new.db'}"
    new = shop.settings.model_copy(update={"data_dir": tmp_path / "new", "database_url": url, "lease_seconds": 4})
    assert restore(new, tmp_path / "backup", keep_files=False, now=now).discarded == 1
    factory = make_session_factory(make_engine(url))
    restored = Workshop(new, factory, shop.account_id, shop.dataset_id, shop.public_id)
    spent_nano = restored.balance().spent_nano
    later = now + timedelta(days=1)
    assert claim_job(new, factory, job_id=job_id, worker="test", now=later) is None, "the installation is locked"
    accept_losses(new, factory, shop.account_id, shop)
    reconcile(new, factory, send=lambda *_: None, now=later)
    attempt = claim_job(new, factory, job_id=job_id, worker="test", now=later)
    if attempt is not None:
        restored.work(attempt, TRAINERS)
    job = restored.job(job_id)
    assert (job.state, job.release_id, restored.hold(job_id).charged_nano) == (JobState.CANCELLED, None, 0)
    assert restored.balance().spent_nano == spent_nano
    assert not (tmp_path / "new" / "journals" / f"{job_id}.jsonl").exists()
    factory.kw["bind"].dispose()
