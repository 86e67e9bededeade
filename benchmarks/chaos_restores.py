"""Drills of loss: a backup that comes back, a database that is wrong or missing, a full disk, a machine that fails.

Every drill begins with a copy of one prepared installation, which holds releases and samples, and starts the real
service on it: `obscura up` with its runners. They train and draw until the moment at which something happens, which is
random, as is the moment of the backup. Then the service is started on what is left, does a round with its sweep, and is
stopped in order. What lay in the data folder before must lie there still, or in its trash; what journals and receipts
prove to be spent must be in the database, or the service must say that something is wrong and have stopped trainings.
Where a database was wrong or missing, the right one comes back at the end, and with it everything must work.

In mode backup the commands do it: `obscura backup` at a random moment beside the running service, everything or the
database lost at another one, and `obscura restore`. What was made after a backup is lost with everything; what journals
and receipts had proved to be spent by the loss must be in the database, or trainings must be stopped and it be said.
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
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import select

from benchmarks.chaos_clients import OPTIONS, set_up
from benchmarks.chaos_services import ATTEMPTS_MAX, HEARTBEAT_SECONDS, LEASE_SECONDS, Installation, Services
from obscura.client import Client
from obscura.errors import ObscuraClientError
from scripts.with_services import free_port
from service.db.ledger_tables import AccountRow, HoldRow
from service.db.session import make_engine, make_session_factory, transaction
from service.ledger.stops import arming_stops
from service.settings import Settings
from service.storage.files import digest_directory
from service.storage.folder import FolderStorage
from service.storage.journals import journalled, journalled_jobs

KINDS = ("older database", "older database and receipts", "no database", "wrong database", "full disk", "kill")
BACKUPS = ("restored whole", "restored database")  # by the commands, in mode backup
DRILLS, BACKUP_DRILLS = 50, 20
RELEASES = 2  # of the prepared installation, with a sample each
EPSILON = 0.3
QUICK = {**OPTIONS, "images": 40}  # a fifth of what the other modes train: a drill is about files, not about jobs
BUSY_TRAININGS = 1.5  # that a service has time for until something happens at the latest, as trainings went here before
FULL_SECONDS = 4.0  # that a disk is full for, before the machine is switched off
FULL_BITS_MAX = 17  # files may still grow to two to the power of a random number up to this, in bytes
JOB_SECONDS_MAX = 240.0
LOOK_SECONDS = 0.2


@dataclass(frozen=True)
class Drill:
    """What one drill has found.

    Attributes:
        drill: its number.
        kind: what happened, of KINDS or BACKUPS.
        releases_before: finished folders of releases and samples when it happened.
        releases_after: those of them that lie in the data folder at the end, or in its trash, unchanged.
        refunded_unseen: jobs and accounts of which the database shows less spent than journals and receipts prove,
            where the service has not said that something is wrong.
        end: "works", "says" what is wrong and has stopped trainings, or "neither".
        said: the finding codes that stop trainings.
        seconds: it took.
        rpo_seconds: in mode backup, from the moment that the backup shows to its end.
        rto_seconds: in mode backup, of the restore with its verification.
    """

    drill: int
    kind: str
    releases_before: int
    releases_after: int
    refunded_unseen: int
    end: str
    said: list[str]
    seconds: float
    rpo_seconds: float = 0.0
    rto_seconds: float = 0.0

    @property
    def sound(self) -> bool:
        """Whether nothing was lost and nothing refunded unseen, and the service works or says what is wrong."""
        return self.releases_after >= self.releases_before and not self.refunded_unseen and self.end != "neither"


@dataclass(frozen=True)
class World:
    """One installation, whose database does not lie in its data folder."""

    folder: Path

    @property
    def database(self) -> Path:
        return self.folder / "world.db"

    def settings(self, database: Path | None = None) -> Settings:
        """The settings of a service on it; another database where one is given."""
        return Settings(
            data_dir=self.folder / "data",
            database_url=f"sqlite:///{database or self.database}",
            port=free_port(),
            lease_seconds=LEASE_SECONDS,
            heartbeat_seconds=HEARTBEAT_SECONDS,
            attempts_max=ATTEMPTS_MAX,
        )

    @property
    def data_dir(self) -> Path:
        return self.folder / "data"


@contextmanager
def serving(world: World, database: Path | None = None) -> Iterator[tuple[Services, Client]]:
    """Run the service, and whatever it starts; it is stopped in order at the end, which ends a round of recovery.

    Raises:
        TimeoutError: it does not serve.
    """
    settings = world.settings(database)
    logs = world.folder / "logs"
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


def prepare(world: World) -> float:
    """Make an installation with a private dataset, releases and a sample of each; returns the seconds of a training."""
    seconds = 0.0
    world.data_dir.mkdir(parents=True, mode=0o700)
    with serving(world) as (_, client):
        dataset_id = set_up(client)
        for _ in range(RELEASES):
            began = time.monotonic()
            release_id = wait_for(client, train(client, dataset_id)).release_id
            seconds = time.monotonic() - began
            wait_for(client, draw(client, str(release_id)))
    return seconds


def train(client: Client, dataset_id: str) -> str:
    """Ask for a training of some seconds; returns its job's id."""
    body = {"dataset_id": dataset_id, "recipe": "datalens", "epsilon": EPSILON, "options": QUICK}
    return str(_ask(client, "/v1/jobs", body)["id"])


def draw(client: Client, release_id: str) -> str:
    """Ask for a sample; returns its job's id."""
    body = {"count": 40, "seed": 1, "format": "npz"}
    return str(_ask(client, f"/v1/releases/{release_id}/samples", body)["job_id"])


def _ask(client: Client, path: str, body: dict[str, Any]) -> dict[str, Any]:
    key = {"Idempotency-Key": secrets.token_hex(16)}
    answer: dict[str, Any] = client.transport.request("POST", path, json=body, headers=key).json()
    return answer


def dataset_of(client: Client) -> str:
    """Return the id of the one dataset."""
    (row,) = client.transport.request("GET", "/v1/datasets").json()["items"]
    return str(row["id"])


def wait_for(client: Client, job_id: str) -> Any:
    """Return a job that has ended.

    Raises:
        TimeoutError: it does not end.
    """
    deadline = time.monotonic() + JOB_SECONDS_MAX
    while time.monotonic() < deadline:
        with suppress(ObscuraClientError):
            job = client.job(job_id)
            if job.finished:
                return job
        time.sleep(LOOK_SECONDS)
    raise TimeoutError(f"job {job_id} does not end")


def run_drill(
    number: int, kind: str, template: World, other: World, folder: Path, dice: random.Random, *, busy_seconds: float
) -> Drill:
    """Copy the prepared installation, let something happen to it, and look what is left.

    Args:
        number: of the drill.
        kind: of KINDS.
        template: the prepared installation.
        other: another one, whose database is the wrong one.
        folder: for the copy; must not exist.
        dice: for the moments.
        busy_seconds: within which something happens.
    """
    began = time.monotonic()
    world = World(folder)
    shutil.copytree(template.folder, folder)
    backup_at, happens_at = sorted(dice.uniform(0, busy_seconds) for _ in range(2))
    with serving(world) as (services, client):
        dataset_id = dataset_of(client)
        release_id = next(iter(client.releases())).id
        train(client, dataset_id)
        draw(client, release_id)
        time.sleep(backup_at)
        rpo_seconds = obscura(world, "backup", str(folder / "backup"))[1] if kind in BACKUPS else back_up(world)
        time.sleep(max(0.0, happens_at - backup_at - rpo_seconds))
        if kind == "full disk":
            fill_disk(services, round(2 ** dice.uniform(0, FULL_BITS_MAX)))
            time.sleep(FULL_SECONDS)
        kill(services)
    whole = kind == "restored whole"  # with which everything is lost that is newer than the backup
    held, spent = holdings(folder / "backup" / "files" if whole else world.data_dir), receipts_of(world.data_dir)
    journals = shutil.copytree(world.data_dir / "journals", folder / "proof" / "journals").parent
    lost_at = time.monotonic()
    database = lose(world, other, kind)
    rto_seconds = time.monotonic() - lost_at if kind in BACKUPS else 0.0
    expect_work = kind in ("full disk", "kill")
    codes, unseen, end = look(world, database, spent, expect_work=expect_work, journals=journals)
    if kind in ("no database", "wrong database"):  # on which nothing may work; with the right one everything must
        mended = look(world, None, spent, expect_work=True)[2]
        end = "says" if (end, mended) == ("says", "works") else "neither"
    kept = holdings(world.data_dir)
    return Drill(
        drill=number,
        kind=kind,
        releases_before=held.total(),
        releases_after=(held & kept).total(),
        refunded_unseen=unseen,
        end=end,
        said=codes,
        seconds=round(time.monotonic() - began, 1),
        rpo_seconds=round(rpo_seconds, 2),
        rto_seconds=round(rto_seconds, 2),
    )


def kill(services: Services) -> None:
    """End every process at once, as when the machine fails."""
    for pid in services.left():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def fill_disk(services: Services, size_bytes: int) -> None:
    """Let no file of the running processes, and of those that they start, grow beyond a size, as on a full disk.

    It takes no right and no disk of its own; every write beyond fails, as it does where there is no space.
    """
    for pid in services.left():
        with suppress(ProcessLookupError):
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (size_bytes, size_bytes))


def obscura(world: World, *command: str) -> tuple[int, float]:
    """Run a command on a world; returns its exit code and what it said about seconds since the moment of a backup.

    Raises:
        RuntimeError: it could not run.
    """
    environment = os.environ | {"OBSCURA_DATABASE_URL": f"sqlite:///{world.database}"}
    program = [sys.executable, "-m", "obscura.cli", "--data-dir", str(world.data_dir), *command, "--json"]
    done = subprocess.run(program, env=environment, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        raise RuntimeError(f"{command}: {done.stdout}{done.stderr}")
    return done.returncode, float(json.loads(done.stdout).get("seconds_since", 0.0))


def back_up(world: World) -> float:
    """Back up database and receipts alone, without the commands: by SQLite's own."""
    with closing(sqlite3.connect(world.database)) as source, closing(sqlite3.connect(world.folder / "backup.db")) as to:
        source.backup(to)
    shutil.copytree(world.data_dir / "receipts", world.folder / "receipts")
    return 0.0


def lose(world: World, other: World, kind: str) -> Path | None:
    """Let happen what the drill is about; returns the database to go on with, if that is another one."""
    if kind == "no database":
        return world.data_dir / "obscura.db"  # where a service looks that is not told
    if kind == "wrong database":
        shutil.copyfile(other.database, world.folder / "other.db")
        return world.folder / "other.db"
    if kind == "restored whole":  # its operator has kept the keys
        lost = world.data_dir.rename(world.folder / "lost")
        world.data_dir.mkdir(mode=0o700)
        shutil.copytree(lost / "keys", world.data_dir / "keys")
        shutil.copy(lost / "admin.key", world.data_dir / "admin.key")
    if kind.startswith("older database") or kind in BACKUPS:
        for suffix in ("", "-wal", "-shm"):
            world.database.with_name(world.database.name + suffix).unlink(missing_ok=True)
    if kind.startswith("older database"):
        (world.folder / "backup.db").rename(world.database)
    if kind in BACKUPS:
        kept = ["--keep-files"] if kind == "restored database" else []
        obscura(world, "restore", str(world.folder / "backup"), *kept)
    if kind == "older database and receipts":
        shutil.rmtree(world.data_dir / "receipts")
        (world.folder / "receipts").rename(world.data_dir / "receipts")
    return None


def holdings(data_dir: Path) -> Counter[str]:
    """Count the finished folders of releases and samples by digest, those in the trash included."""
    names = (*data_dir.glob("releases/rel_*"), *data_dir.glob("samples/smp_*"))
    trash = (*data_dir.glob("trash/*.releases.rel_*"), *data_dir.glob("trash/*.samples.smp_*"))
    return Counter(digest_directory(path) for path in (*names, *trash) if path.suffix != ".tmp")


def receipts_of(data_dir: Path) -> dict[str, int]:
    """What the newest receipt of every account says was spent."""
    accounts = [json.loads(path.read_bytes())["statement"]["account"] for path in data_dir.glob("receipts/acc_*.json")]
    return {account["id"]: account["spent_nano"] for account in accounts}


def look(
    world: World, database: Path | None, spent: dict[str, int], *, expect_work: bool, journals: Path | None = None
) -> tuple[list[str], int, str]:
    """Start the service on what is left, for at least one round of recovery; return what it says and how it ends.

    Args:
        world: to look at.
        database: of the service, where it is not the world's.
        spent: by account, what receipts prove.
        expect_work: what was accepted must come to its end, and something new, too.
        journals: a data folder with journals that prove what was spent; None: the world's own.

    Returns:
        Codes that stop trainings, how much is refunded unseen, and "works", "says" or "neither".
    """
    log = world.folder / "logs" / "api-1.log"
    said_before = log.stat().st_size
    worked = False
    with serving(world, database) as (services, client):
        stopped = client.transport.request("GET", "/v1/health/ready").json()["trainings"] == "stopped"
        if not stopped or expect_work:
            with suppress(TimeoutError, ObscuraClientError):
                worked = works(client)
        assert services.ready
    with open(log, "rb") as file:
        file.seek(said_before)
        says = b'"trainings_stopped"' in file.read()
    codes, unseen = judge(world, database, spent, journals)
    if stopped and says and codes:
        return codes, 0, "neither" if expect_work else "says"
    return codes, unseen, "works" if worked and not stopped else "neither"


def works(client: Client) -> bool:
    """Tell whether everything that was accepted ends, and a new training is published."""
    for job in list(client.jobs()):
        wait_for(client, job.id)
    return str(wait_for(client, train(client, dataset_of(client))).state) == "succeeded"


def judge(
    world: World, database: Path | None, spent: dict[str, int], journals: Path | None = None
) -> tuple[list[str], int]:
    """Compare what a database says with what journals and receipts prove, without believing any check of ours.

    Returns:
        The codes of the stops that stand, and of how many jobs and accounts it shows too little.
    """
    settings = world.settings(database)
    engine = make_engine(settings.database_url, pool_size=1)
    try:
        factory = make_session_factory(engine)
        with transaction(factory, read_only=True) as session:
            holds = session.execute(select(HoldRow.job_id, HoldRow.charged_nano)).all()
            accounts = session.execute(select(AccountRow.id, AccountRow.spent_nano)).all()
            codes = sorted({stop.code for stop in arming_stops(session)})
        charged = {row.job_id: row.charged_nano for row in holds}
        told = {row.id: row.spent_nano for row in accounts}
        storage = FolderStorage(journals or world.data_dir)
        shown = {job_id: journalled(storage, job_id).price_nano for job_id in journalled_jobs(storage)}
        short = sum(nano > charged.get(job_id, 0) for job_id, nano in shown.items())
        return codes, short + sum(nano > told.get(account_id, 0) for account_id, nano in spent.items())
    finally:
        engine.dispose()


def restores(
    wanted: int, seed: int, folder: Path, told: Callable[[Drill], None], kinds: tuple[str, ...] = KINDS
) -> dict[str, Any]:
    """Run drills, the kinds in turn; returns the figures.

    Args:
        wanted: how many.
        seed: of the moments.
        folder: for the installations; those of sound drills are removed.
        told: is called with each drill that has ended.
        kinds: KINDS or BACKUPS.
    """
    template, other = World(folder / "prepared"), World(folder / "other")
    busy_seconds = BUSY_TRAININGS * max(prepare(world) for world in (template, other))
    drills: list[Drill] = []
    for number in range(wanted):
        place = folder / f"drill-{number}"
        dice = random.Random(f"restore {seed} {number}")
        kind = kinds[number % len(kinds)]
        drills.append(run_drill(number, kind, template, other, place, dice, busy_seconds=busy_seconds))
        told(drills[-1])
        if drills[-1].sound:
            shutil.rmtree(place)
    return {
        "drills": len(drills),
        "by_kind": dict(Counter(drill.kind for drill in drills)),
        "by_end": dict(Counter(drill.end for drill in drills)),
        "releases_lost": sum(drill.releases_before - drill.releases_after for drill in drills),
        "refunds_unseen": sum(drill.refunded_unseen for drill in drills),
        "rpo_seconds": max(drill.rpo_seconds for drill in drills),
        "rto_seconds": max(drill.rto_seconds for drill in drills),
        "violated": not all(drill.sound for drill in drills),
        "rows": [asdict(drill) for drill in drills],
    }
