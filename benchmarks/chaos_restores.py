"""Scenarios of loss: an older, wrong or missing database, a lost or full disk, and a machine that fails.

Each scenario starts with a copy of one prepared installation, which holds releases and samples, and runs the real
service on it: `obscura up` with its runners. The service trains, samples and receives an upload until every process is
killed. The moments of the backup and of the kill are random. Then the service starts on what is left.

A database that is older than its storage must start locked and say so in one sentence. `obscura ledger accept` then
records what is missing, as an operator would. Every scenario ends with a working service, on which

* every release and sample that was in the data folder is still there, or in its trash, unchanged;
* accounts have spent at least what journals and receipts prove, also after a raise of their limit;
* images that the installation knows are not accepted by another account.
"""

from __future__ import annotations

import json
import os
import random
import resource
import secrets
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sqlalchemy import select

from benchmarks.chaos_clients import OPTIONS, RECORDS, push_random, set_up
from benchmarks.chaos_services import ATTEMPTS_MAX, HEARTBEAT_SECONDS, LEASE_SECONDS, Installation, Services
from obscura.client import Client
from obscura.errors import ApiError, ObscuraClientError
from obscura.wire.words import EntryKind
from scripts.with_services import free_port
from service import ledger
from service.db.ledger_tables import Account, Entry, Hold
from service.db.session import SessionFactory, make_engine, make_session_factory, transaction
from service.identity import admins, decisions
from service.ledger.stops import LOCKING, arming_stops
from service.settings import Settings
from service.storage.folder import FolderStorage
from service.storage.interface import digest_directory
from service.storage.journals import all_journalled

OLDER, OLDER_WITH_RECEIPTS, LOST_DISK = "older database", "older database and receipts", "lost disk"
WITHOUT_ITS_DATABASE = ("no database", "wrong database")
KINDS = (OLDER, OLDER_WITH_RECEIPTS, *WITHOUT_ITS_DATABASE, LOST_DISK, "full disk", "kill")
SCENARIOS = 50
RELEASES = 2  # of the prepared installation, with a sample each
ACCOUNT_EPSILON = 100.0
EPSILON, EPSILON_SINCE_BACKUP = 0.3, 1.0  # of a training; more than the trainings of a scenario can spend
QUICK = {**OPTIONS, "images": 40}  # a fifth of the trainings of the other modes
BUSY_TRAININGS = 1.5  # the longest time until the kill, in trainings of the prepared installation
FULL_SECONDS = 4.0  # from the moment at which the disk is full to the kill
FULL_BITS_MAX = 17  # files may still grow to two to the power of a random number up to this, in bytes
JOB_SECONDS_MAX = 240.0
LOOK_SECONDS = 0.2
PREPARED_IMAGES = 0  # the seed of the images in the prepared installation
NEWER = "newer"  # an account that is opened after the backup
SENTENCE = b"The installation is locked, because its database is older than its storage"


@dataclass(frozen=True)
class Outcome:
    """The result of one scenario.

    Attributes:
        releases_before: finished folders of releases and samples at the loss; those of the backup for a lost disk.
        releases_after: those of them that are in the data folder at the end, or in its trash, unchanged.
        stale: True if the database lacked spending or an upload that its storage proves, or its disk was lost.
        locked: True if the service started locked, said so in one sentence, and refused a training and an upload.
        refunds_unseen: jobs and accounts whose database shows less spending than journals and receipts prove, while
            the service neither stopped trainings nor said why. `accepted`: the same after `obscura ledger accept`;
            `raised`: the same after a raise of each account's limit.
        images_elsewhere: uploads of known images that another account accepted.
        works: True if at the end every job ends and a new training is published.
        codes: the finding codes that stopped trainings.
        rpo_seconds: from the moment that `obscura backup` shows to its end, where it was used; rto: of the restore.
    """

    scenario: int
    kind: str
    releases_before: int
    releases_after: int
    stale: bool
    locked: bool
    refunds_unseen: int
    refunds_accepted: int
    refunds_raised: int
    images_elsewhere: int
    works: bool
    codes: list[str]
    seconds: float
    rpo_seconds: float = 0.0
    rto_seconds: float = 0.0

    @property
    def sound(self) -> bool:
        """Return whether nothing was lost or refunded, a stale database started locked, and the service works again."""
        wrong = (self.refunds_unseen, self.refunds_accepted, self.refunds_raised, self.images_elsewhere)
        explained = self.locked == self.stale and bool(self.codes) == (self.stale or self.kind in WITHOUT_ITS_DATABASE)
        return self.releases_after >= self.releases_before and not any(wrong) and explained and self.works


class World:
    """One installation, whose database is outside its data folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.database, self.data_dir = folder, folder / "world.db", folder / "data"

    def command(self, *arguments: str) -> Any:
        """Run `obscura` beside the service and return the JSON that it prints."""
        environment = os.environ | {"OBSCURA_DATABASE_URL": f"sqlite:///{self.database}"}
        program = [sys.executable, "-m", "obscura.cli", "--data-dir", str(self.data_dir), *arguments, "--json"]
        done = subprocess.run(program, env=environment, capture_output=True, text=True, check=False)
        if done.returncode not in (0, 1):
            raise RuntimeError(f"{arguments}: {done.stdout}{done.stderr}")
        return json.loads(done.stdout)

    @contextmanager
    def opened(self, database: Path | None = None) -> Iterator[SessionFactory]:
        """Open its database, or another one."""
        engine = make_engine(f"sqlite:///{database or self.database}", pool_size=1)
        try:
            yield make_session_factory(engine)
        finally:
            engine.dispose()

    @contextmanager
    def serving(self, database: Path | None = None) -> Iterator[tuple[Services, Client]]:
        """Run the service on it, or on another database, and stop it in order, which completes a round of recovery."""
        settings = Settings(
            data_dir=self.data_dir,
            database_url=f"sqlite:///{database or self.database}",
            port=free_port(),
            lease_seconds=LEASE_SECONDS,
            heartbeat_seconds=HEARTBEAT_SECONDS,
            attempts_max=ATTEMPTS_MAX,
        )
        logs = self.folder / "logs"
        logs.mkdir(exist_ok=True)
        services = Services(Installation(settings), logs)
        try:
            services.start()
            token = settings.admin_key_path.read_text("ascii").strip()
            with Client(services.urls[0], token) as client:
                yield services, client
        finally:
            services.stop()
            services.close()


def prepare(world: World, releases: int = RELEASES) -> float:
    """Create an installation with two accounts, a dataset, releases and samples; return the seconds of a training."""
    seconds = 0.0
    world.data_dir.mkdir(parents=True, mode=0o700)
    with world.serving() as (_, client):
        dataset_id = set_up(client, ACCOUNT_EPSILON)
        open_account(client, "other")
        for _ in range(releases):
            began = time.monotonic()
            release_id = wait_for(client, train(client, dataset_id)).release_id
            seconds = time.monotonic() - began
            wait_for(client, generate(client, str(release_id)))
    return seconds


def open_account(client: Client, name: str) -> None:
    client.accounts.create(name=name, owner="benchmark", epsilon=8.0, delta=1e-5, unit="record")


def train(client: Client, dataset_id: str) -> str:
    return client.jobs.create(dataset_id, recipe="datalens", epsilon=EPSILON, options=QUICK).id


def generate(client: Client, release_id: str) -> str:
    return client.releases.get(release_id).sample(40, seed=1, format="npz").job_id


def upload(client: Client, account: str, images: int) -> str | None:
    """Push random images into an account; return the account that pays for them, or None if they are refused."""
    account_id = next(row.id for row in client.accounts.list() if row.name == account)
    declared = {"name": f"images {secrets.token_hex(4)}", "visibility": "private", "account_id": account_id}
    try:
        return client.datasets.get(push_random(client, images, RECORDS, **declared)).account_id
    except ApiError:
        return None


def dataset_of(client: Client) -> str:
    return client.datasets.get("noise").id


def wait_for(client: Client, job_id: str) -> Any:
    """Return a job once it has ended. Raise TimeoutError if it does not."""
    deadline = time.monotonic() + JOB_SECONDS_MAX
    while time.monotonic() < deadline:
        with suppress(ObscuraClientError):
            job = client.jobs.get(job_id)
            if job.finished:
                return job
        time.sleep(LOOK_SECONDS)
    raise TimeoutError(f"job {job_id} does not end")


def run_scenario(
    number: int, kind: str, template: World, other: World, folder: Path, dice: random.Random, *, busy_seconds: float
) -> Outcome:
    """Copy the prepared installation into a new folder, break it, and check what is left.

    Args:
        other: another installation, whose database is the wrong one.
        dice: for the moments.
        busy_seconds: the longest time until the kill.
    """
    began = time.monotonic()
    world = World(folder)
    shutil.copytree(template.folder, folder)
    backup_at, kill_at = sorted(dice.uniform(0, busy_seconds) for _ in range(2))
    with world.serving() as (services, client):
        train(client, dataset_of(client))
        generate(client, next(iter(client.releases.list())).id)
        time.sleep(backup_at)
        rpo_seconds = _back_up(world, kind)
        account = dice.choice(["chaos", NEWER])
        if account == NEWER:
            open_account(client, NEWER)
        owner = upload(client, account, number + 100)
        time.sleep(max(0.0, kill_at - backup_at - rpo_seconds))
        if kind == "full disk":  # no file of the processes, and of those that they start, may grow beyond a size
            size_bytes = round(2 ** dice.uniform(0, FULL_BITS_MAX))
            for pid in services.left():
                with suppress(ProcessLookupError):
                    resource.prlimit(pid, resource.RLIMIT_FSIZE, (size_bytes, size_bytes))
            time.sleep(FULL_SECONDS)
        for pid in services.left():  # every process at once, as when the machine fails
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    lost_disk = kind == LOST_DISK
    held = holdings(folder / "backup" / "files" if lost_disk else world.data_dir)
    proved = proved_spending(world.data_dir)
    if lost_disk:  # which loses the journals as well, so that an operator can only accept a sum
        proved = {name: nano for name, nano in proved.items() if name.startswith("acc_")}
    restoring = time.monotonic()
    database = lose(world, other, kind)
    rto_seconds = time.monotonic() - restoring if kind in (OLDER, LOST_DISK) else 0.0
    stale = lost_disk or kind in (OLDER, OLDER_WITH_RECEIPTS)
    codes, explained, refused = start(world, database)
    unseen = 0 if explained and (refused or database) else refunds(world, proved)
    accepted = 0
    if stale and LOCKING.intersection(codes):
        more = ["--epsilon", str(EPSILON_SINCE_BACKUP)] if lost_disk else []
        for loss in world.command("ledger", "verify")["missing"]:  # account by account, as an operator does
            world.command("ledger", "accept", loss["account_id"], *more)
        accepted = refunds(world, proved)
    raise_limits(world)
    raised = refunds(world, proved)
    with world.serving() as (_, client):
        worked = works(client)
        known = PREPARED_IMAGES if lost_disk else number + 100
        elsewhere = upload(client, "other", known) not in (None, owner)
    return Outcome(
        scenario=number,
        kind=kind,
        releases_before=held.total(),
        releases_after=(held & holdings(world.data_dir)).total(),
        stale=stale,
        locked=stale and explained and refused,
        refunds_unseen=unseen,
        refunds_accepted=accepted,
        refunds_raised=raised,
        images_elsewhere=int(elsewhere),
        works=worked,
        codes=codes,
        seconds=round(time.monotonic() - began, 1),
        rpo_seconds=round(rpo_seconds, 2),
        rto_seconds=round(rto_seconds, 2),
    )


def _back_up(world: World, kind: str) -> float:
    """Back up by the command, or database and receipts by SQLite's own; return the seconds since that moment."""
    if kind in (OLDER, LOST_DISK):
        return float(world.command("backup", str(world.folder / "backup"))["seconds_since"])
    with closing(sqlite3.connect(world.database)) as source, closing(sqlite3.connect(world.folder / "backup.db")) as to:
        source.backup(to)
    shutil.copytree(world.data_dir / "receipts", world.folder / "receipts")
    return 0.0


def lose(world: World, other: World, kind: str) -> Path | None:
    """Break a world; return the database that its service starts on, if that is another one."""
    if kind == "no database":
        return world.data_dir / "obscura.db"  # the default, where the address of the database is forgotten
    if kind == "wrong database":
        return Path(shutil.copyfile(other.database, world.folder / "other.db"))
    if kind in (OLDER, OLDER_WITH_RECEIPTS, LOST_DISK):
        for suffix in ("", "-wal", "-shm"):
            world.database.with_name(world.database.name + suffix).unlink(missing_ok=True)
    if kind == LOST_DISK:  # the operator has kept the keys
        lost = world.data_dir.rename(world.folder / "lost")
        world.data_dir.mkdir(mode=0o700)
        shutil.copytree(lost / "keys", world.data_dir / "keys")
        shutil.copy(lost / "admin.key", world.data_dir / "admin.key")
    if kind in (OLDER, LOST_DISK):
        world.command("restore", str(world.folder / "backup"), *(["--keep-files"] if kind == OLDER else []))
    if kind == OLDER_WITH_RECEIPTS:
        (world.folder / "backup.db").rename(world.database)
        shutil.rmtree(world.data_dir / "receipts")
        (world.folder / "receipts").rename(world.data_dir / "receipts")
    return None


def holdings(data_dir: Path) -> Counter[str]:
    """Count the finished folders of releases and samples by digest, including those in the trash."""
    names = (*data_dir.glob("releases/rel_*"), *data_dir.glob("samples/smp_*"))
    trash = (*data_dir.glob("trash/*.releases.rel_*"), *data_dir.glob("trash/*.samples.smp_*"))
    return Counter(digest_directory(path) for path in (*names, *trash) if path.suffix != ".tmp")


def proved_spending(data_dir: Path) -> dict[str, int]:
    """Return the nano-units that journals prove, by job, and those that receipts prove, by account."""
    journals = all_journalled(FolderStorage(data_dir))
    receipts = [json.loads(path.read_bytes())["statement"]["account"] for path in data_dir.glob("receipts/acc_*.json")]
    jobs = {job_id: journal.cost_nano for job_id, journal in journals.items()}
    return jobs | {account["id"]: account["spent_nano"] for account in receipts}


def refunds(world: World, proved: Mapping[str, int]) -> int:
    """Count jobs and accounts whose database shows less spending than was proved, trusting no check of the service.

    The charges of an open hold count: they are captured when its job ends, and cannot be returned.
    """
    with world.opened() as factory, transaction(factory, read_only=True) as session:
        shown = {row.id: row.spent_nano for row in session.execute(select(Account.id, Account.spent_nano))}
        for hold in session.scalars(select(Hold)):
            shown[hold.job_id] = hold.charged_nano
            shown[hold.account_id] += hold.charged_nano - hold.captured_nano
        for details in session.scalars(select(Entry.details).where(Entry.kind == EntryKind.ACCEPT)):
            for job_id, nano in details["journals"].items():
                shown[job_id] = shown.get(job_id, 0) + nano
    return sum(nano > shown.get(name, 0) for name, nano in proved.items())


def start(world: World, database: Path | None) -> tuple[list[str], bool, bool]:
    """Start the service for a round of recovery.

    Return the codes that stop trainings, whether the log explains that in one sentence, and whether a training and an
    upload are refused.
    """
    log = world.folder / "logs" / "api-1.log"
    written = log.stat().st_size
    refused = False
    with world.serving(database) as (_, client):
        stopped = client.transport.request("GET", "/v1/health/ready").json()["trainings"] == "stopped"
        if stopped and database is None:
            refused = upload(client, "chaos", 1) is None
            with suppress(ApiError):
                train(client, dataset_of(client))
                refused = False
    with world.opened(database) as factory, transaction(factory, read_only=True) as session:
        codes = sorted({stop.code for stop in arming_stops(session)})
    with open(log, "rb") as file:
        file.seek(written)
        lines = [line for line in file.read().splitlines() if b'"trainings_stopped"' in line]
    explained = bool(lines) and all((SENTENCE in line) == (database is None) for line in lines)
    return codes, explained and stopped, refused


def raise_limits(world: World) -> None:
    """Raise the limit of every account by two people, which must refund nothing."""
    now = datetime.now(UTC)
    with world.opened() as factory, transaction(factory) as session:
        names = [admins.admit_on_machine(session, name=name, now=now)[1] for name in ("asks", "approves")]
        asking, approving = (f"key_{token.split('_')[1]}" for token in names)
        for account_id, epsilon in session.execute(select(Account.id, Account.epsilon)).all():
            request = ledger.limits.request_raise(
                session, account_id=account_id, epsilon=epsilon + 1, reason="a raise", requested_with=asking, now=now
            )
            decisions.decide(session, request.id, approving, now, ledger.limits.LIMIT_EFFECTS, approved=True)


def works(client: Client) -> bool:
    """Return whether every accepted job ends, and a new training is published."""
    try:
        for job in list(client.jobs.list()):
            wait_for(client, job.id)
        return str(wait_for(client, train(client, dataset_of(client))).state) == "succeeded"
    except (TimeoutError, ObscuraClientError):
        return False


def restores(
    wanted: int, seed: int, folder: Path, report: Callable[[Outcome], None], *, at_once: int = 1
) -> dict[str, Any]:
    """Run scenarios, the kinds in turn; return the figures. The installations of sound scenarios are removed."""
    template, other = World(folder / "prepared"), World(folder / "other")
    busy_seconds = BUSY_TRAININGS * max(prepare(world) for world in (template, other))

    def run(number: int) -> Outcome:
        place, dice = folder / f"scenario-{number}", random.Random(f"restore {seed} {number}")
        kind = KINDS[number % len(KINDS)]
        outcome = run_scenario(number, kind, template, other, place, dice, busy_seconds=busy_seconds)
        report(outcome)
        if outcome.sound:
            shutil.rmtree(place)
        return outcome

    with ThreadPoolExecutor(at_once) as pool:
        outcomes = list(pool.map(run, range(wanted)))
    summed = [field.name for field in fields(Outcome) if field.name.startswith(("refunds_", "images_"))]
    return {
        "scenarios": len(outcomes),
        "by_kind": dict(Counter(outcome.kind for outcome in outcomes)),
        "stale": sum(outcome.stale for outcome in outcomes),
        "locked": sum(outcome.locked for outcome in outcomes),
        "releases_lost": sum(outcome.releases_before - outcome.releases_after for outcome in outcomes),
        **{name: sum(getattr(outcome, name) for outcome in outcomes) for name in summed},
        "working": sum(outcome.works for outcome in outcomes),
        "rpo_seconds": max(outcome.rpo_seconds for outcome in outcomes),
        "rto_seconds": max(outcome.rto_seconds for outcome in outcomes),
        "violated": not all(outcome.sound for outcome in outcomes),
        "rows": [asdict(outcome) for outcome in outcomes],
    }
