"""What trainings of Fashion-MNIST take as jobs of the service: seconds from request to release, and of processors.

Run `python -m benchmarks.job_seconds --json FILE` on a machine that does nothing else. The service is a process of its
own on SQLite in a fresh folder, all 60,000 images are sent to it once, and each preset is trained in turn. Processor
seconds are those of the service and of the job's process.
"""

from __future__ import annotations

import io
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.generator_runs import DELTA, here
from benchmarks.results import Results, Row, parser_of, show, since
from benchmarks.small_data import SETS, Folder
from benchmarks.uploads import processor_seconds
from obscura.client.local_service import LocalClient

# Recipe and preset, as they are named in rows.
ASKED = (("moments", "default"), ("datalens", "published"), ("datalens", "kernel"))
_ACCOUNT_EPSILON = 100.0


def sent(client: LocalClient, folder: Folder) -> str:
    """Open an account, declare a folder's private images and send them; returns the dataset's id."""
    account = client.create_account(
        name="timed", owner="benchmark", epsilon=_ACCOUNT_EPSILON, delta=DELTA, unit="record"
    )
    n, height, width = folder.images.shape[:3]
    sizes: dict[str, Any] = {"height": height, "width": width, "channels": 3 if folder.colour else 1}
    classes = list(folder.classes)
    dataset = client.declare_dataset(
        name="timed", visibility="private", classes=classes, records_declared=n, account_id=account.id, **sizes
    )
    content = io.BytesIO()
    np.savez(content, images=folder.images, labels=folder.labels)
    dataset.push([content.getvalue()], format="npz")
    return dataset.id


def timed(client: LocalClient, dataset_id: str, recipe: str, preset: str, epsilon: float) -> Row:
    """Train once as a job; returns a row."""
    process = client.service.process
    assert process is not None
    options = {} if preset == "default" else {"preset": preset}
    body = {"dataset_id": dataset_id, "recipe": recipe, "epsilon": epsilon, "options": options}
    before, started = processor_seconds(process.pid), time.monotonic()
    headers = {"Idempotency-Key": f"{recipe}-{preset}"}
    answer = client.transport.request("POST", "/v1/jobs", json=body, headers=headers)
    client.job(answer.json()["id"]).wait()
    used = processor_seconds(process.pid) - before
    facts = {"recipe": recipe, "preset": preset, "epsilon": epsilon}
    return facts | {"seconds": since(started), "processor_seconds": round(used, 1)}


def main(arguments: Sequence[str] | None = None) -> None:
    """Time each preset once, print the rows and, where asked, keep them as JSON."""
    parser = parser_of(__doc__)
    parser.add_argument("--dataset", choices=list(SETS), default="fashion")
    parser.add_argument("--preset", nargs="+", choices=sorted({preset for _, preset in ASKED}))
    parser.add_argument("--epsilon", type=float, default=1.0)
    given = parser.parse_args(arguments)
    folder = SETS[given.dataset]()
    results = Results(given.json, machine=here()[1], dataset=given.dataset, records=len(folder.labels))
    with tempfile.TemporaryDirectory(prefix="obscura-seconds-") as place, LocalClient(Path(place) / "data") as client:
        dataset_id = sent(client, folder)
        for recipe, preset in ASKED:
            if given.preset is None or preset in given.preset:
                results.put(timed(client, dataset_id, recipe, preset, given.epsilon))
    show(results.rows, ("recipe", "preset", "epsilon", "seconds", "processor_seconds"))


if __name__ == "__main__":
    main()
