"""An installation as it was in November 2026, before its rooms were moved: what it stored, and what it answered.

`november.tar.gz` holds a data folder with its SQLite database: four trainings of three recipes, a sweep, samples, an
evaluation, a preview, a cancelled and a deleted thing, raises and admins that were approved, declined and still wait.
Commit 2ebb1fb wrote it through its own HTTP interface, and `november.json` by this file as a module.
It is not written anew: what later code answers of it must be what was answered then.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from service.main import create_app
from service.settings import Settings
from tests.service.reading_routes import TestClient

HERE = Path(__file__).parent
ARCHIVE, ANSWERS = HERE / "november.tar.gz", HERE / "november.json"
NOW = datetime(2026, 11, 25, 17, 30, tzinfo=UTC)
COLLECTIONS = (
    "accounts",
    "datasets",
    "jobs",
    "sweeps",
    "releases",
    "limit-requests",
    "admins",
    "admin-requests",
    "keys",
)
RELEASE_PARTS = ("card", "receipt", "evaluations", "report.json", "report.html", "grid.png")
STORED = {  # what is for ever, by table: bytes of the log, and JSON of jobs and releases
    "entries": "sequence, account_id",
    "jobs": "id",
    "releases": "id",
}


def settings_of(folder: Path) -> Settings:
    """Settings with which no worker starts by itself."""
    return Settings(data_dir=folder, mode="celery")


@contextmanager
def unpacked() -> Iterator[Path]:
    """The data folder, in a temporary one."""
    with tempfile.TemporaryDirectory() as temporary, tarfile.open(ARCHIVE) as archive:
        archive.extractall(temporary, filter="tar")
        yield Path(temporary) / "installation"


@contextmanager
def opened(folder: Path) -> Iterator[TestClient]:
    """A service on it, at the time at which it was left, as its first admin sees it."""
    app = create_app(settings_of(folder), clock=lambda: NOW, send=lambda _name, _arguments: None)
    with TestClient(app, base_url="http://127.0.0.1:8420") as client:
        client.headers["Authorization"] = f"Bearer {(folder / 'admin.key').read_text().strip()}"
        assert app.state.warning is None
        yield client


def answers(client: TestClient) -> dict[str, Any]:
    """What every address answers that holds something: JSON as it is, other files by their SHA-256."""
    found: dict[str, Any] = {}

    def ask(path: str) -> Any:
        answer = client.get(f"/v1/{path}")
        is_json = answer.headers["content-type"].endswith("json")
        found[path] = answer.json() if is_json else hashlib.sha256(answer.content).hexdigest()
        return found[path]

    items = {name: ask(f"{name}?limit=100" if name != "admins" else name)["items"] for name in COLLECTIONS}
    for name in ("accounts", "datasets", "jobs", "sweeps", "releases", "limit-requests"):
        for item in items[name]:
            ask(f"{name}/{item['id']}")
    for account in items["accounts"]:
        ask(f"accounts/{account['id']}/entries?limit=100")
    for job in items["jobs"]:
        if job["sample_id"] is not None:
            ask(f"samples/{job['sample_id']}")
            ask(f"samples/{job['sample_id']}/content")
    for release in items["releases"]:
        for part in RELEASE_PARTS:  # where a release lacks it, the problem document
            ask(f"releases/{release['id']}/{part}")
    return found


def stored(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """The rows of the tables that are for ever, bytes as hexadecimal digits."""
    with sqlite3.connect(folder / "obscura.db") as database:
        database.row_factory = sqlite3.Row
        return {
            table: [
                {name: value.hex() if isinstance(value, bytes) else value for name, value in dict(row).items()}
                for row in database.execute(f"SELECT * FROM {table} ORDER BY {order}")
            ]
            for table, order in STORED.items()
        }


def main() -> None:
    """Write what the code of today answers of it."""
    with unpacked() as folder:
        before = stored(folder)
        with opened(folder) as client:
            document = {"stored": before, "answers": answers(client)}
    ANSWERS.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n", "utf-8")


if __name__ == "__main__":
    main()
