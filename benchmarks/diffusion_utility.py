"""What a diffusion model's images are worth, trained in pieces that each take so many minutes.

Run `python -m benchmarks.diffusion_utility --folder FOLDER --dataset fashion --epsilon 1 --minutes 9
--option preset=fashion_mnist_moments` again and again: each call goes on from the folder's checkpoint until its minutes
are over, which must suffice for what comes before the private steps. The call in which the training ends draws
synthetic images, trains three classifiers on them by the evaluation's fixed protocol, tests them once on the test
images, and writes result.json and grid.png; of a training that began with moments, it also measures what these alone
draw. `--development` tests on training images that are held out, for choosing settings. `--option` is a recipe's, as on
the command line.
"""

from __future__ import annotations

import argparse
import json
import platform
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from benchmarks.generator_runs import DELTA
from benchmarks.small_data import DEVELOPMENT, SETS, Folder, channels_first, facts_of
from models.portable.edm import EdmDenoiser, losses
from models.released import load_released, save_released
from privacy.accounting.filter import open_filter
from privacy.plans.budget import PlanBudget
from privacy.plans.dp_diffusion.plan import DpDiffusionConfig
from privacy.plans.plan import Plan
from privacy.plans.private_steps import STEPS, poisson_event
from privacy.plans.registry import build_plan
from workers.evaluation.grid import write_grid
from workers.evaluation.utility import train_and_test
from workers.recipes.dp_diffusion.loop import noise_rows, train
from workers.recipes.interface import Cancelled, Run, TrainingData

CHECKPOINT, SECRET, LOG = "checkpoint.pt", "secret", "pieces.json"


class OneFile:
    """A checkpoint in one file (`workers.recipes.interface.CheckpointFolder`)."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def replace(self, write: Callable[[BinaryIO], None]) -> None:
        """Write a new one, then put it in the place of the old one."""
        partial = self._path.with_suffix(".part")
        with partial.open("wb") as file:
            write(file)
        partial.replace(self._path)

    def open(self) -> BinaryIO | None:
        """Open it, if it is there."""
        return self._path.open("rb") if self._path.exists() else None


class Clock:
    """Progress that ends a piece when its time is over, and knows how many steps were made in it."""

    def __init__(self, seconds: float) -> None:
        self.began, self._seconds = time.monotonic(), seconds
        self.step_times: list[float] = []

    def __call__(self, *, stage: str, step: int, steps: int) -> None:
        """Say where it is, now and then.

        Raises:
            Cancelled: the time is over.
        """
        now = time.monotonic()
        if stage == STEPS:
            self.step_times.append(now)
        if step % max(1, steps // 50) == 0:
            print(f"  {stage} {step} of {steps} ({now - self.began:.0f} s)", flush=True)
        if now - self.began > self._seconds:
            raise Cancelled

    def seconds_a_step(self) -> float | None:
        """Median time between two steps' reports."""
        gaps = sorted(b - a for a, b in zip(self.step_times, self.step_times[1:], strict=False))
        return gaps[len(gaps) // 2] if gaps else None


def plain_step_seconds(denoiser: EdmDenoiser, rows: int, device: torch.device) -> float:
    """Time a step without privacy on so many rows, in passes of 1,024: the best of three."""
    shape, found = denoiser.config, []
    images = torch.rand(min(rows, 1024), shape.channels, shape.height, shape.width, device=device) * 2 - 1
    labels = torch.zeros(len(images), dtype=torch.int64, device=device)
    stream = torch.Generator(device).manual_seed(0)
    denoiser.to(device).train()
    for _ in range(3):
        started = time.monotonic()
        for _ in range(max(1, rows // len(images))):
            inputs, targets = noise_rows(denoiser, images, labels, drop=0.1, stream=stream)
            losses(denoiser(inputs), targets).mean().backward()  # type: ignore[no-untyped-call]
        if device.type == "cuda":
            torch.cuda.synchronize()
        found.append(time.monotonic() - started)
    denoiser.zero_grad(set_to_none=True)
    return min(found)


def piece(folder: Path, data: Folder, plan: Plan, minutes: float, device: torch.device) -> Clock | None:
    """Train for so many minutes. Returns the clock of the piece that ended the training, None where it goes on."""
    secret_file, pieces = folder / SECRET, json.loads((folder / LOG).read_text()) if (folder / LOG).exists() else []
    if not secret_file.exists():
        secret_file.write_bytes(secrets.token_bytes(32))
    clock = Clock(60 * minutes)
    declared = facts_of(data)
    run = Run(
        plan=plan,
        facts=declared,
        data=TrainingData(data.images, data.labels, declared.classes),
        budget=PlanBudget(plan.stages, capacity_nano=2 * plan.price_nano),  # public images: repeated steps may cost
        secret=secret_file.read_bytes(),
        attempt=len(pieces) + 1,
        progress=clock,
        checkpoints=OneFile(folder / CHECKPOINT),
        device=device,
    )
    try:
        denoiser = train(run)
    except Cancelled:
        denoiser = None
    pieces.append({"seconds": round(time.monotonic() - clock.began, 1), "steps": len(clock.step_times)})
    (folder / LOG).write_text(json.dumps(pieces) + "\n", encoding="utf-8")
    if denoiser is None:
        return None
    (folder / "released").mkdir(exist_ok=True)
    save_released(denoiser, folder / "released")
    return clock


def measure(folder: Path, data: Folder, samples: int, seed: int, device: torch.device) -> dict[str, Any]:
    """Draw, train classifiers to the last step, and test them once."""
    generator, classes = load_released(folder / "released"), len(data.classes)
    generator.to(device)
    labels, started = torch.arange(samples) % classes, time.monotonic()
    stream = torch.Generator().manual_seed(seed)
    drawn = torch.cat([generator.sample(part.to(device), stream).cpu() for part in torch.split(labels, 2048)])
    seconds = time.monotonic() - started
    shown = torch.cat([drawn[labels == label][:10] for label in range(classes)])
    write_grid(shown, data.classes, folder / "grid.png")
    test, truth = channels_first(data.test_images), torch.from_numpy(data.test_labels)

    def accuracy(images: Tensor) -> dict[str, float]:
        pixels = (images * 255).round().byte()
        return {
            kind: train_and_test(kind, pixels, labels, test, truth, classes=classes, seed=seed, device=device).accuracy
            for kind in ("logistic_regression", "mlp", "cnn")
        }

    found: dict[str, Any] = {"samples": samples, "images_a_second": round(samples / seconds, 1), "seed": seed}
    found["accuracy"] = accuracy(drawn)
    if isinstance(generator, EdmDenoiser) and generator.config.start_latent:  # what the diffusion must improve on
        found["accuracy_of_moments"] = accuracy(generator.cpu().first.sample(labels, stream))
    return found


def main() -> None:
    """Go on with a training, and measure it once it has ended."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="of one training; git should ignore it")
    parser.add_argument("--dataset", choices=list(SETS), default="fashion")
    parser.add_argument("--epsilon", type=float, required=True)
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--samples", type=int, default=30_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--delta", type=float, default=DELTA)
    parser.add_argument("--development", action="store_true")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    data = (DEVELOPMENT if given.development else SETS)[given.dataset]()
    privacy_filter = open_filter(given.epsilon, given.delta)
    options = dict(setting.split("=", 1) for setting in given.option)
    chosen: dict[str, Any] = {name: value if name == "preset" else json.loads(value) for name, value in options.items()}
    plan = build_plan("dp_diffusion", chosen, privacy_filter, privacy_filter.capacity_nano, facts_of(data))
    clock = None if (given.folder / "released").exists() else piece(given.folder, data, plan, given.minutes, device)
    if not (given.folder / "released").exists():
        print("the training goes on: run this again", flush=True)
        return
    event = poisson_event(plan.stage(STEPS))
    document: dict[str, Any] = {
        "dataset": given.dataset,
        "development": given.development,
        "epsilon": given.epsilon,
        "delta": given.delta,
        "options": chosen,
        "noise_multiplier": event.noise_multiplier,
        "steps": event.count,
        "machine": torch.cuda.get_device_name() if device.type == "cuda" else f"{platform.machine()} CPU",
        "torch": torch.__version__,
        "pieces": json.loads((given.folder / LOG).read_text(encoding="utf-8")),
        **measure(given.folder, data, given.samples, given.seed, device),
    }
    denoiser = load_released(given.folder / "released")
    assert isinstance(denoiser, EdmDenoiser)
    rows = round(event.sampling_probability * len(data.labels)) * plan.config_of(DpDiffusionConfig).multiplicity
    document["plain_step_seconds"] = plain_step_seconds(denoiser, rows, device)
    document["private_step_seconds"] = None if clock is None else clock.seconds_a_step()
    (given.folder / "result.json").write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(document["accuracy"]), flush=True)


if __name__ == "__main__":
    main()
