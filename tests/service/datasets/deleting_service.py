"""A service in one process, asked by its own routes. Given: the data folder, "delete" or "state", and the dataset."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fastapi.testclient import TestClient

from service.main import create_app
from service.settings import Settings


def main() -> None:
    data_dir, action, dataset_id = Path(sys.argv[1]), *sys.argv[2:]
    app = create_app(Settings(data_dir=data_dir, mode="celery"), send=_nobody_listens)
    with TestClient(app) as client:
        client.headers["Authorization"] = f"Bearer {(data_dir / 'admin.key').read_text().strip()}"
        method = {"delete": "DELETE", "state": "GET"}[action]
        sys.stdout.write(client.request(method, f"/v1/datasets/{dataset_id}").json()["state"])


def _nobody_listens(name: str, args: Sequence[Any]) -> None:
    raise ConnectionRefusedError(name, args)


if __name__ == "__main__":
    main()
