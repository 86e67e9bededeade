"""`obscura demo`: the main job from upload to private synthetic images, through a real service of its own."""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from obscura.cli.console import CliError, Exit, Output
from obscura.cli.jobs import follow, show_plan
from obscura.client import Client, Dataset, Release
from obscura.client.client import RECIPE
from obscura.client.local_service import running_at
from obscura.client.progress import byte_progress
from obscura.preparing import Package
from obscura.wire.job_schemas import PlanRecord
from obscura.wire.schemas import AccountRecord
from obscura.wire.wording import show_epsilon, show_percent, show_words
from service.cli.demo.images import DemoImages, find_images
from service.cli.demo.service import DemoService
from service.settings import Settings

ACCOUNT, EPSILON = "demo", 1.0
DOWNLOAD_COUNT = 2000
DOWNLOAD_SEED = 7
MARKER = "made-by-obscura-demo"
METHODS = ("logistic_regression", "mlp", "cnn")


@dataclass
class _Clock:
    """Seconds of each phase."""

    seconds: dict[str, float] = field(default_factory=dict)
    _began: float = field(default_factory=time.monotonic)

    def done(self, phase: str) -> None:
        """The phase ended now, and the next one begins."""
        now = time.monotonic()
        self.seconds[phase] = round(now - self._began, 1)
        self._began = now


@dataclass(frozen=True)
class _Trained:
    """What the service gave back."""

    release: Release
    account: AccountRecord
    plan: PlanRecord
    paths: dict[str, str]


def run_demo(out: Path, output: Output, *, images: str | None = None, keep: bool = False) -> None:
    """Find real images, open an account, push, plan, train, publish, sample, evaluate, and write `summary.json`.

    Args:
        out: Where everything goes; a demo's earlier output there is replaced.
        output: Where to write; results on stdout, progress on stderr.
        images: "fashion-mnist" or "digits"; None takes the first that can be had.
        keep: Leave the service running until Ctrl-C.

    Raises:
        CliError: The folder is somebody else's, the images cannot be had, or the service does not start.
        JobFailed: A job failed.
    """
    clock = _Clock()
    data_dir = _fresh_folder(out)
    found = find_images(out.parent / "cache", output.notice, images)
    at_most = f"{found.private_at_most} private and {found.public_at_most} public at most"
    output.notice(f"Images: {found.name} ({found.source}), {at_most}.")
    with DemoService(data_dir, log=out / "service.log") as service:
        output.notice(f"Service: {service.url} (log: {out / 'service.log'}). The dashboard is at {service.url}/")
        output.notice(f"To sign in there, use the key in {Settings(data_dir=data_dir).admin_key_path}.")
        clock.done("setup")
        with Client(service.url, service.token) as client:
            trained = _main_job(client, output, clock, found, out)
        summary = _summary(found, trained, clock, service.peak_memory_bytes())
        (out / "summary.json").write_text(json.dumps(summary, indent=2) + "\n", "utf-8")
        _show(output, summary, service.url, out)
        if keep:
            output.notice(f"The service goes on at {service.url}/ until Ctrl-C.")
            service.wait()


def _main_job(client: Client, output: Output, clock: _Clock, found: DemoImages, out: Path) -> _Trained:
    account = client.create_account(name=ACCOUNT, owner="demo", epsilon=EPSILON, delta=found.delta, unit="record")
    private = _push(client, output, found, found.private, account_id=account.id)
    public = _push(client, output, found, found.public, account_id=None)
    clock.done("ingest")
    plan = client.plan(private.id, recipe=RECIPE, epsilon=EPSILON, options=found.options)
    if not output.as_json:
        show_plan(output, plan)
    job = client.start_training(
        private.id, recipe=RECIPE, epsilon=EPSILON, options=found.options, evaluation_dataset_id=public.id
    )
    release = follow(output, job, "training").release()
    clock.done("job")
    output.notice(f"Release {release.id} is there: it can be downloaded while it is being evaluated.")
    sample = release.sample(count=DOWNLOAD_COUNT, seed=DOWNLOAD_SEED, format="imagefolder").wait()
    with byte_progress(output.err, "downloading", sample.bytes) as on_bytes:
        download = sample.download(out / "synthetic-images.zip", on_bytes)  # its SHA-256 is checked
    clock.done("sample")
    for evaluation in release.evaluations():
        follow(output, evaluation.job(), "evaluation")
    release = release.refresh()
    clock.done("evaluation")
    card = out / "privacy_card.json"
    card.write_text(json.dumps(release.card(), indent=2) + "\n", "utf-8")
    paths = {
        "download": str(download),
        "grid": str(release.save_grid(out / "grid.png")),
        "report": str(release.save_report(out / "report.html")),
        "privacy_card": str(card),
    }
    return _Trained(release, client.account(account.id), plan, paths)


def _push(client: Client, output: Output, found: DemoImages, package: Package, *, account_id: str | None) -> Dataset:
    """Declare and upload; classes, size and number are public facts about these well-known images."""
    private = account_id is not None
    dataset = client.declare_dataset(
        name=f"{found.name}, {'training' if private else 'evaluation'} images",
        visibility="private" if private else "public",
        account_id=account_id,
        classes=list(found.classes),
        height=package.height,
        width=package.width,
        channels=package.channels,
        records_declared=found.private_at_most if private else found.public_at_most,
    )
    output.notice(f"Uploading {dataset.visibility} dataset {dataset.id} ...")
    return dataset.push(package.open(), format=package.format)


def _summary(found: DemoImages, trained: _Trained, clock: _Clock, peak_memory_bytes: int | None) -> dict[str, Any]:
    plan, account, measured = trained.plan, trained.account, trained.release.summary
    evaluation = measured.get("evaluation", {})
    return {
        "dataset": found.name,
        "dataset_source": found.source,
        "recipe": plan.recipe,
        "epsilon": plan.epsilon,
        "delta": plan.delta,
        "unit": plan.unit,
        "adjacency": plan.adjacency,
        "capacity": account.balance.capacity_nano,
        "price": plan.price_nano,
        "spent": account.balance.spent_nano,
        "spent_epsilon": account.balance.spent_epsilon,
        "teachers": plan.buys.get("teachers"),
        "images_aggregated": measured.get("images_aggregated", plan.buys.get("images_to_aggregate")),
        "seconds": clock.seconds,
        "accuracy": measured.get("accuracy", {}),
        "accuracy_warm_start_only": measured.get("accuracy_warm_start_only", {}),
        "evaluation": evaluation,
        "downloaded_images": DOWNLOAD_COUNT,
        "peak_memory_bytes": peak_memory_bytes,
        **trained.paths,
        "release": trained.release.id,
        "artifact_sha256": trained.release.artifact_sha256,
    }


def _show(output: Output, summary: dict[str, Any], url: str, out: Path) -> None:
    if output.as_json:
        output.record(summary, "summary")
        return
    warm = summary["accuracy_warm_start_only"]
    accuracies = {
        f"{show_words(name)}, trained on synthetic images": _percent(summary["accuracy"].get(name))
        + (f" (warm start only: {_percent(warm[name])})" if name in warm else "")
        for name in METHODS
    }
    output.record(accuracies, f"accuracy on the public {summary['dataset']} test images")
    output.record(
        {
            "guarantee": f"epsilon {summary['epsilon']:g}, delta {summary['delta']:g}, unit {summary['unit']}",
            "spent": f"epsilon {show_epsilon(summary['spent_epsilon'], up=True)}, {summary['spent']} of "
            f"{summary['capacity']} nano-units",
            "images": f"{summary['download']} ({summary['downloaded_images']} images, SHA-256 verified)",
            "sample grid": summary["grid"],
            "report": summary["report"],
            "summary": str(out / "summary.json"),
            "dashboard": f"{url}/ while the demo runs; again with: obscura --data-dir {out / 'service'} up, "
            "which prints a link that signs in",
        },
        "done",
    )


def _percent(value: float | None) -> str:
    return "-" if value is None else show_percent(value, up=False)


def _fresh_folder(out: Path) -> Path:
    """Make room for the service's data. A demo's earlier data is removed; anybody else's is left alone.

    Raises:
        CliError: The folder holds something that no demo made.
    """
    data_dir = out / "service"
    if data_dir.exists():
        if not (data_dir / MARKER).is_file():
            raise CliError(f"{data_dir} was not made by a demo: choose another --out.", Exit.USAGE)
        if running_at(data_dir):
            raise CliError(f"A demo's service still runs on {data_dir}: stop it first.", Exit.OTHER)
        shutil.rmtree(data_dir)
    data_dir.mkdir(parents=True)
    (data_dir / MARKER).touch()
    return data_dir
