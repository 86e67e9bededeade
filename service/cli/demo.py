"""`obscura demo`: run the steps of `obscura quickstart` with Fashion-MNIST or scikit-learn's digits.

The demo then trains `datalens` on the same images, evaluates both releases on the public test set, and summarises.
torch and scikit-learn run in separate processes, with short timeouts.
"""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from models.public_images import FASHION_CLASSES
from obscura.cli.console import CliError, Exit, Output
from obscura.cli.jobs import follow
from obscura.cli.quickstart import Onboarding, quoted
from obscura.client import Client, Release
from obscura.client.contents import require_room
from obscura.client.local_service import LocalService, running_at
from obscura.preparing import Choices, Package, prepare
from obscura.wire.budgets import usual_delta
from obscura.wire.job_schemas import PlanRecord
from obscura.wire.wording import show_percent, show_words

TEACHERS = "datalens"
TEACHER_OPTIONS: dict[str, Any] = {"images": 750}  # a third of the votes, to keep the demo short
COUNT = 2000
MARKER = "made-by-obscura-demo"
METHODS = ("logistic_regression", "mlp", "cnn")

DEBIAN_FOLDER = Path("/usr/share/datasets/fashion-mnist")
DEBIAN_PACKAGE = "dataset-fashion-mnist"
APT_SECONDS_MAX = 60
DOWNLOAD_SECONDS_MAX = 180
CONNECT_SECONDS_MAX = 10
DIGITS_SECONDS_MAX = 60

# SHA-256 of the uncompressed files; the packages compress them differently.
CHECKSUMS = {
    "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
}

_TORCHVISION = f"""
import socket, sys
socket.setdefaulttimeout({CONNECT_SECONDS_MAX})
from torchvision.datasets import FashionMNIST
FashionMNIST(sys.argv[1], download=True)  # checks MD5 sums
"""
# A fixed split: every fifth image is public and used for evaluation. Enlarged, because 8 x 8 pixels look like noise.
_DIGITS = """
import sys
from pathlib import Path
import numpy as np
from PIL import Image
from sklearn.datasets import load_digits
digits = load_digits()
small = np.round(digits.images * (255 / 16)).astype(np.uint8)
images = np.stack([np.asarray(Image.fromarray(each).resize((16, 16), Image.Resampling.BICUBIC)) for each in small])
public = np.arange(len(images)) % 5 == 0
for name, chosen in (("digits", ~public), ("test", public)):
    np.savez(Path(sys.argv[1]) / f"{name}.npz", images=images[chosen], labels=digits.target[chosen].astype(np.int64))
"""


@dataclass(frozen=True)
class DemoImages:
    name: str
    source: str  # where the files came from
    folder: Path  # training images, for `obscura datasets push` with `flags`
    flags: str
    private: Package
    public: Package
    private_at_most: int
    public_at_most: int
    epsilon: float  # of each training, a third of the account's: at this size, people recognise the images
    evaluation_samples: int  # few, so that the demo takes minutes


def run_demo(
    out: Path,
    output: Output,
    *,
    images: str | None = None,
    keep: bool = False,
    count: int = COUNT,
    options: Mapping[str, Any] = {},
    teacher_options: Mapping[str, Any] = TEACHER_OPTIONS,
) -> None:
    """Fetch real images, train twice, evaluate, and write `summary.json`. Replaces the results of an earlier demo.

    Args:
        images: "fashion-mnist", "digits", or None for the first that is available.
        keep: run the service until Ctrl-C.
        count: number of images to generate.
        options: further options of both trainings; `teacher_options` apply only to the second training.
    """
    seconds: dict[str, float] = {}
    began = time.monotonic()

    def done(phase: str) -> None:
        seconds[phase] = round(time.monotonic() - began - sum(seconds.values()), 1)

    folder = out / "service"
    if folder.exists():
        if not (folder / MARKER).is_file():
            raise CliError(f"{folder} was not created by a demo: choose another --out.", Exit.USAGE)
        if running_at(folder):
            raise CliError(f"A demo's service still runs on {folder}: stop it first.", Exit.OTHER)
        shutil.rmtree(folder)
        shutil.rmtree(out / "synthetic", ignore_errors=True)
    require_room(out / "synthetic")
    folder.mkdir(parents=True)
    (folder / MARKER).touch()
    found = find_images(out.parent / "cache", output.notice, images)
    options = {"evaluation_samples": found.evaluation_samples, **options}
    output.notice(f"Images: {found.name} ({found.source}).")
    program = f"obscura --data-dir {quoted(folder)}"
    with LocalService(folder, log=out / "service.log") as service, Client(service.url, service.token) as client:
        output.notice(f"\nRunning a service on {folder} while this command runs:\n  $ {program} up")
        output.notice(f"The dashboard is at {service.url}/, with its sign-in key in {folder / 'admin.key'}.")
        done("setup")
        later = f"{program} up, and in a second terminal: {program}"
        walk = Onboarding(client, output, found.folder, found.private, found.flags, program, later, options=options)
        account = walk.account(3 * found.epsilon, usual_delta(found.private_at_most))
        dataset = walk.declare(account, found.private_at_most)
        first_plan = walk.plan(dataset, account, found.epsilon)
        walk.send(dataset)
        done("ingest")
        first = walk.train(dataset, found.epsilon)
        done("first_job")
        sample = walk.draw(first, count, out / "synthetic")
        download = sample.download(out / "synthetic-images.zip")  # its SHA-256 is checked
        done("sample")
        output.notice("\nNow the main job: teachers on shards of the same images vote on the images of a generator.")
        taught = dataclasses.replace(walk, recipe=TEACHERS, options={**options, **teacher_options})
        plan = taught.plan(dataset, account.refresh(), found.epsilon)
        release = taught.train(dataset, found.epsilon)
        done("job")
        first, release = _measured(walk, found, (first, release))
        done("evaluation")
        runs = [_row(first_plan, first, seconds["first_job"]), _row(plan, release, seconds["job"])]
        (out / "privacy_card.json").write_text(json.dumps(release.card(), indent=2) + "\n", "utf-8")
        balance = client.accounts.get(account.id).balance
        summary = {
            "dataset": found.name,
            "dataset_source": found.source,
            **{name: runs[-1][name] for name in ("recipe", "epsilon", "teachers", "images_aggregated")},
            "delta": plan.delta,
            "unit": plan.unit,
            "adjacency": plan.adjacency,
            "price": plan.cost_nano,
            "accuracy": release.summary.get("accuracy", {}),
            "evaluation": release.summary.get("evaluation", {}),
            "runs": runs,
            "capacity": balance.capacity_nano,
            "spent": balance.spent_nano,
            "spent_epsilon": balance.spent_epsilon,
            "seconds": seconds,
            "downloaded_images": count,
            "download": str(download),
            "grid": str(out / "synthetic" / "grid.png"),
            "report": str(release.save_report(out / "report.html")),
            "privacy_card": str(out / "privacy_card.json"),
            "release": release.id,
            "artifact_sha256": release.artifact_sha256,
        }
        (out / "summary.json").write_text(json.dumps(summary, indent=2) + "\n", "utf-8")
        if output.as_json:
            output.record(summary, "summary")
        else:
            _show(output, summary, out)
        if keep and service.process is not None:
            output.notice(f"The service keeps running at {service.url}/ until Ctrl-C.")
            service.process.wait()


def _measured(walk: Onboarding, found: DemoImages, releases: Sequence[Release]) -> list[Release]:
    name = f"{found.name}, test images"
    datasets = walk.client.datasets
    public = datasets.declare(found.public, name=name, account_id=None, at_most=found.public_at_most)
    datasets.send(public, found.public)
    for release in releases:
        command = f"evaluate {release.id} --on {quoted(name)} --wait"
        walk.say("Measuring the release on public images, which costs nothing", command)
        follow(walk.output, release.evaluate(public.id).job())
    return [release.refresh() for release in releases]


def _row(plan: PlanRecord, release: Release, seconds: float) -> dict[str, Any]:
    return {
        "recipe": plan.recipe,
        "epsilon": plan.epsilon,
        "accuracy": release.summary.get("accuracy", {}).get("cnn"),
        "teachers": plan.facts.get("teachers", 0),
        "images_aggregated": release.summary.get("images_aggregated", plan.facts.get("images_to_aggregate", 0)),
        "iterations": plan.facts.get("iterations", 0),
        "seconds": seconds,
    }


def _show(output: Output, summary: dict[str, Any], out: Path) -> None:
    measured = {show_words(name): summary["accuracy"].get(name) for name in METHODS}
    accuracies = {name: "-" if value is None else show_percent(value) for name, value in measured.items()}
    title = f"accuracy on public test images of {summary['dataset']}, after training on images of {TEACHERS}"
    output.record(accuracies, title)
    output.rows(summary["runs"], tuple(summary["runs"][0]), "runs")
    output.record({show_words(name): summary[name] for name in ("download", "report", "privacy_card")}, "kept")
    output.text(f"All figures: {out / 'summary.json'}")


def find_images(
    cache: Path,
    say: Callable[[str], None],
    wanted: str | None = None,
    *,
    download_seconds_max: float = DOWNLOAD_SECONDS_MAX,
) -> DemoImages:
    """Find the images named `wanted`. For None, find Fashion-MNIST, or fall back to the digits and report this."""
    if wanted not in (None, "fashion-mnist", "digits"):
        raise CliError("--images takes fashion-mnist or digits.")
    if wanted != "digits":
        for source, folder in _fashion_folders(cache / "fashion-mnist", say, download_seconds_max):
            if is_fashion_mnist(folder):
                return DemoImages(
                    name="Fashion-MNIST",
                    source=source,
                    folder=folder,
                    flags=f" --split train --classes '{','.join(FASHION_CLASSES)}'",
                    private=prepare(folder, Choices(split="train", classes=FASHION_CLASSES)),
                    public=prepare(folder, Choices(split="t10k", classes=FASHION_CLASSES)),
                    private_at_most=60_000,
                    public_at_most=10_000,
                    epsilon=1.0,
                    evaluation_samples=10_000,
                )
        if wanted == "fashion-mnist":
            raise CliError("Fashion-MNIST was found neither here, nor in Debian's archive, nor by torchvision.")
        say("Fashion-MNIST was not found; falling back to scikit-learn's bundled digits (1,797 real images).")
    say("These digits are public. So few need epsilon 10 to be recognisable; for people, use more images instead.")
    folder = cache / "digits"
    folder.mkdir(parents=True, exist_ok=True)
    _run([sys.executable, "-c", _DIGITS, str(folder)], DIGITS_SECONDS_MAX)
    if not (folder / "test.npz").is_file():
        raise CliError("scikit-learn's digits could not be loaded: is scikit-learn installed (`make setup`)?")
    return DemoImages(
        name="digits",
        source="scikit-learn",
        folder=folder / "digits.npz",
        flags="",
        private=prepare(folder / "digits.npz"),
        public=prepare(folder / "test.npz"),
        private_at_most=1500,
        public_at_most=400,
        epsilon=10.0,
        evaluation_samples=2000,
    )


def is_fashion_mnist(folder: Path) -> bool:
    try:
        for name, digest in CHECKSUMS.items():
            packed = folder / f"{name}.gz"
            with gzip.open(packed) if packed.is_file() else (folder / name).open("rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != digest:
                    return False
    except OSError:
        return False
    return True


def _fashion_folders(
    cache: Path, say: Callable[[str], None], download_seconds_max: float
) -> Iterator[tuple[str, Path]]:
    yield "files on this machine", Path(os.environ.get("OBSCURA_FASHION_MNIST", str(DEBIAN_FOLDER)))
    unpacked, downloaded = cache / DEBIAN_FOLDER.relative_to("/"), cache / "FashionMNIST" / "raw"
    yield from (("local cache", folder) for folder in (unpacked, downloaded))
    cache.mkdir(parents=True, exist_ok=True)
    if shutil.which("apt-get") and shutil.which("dpkg-deb"):
        say("Looking for Fashion-MNIST in Debian's archive ...")
        limits = [f"-oAcquire::http::Timeout={CONNECT_SECONDS_MAX}", "-oAcquire::Retries=0"]
        _run(["apt-get", "-qq", *limits, "download", DEBIAN_PACKAGE], APT_SECONDS_MAX, cwd=cache)
        for package in cache.glob("*.deb"):
            _run(["dpkg-deb", "-x", str(package), str(cache)], APT_SECONDS_MAX)
            package.unlink()
        yield "Debian package", unpacked
    say("Looking for Fashion-MNIST with torchvision ...")
    _run([sys.executable, "-c", _TORCHVISION, str(cache)], download_seconds_max)
    yield "torchvision", downloaded


def _run(command: list[str], seconds_max: float, cwd: Path | None = None) -> None:
    quiet = subprocess.DEVNULL
    with suppress(subprocess.TimeoutExpired, OSError):
        subprocess.run(command, cwd=cwd, stdin=quiet, stdout=quiet, stderr=quiet, timeout=seconds_max, check=False)
