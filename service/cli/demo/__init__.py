"""`obscura demo`: what `obscura quickstart` does, with Fashion-MNIST.

It then trains `datalens` on the same images, evaluates both releases on the public test set, and writes a summary.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from obscura.cli.console import CliError, Exit, Output
from obscura.cli.jobs import follow
from obscura.cli.quickstart import Onboarding, quoted
from obscura.client import Client, Release
from obscura.client.contents import require_room
from obscura.client.local_service import LocalService, running_at
from obscura.wire.job_schemas import PlanRecord
from obscura.wire.wording import show_percent, show_words
from service.cli.demo.images import DemoImages, find_images

EPSILON, LIMIT = 1.0, 1.5  # of each training, and of the account: two of 1 are 1.47 at delta 1e-5
TEACHERS = "datalens"
TEACHER_OPTIONS: dict[str, Any] = {"images": 750}  # a third of the votes, so that the demo stays short
COUNT = 2000
LOOK_SECONDS = 0.5
MARKER = "made-by-obscura-demo"
METHODS = ("logistic_regression", "mlp", "cnn")


def run_demo(out: Path, output: Output, *, images: str | None = None, keep: bool = False) -> None:
    """Fetch real images, train twice, evaluate, and write `summary.json`.

    Args:
        out: Folder of the results; earlier results of a demo are replaced.
        output: Results on stdout, progress on stderr.
        images: "fashion-mnist" or "digits"; None takes the first available.
        keep: Leave the service running until Ctrl-C.
    """
    seconds: dict[str, float] = {}
    began = time.monotonic()

    def done(phase: str) -> None:
        seconds[phase] = round(time.monotonic() - began - sum(seconds.values()), 1)

    folder = _fresh_folder(out)
    found = find_images(out.parent / "cache", output.notice, images)
    output.notice(f"Images: {found.name} ({found.source}).")
    program = f"obscura --data-dir {quoted(folder)}"
    with DemoService(folder, log=out / "service.log") as service, Client(service.url, service.token) as client:
        output.notice(f"\nRunning a service on {folder} for the time of this command:\n  $ {program} up")
        output.notice(f"The dashboard is at {service.url}/, the key to sign in with in {folder / 'admin.key'}.")
        done("setup")
        beside = f"{program} up, and beside it: "
        walk = Onboarding(
            client, output, found.folder, found.private, found.flags, program, beside, options=found.options
        )
        account = walk.account(LIMIT, found.delta)
        dataset = walk.declare(account, found.private_at_most)
        first_plan = walk.plan(dataset, account, EPSILON)
        walk.send(dataset)
        done("ingest")
        first = walk.train(dataset, EPSILON)
        done("first_job")
        sample = walk.draw(first, COUNT, out / "synthetic")
        download = sample.download(out / "synthetic-images.zip")  # its SHA-256 is checked
        done("sample")
        output.notice("\nNow the main job: teachers on shards of the same images vote on what a generator draws.")
        taught = dataclasses.replace(walk, recipe=TEACHERS, options={**found.options, **TEACHER_OPTIONS})
        plan = taught.plan(dataset, account.refresh(), EPSILON)
        release = taught.train(dataset, EPSILON)
        done("job")
        first, release = _measured(walk, found, (first, release))
        done("evaluation")
        runs = [_run(first_plan, first, seconds["first_job"]), _run(plan, release, seconds["job"])]
        (out / "privacy_card.json").write_text(json.dumps(release.card(), indent=2) + "\n", "utf-8")
        paths = {
            "download": str(download),
            "grid": str(out / "synthetic" / "grid.png"),
            "report": str(release.save_report(out / "report.html")),
            "privacy_card": str(out / "privacy_card.json"),
        }
        balance = client.account(account.id).balance
        summary = {
            "dataset": found.name,
            "dataset_source": found.source,
            **{name: runs[-1][name] for name in ("recipe", "epsilon", "teachers", "images_aggregated")},
            "delta": plan.delta,
            "unit": plan.unit,
            "adjacency": plan.adjacency,
            "price": plan.price_nano,
            "accuracy": release.summary.get("accuracy", {}),
            "evaluation": release.summary.get("evaluation", {}),
            "runs": runs,
            "capacity": balance.capacity_nano,
            "spent": balance.spent_nano,
            "spent_epsilon": balance.spent_epsilon,
            "seconds": seconds,
            "downloaded_images": COUNT,
            "peak_memory_bytes": service.peak_memory_bytes(),
            **paths,
            "release": release.id,
            "artifact_sha256": release.artifact_sha256,
        }
        (out / "summary.json").write_text(json.dumps(summary, indent=2) + "\n", "utf-8")
        _show(output, summary, out)
        if keep:
            output.notice(f"The service goes on at {service.url}/ until Ctrl-C.")
            service.wait()


def _measured(walk: Onboarding, found: DemoImages, releases: Sequence[Release]) -> list[Release]:
    name = f"{found.name}, test images"
    datasets = walk.client.datasets
    public = datasets.declare(found.public, name=name, account_id=None, at_most=found.public_at_most)
    datasets.send(public, found.public)
    for release in releases:
        command = f"evaluate {release.id} --on {quoted(name)} --wait"
        walk.say("Measuring it on public images, which costs nothing", command)
        follow(walk.output, release.evaluate(public.id).job())
    return [release.refresh() for release in releases]


def _run(plan: PlanRecord, release: Release, seconds: float) -> dict[str, Any]:
    """Return the row of one training; `seconds` from its request to its release."""
    return {
        "recipe": plan.recipe,
        "epsilon": plan.epsilon,
        "accuracy": release.summary.get("accuracy", {}).get("cnn"),
        "teachers": plan.buys.get("teachers", 0),
        "images_aggregated": release.summary.get("images_aggregated", plan.buys.get("images_to_aggregate", 0)),
        "iterations": plan.buys.get("iterations", 0),
        "seconds": seconds,
    }


def _show(output: Output, summary: dict[str, Any], out: Path) -> None:
    if output.as_json:
        output.record(summary, "summary")
        return
    measured = {name: summary["accuracy"].get(name) for name in METHODS}
    accuracies = {
        show_words(name): "-" if value is None else show_percent(value, up=False) for name, value in measured.items()
    }
    output.record(
        accuracies, f"accuracy on the public test images of {summary['dataset']}, of what learned images of {TEACHERS}"
    )
    output.rows(summary["runs"], tuple(summary["runs"][0]), "runs")
    output.record({show_words(name): summary[name] for name in ("download", "report", "privacy_card")}, "kept")
    output.text(f"All figures: {out / 'summary.json'}")


def _fresh_folder(out: Path) -> Path:
    folder = out / "service"
    if folder.exists():
        if not (folder / MARKER).is_file():
            raise CliError(f"{folder} was not made by a demo: choose another --out.", Exit.USAGE)
        if running_at(folder):
            raise CliError(f"A demo's service still runs on {folder}: stop it first.", Exit.OTHER)
        shutil.rmtree(folder)
        shutil.rmtree(out / "synthetic", ignore_errors=True)
    require_room(out / "synthetic")
    folder.mkdir(parents=True)
    (folder / MARKER).touch()
    return folder


class DemoService(LocalService):
    """Runs an embedded service during a block."""

    def __init__(self, folder: Path, *, log: Path) -> None:
        super().__init__(folder, log=log)
        self._peak_bytes = 0
        self._stopping = threading.Event()
        self._watch = threading.Thread(target=self._look, name="obscura-demo-memory", daemon=True)

    def __enter__(self) -> Self:
        super().__enter__()
        self._watch.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._stopping.set()
        super().__exit__(*_error)

    def peak_memory_bytes(self) -> int | None:
        """Peak resident memory of the service and its runners together; None if unknown."""
        return self._peak_bytes or None

    def _look(self) -> None:
        while self.process is not None and not self._stopping.wait(LOOK_SECONDS):
            self._peak_bytes = max(self._peak_bytes, resident_bytes(self.process.pid))


def resident_bytes(root: int) -> int:
    """Return the resident memory of a process and its descendants in bytes, from /proc; 0 if it has ended.

    Shared pages count once per process, so this overestimates.
    """
    parents: dict[int, int] = {}
    sizes: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()
        except OSError:
            continue  # it has just ended
        parents[int(folder.name)] = int(fields[1])
        sizes[int(folder.name)] = int(fields[21]) * os.sysconf("SC_PAGE_SIZE")
    total = 0
    for pid, size in sizes.items():
        ancestor = pid
        while ancestor not in (root, 0) and ancestor in parents:
            ancestor = parents[ancestor]
        total += size if ancestor == root else 0
    return total
