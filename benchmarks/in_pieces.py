"""Trainings and judges that need hours of a GPU, in pieces of some minutes.

Run `python -m benchmarks.in_pieces --job diffusion_fashion_10 --minutes 8` again and again: each call resumes from the
folder's checkpoint until its minutes are over and the next checkpoint is written. The call in which the training ends
draws synthetic images, lets classifiers learn them to the last step, tests these once on the test images, and writes
result.json and grid.png. JOBS has what waits for a GPU.
"""

from __future__ import annotations

import argparse
import json
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from benchmarks.deep_classifiers import SHAPES, judged
from benchmarks.dpimagebench import DELTA as DELTA_THERE
from benchmarks.dpimagebench import SAMPLES as SAMPLES_THERE
from benchmarks.dpimagebench import private_part
from benchmarks.generator_runs import DELTA, draw, here
from benchmarks.small_data import SETS, Folder, channels_first, facts_of
from models.classifiers import CLASSIFIER_KINDS
from models.portable.edm import EdmDenoiser
from models.released import load_released
from privacy.accounting.filter import open_filter
from privacy.plans.plan import Plan, PlanBudget
from privacy.plans.private_steps import STEPS, poisson_event
from privacy.plans.registry import build_plan
from workers.evaluation.grid import write_grid
from workers.evaluation.utility import train_and_test
from workers.recipes.interface import Cancelled, Run, TrainingData, save_trained
from workers.recipes.registry import TRAINERS

CHECKPOINT, SECRET, LOG, DRAWN, RESULT = "checkpoint.pt", "secret", "pieces.json", "drawn.pt", "result.json"
_GRACE_SECONDS = 60.0  # for the next checkpoint, once the minutes are over
_EVERY_SECONDS = 120.0  # least interval between two checkpoints
_DEEP_EPOCHS = 50
_SHOWN = 10  # images of each class in the grid


@dataclass(frozen=True)
class Job:
    """A training, and who judges its images.

    Attributes:
        recipe: of the service.
        dataset: of `small_data`.
        epsilon: with delta.
        options: of the recipe.
        delta: with epsilon.
        samples: synthetic images that the judges learn.
        judges: classifiers of the evaluation's fixed protocol, or deep ones by name.
        dpimagebench: whether that protocol's validation images are kept out of the private ones.
    """

    recipe: str
    dataset: str
    epsilon: float
    options: Mapping[str, Any] = field(default_factory=dict)
    delta: float = DELTA
    samples: int = 30_000
    judges: tuple[str, ...] = CLASSIFIER_KINDS
    dpimagebench: bool = False


# So few free steps before the private ones, which are not kept on the way, that they fit into a piece.
_AFTER_MOMENTS = {"preset": "fashion_mnist_moments", "patch": 2, "moments_steps": 5000}
_EPSILONS = (1.0, 10.0)
# In the order in which a lent GPU should take them.
JOBS: Mapping[str, Job] = {
    **{
        f"dpimagebench_{name}_{of:g}": Job(
            "moments", name, of, {}, DELTA_THERE, SAMPLES_THERE, tuple(SHAPES["full"]), dpimagebench=True
        )
        for name in ("fashion", "cifar10")
        for of in _EPSILONS
    },
    **{
        f"diffusion_{name}_{of:g}": Job("dp_diffusion", name, of, _AFTER_MOMENTS)
        for name in ("fashion", "cifar10")
        for of in _EPSILONS
    },
}


class Clock:
    """Progress that ends a piece when its time is over, and the one file in which a piece leaves its checkpoint.

    Once the time is over the next checkpoint is written, and the piece ends with the report after it, so that nothing
    is done twice; where none comes, the piece ends a minute later.
    """

    def __init__(self, path: Path, seconds: float, every_seconds: float = 0.0) -> None:
        self.began, self._path, self._seconds, self._every = time.monotonic(), path, seconds, every_seconds
        self._kept_at, self._done = self.began, False
        self.step_times: list[float] = []

    def __call__(self, *, stage: str, step: int, steps: int) -> None:
        """Say where it is, now and then."""
        now = time.monotonic()
        self.step_times.append(now)
        if step % max(1, steps // 50) == 0:
            print(f"  {stage} {step} of {steps} ({now - self.began:.0f} s)", flush=True)
        if self._done or now - self.began > self._seconds + _GRACE_SECONDS:
            raise Cancelled

    def replace(self, write: Callable[[BinaryIO], None]) -> None:
        """Write a new checkpoint, then put it in the place of the old one: `interface.CheckpointFolder`."""
        now = time.monotonic()
        self._done = now - self.began > self._seconds
        if not self._done and now - self._kept_at < self._every:
            return
        partial = self._path.with_suffix(".part")
        with partial.open("wb") as file:
            write(file)
        partial.replace(self._path)
        self._kept_at = time.monotonic()

    def open(self) -> BinaryIO | None:
        """Open the checkpoint, if it is there."""
        return self._path.open("rb") if self._path.exists() else None

    def seconds_a_step(self) -> float | None:
        """Median time between two reports."""
        gaps = sorted(b - a for a, b in zip(self.step_times, self.step_times[1:], strict=False))
        return gaps[len(gaps) // 2] if gaps else None


def piece(folder: Path, data: Folder, plan: Plan, minutes: float, device: torch.device) -> bool:
    """Train for so many minutes; returns whether the training has ended."""
    secret_file, pieces = folder / SECRET, json.loads((folder / LOG).read_text()) if (folder / LOG).exists() else []
    if not secret_file.exists():
        secret_file.write_bytes(secrets.token_bytes(32))
    clock = Clock(folder / CHECKPOINT, 60 * minutes, _EVERY_SECONDS if minutes else 0.0)
    declared = facts_of(data)
    run = Run(
        plan=plan,
        facts=declared,
        data=TrainingData(data.images, data.labels, declared.classes),
        budget=PlanBudget(plan.stages, capacity_nano=2 * plan.price_nano),  # public images: repeated steps may cost
        secret=secret_file.read_bytes(),
        attempt=len(pieces) + 1,
        progress=clock,
        checkpoints=clock,
        device=device,
    )
    try:
        trained = TRAINERS[plan.recipe](run)
    except Cancelled:
        trained = None
    seconds = {"seconds": round(time.monotonic() - clock.began, 1), "seconds_a_step": clock.seconds_a_step()}
    pieces.append({**seconds, "steps": len(clock.step_times)})
    (folder / LOG).write_text(json.dumps(pieces) + "\n", encoding="utf-8")
    if trained is None:
        return False
    (folder / "released").mkdir(exist_ok=True)
    save_trained(trained, folder / "released")
    (folder / CHECKPOINT).unlink(missing_ok=True)
    return True


def judge(folder: Path, data: Folder, job: Job, seed: int, until: float, device: torch.device) -> dict[str, float]:
    """Let classifiers learn what was drawn and test each once; those that have an accuracy are not asked again."""
    classes, result = len(data.classes), folder / RESULT
    document = json.loads(result.read_text(encoding="utf-8"))
    if not (folder / DRAWN).exists():
        started = time.monotonic()
        images, labels = draw(load_released(folder / "released"), classes, job.samples, seed, device)
        document["images_a_second"] = round(job.samples / (time.monotonic() - started), 1)
        shown = torch.cat([images[labels == label][:_SHOWN] for label in range(classes)])
        write_grid(shown.float() / 255, data.classes, folder / "grid.png")
        torch.save((images, labels), folder / DRAWN)
    synthetic: tuple[Tensor, Tensor] = torch.load(folder / DRAWN)
    test = channels_first(data.test_images), torch.from_numpy(data.test_labels)
    for name in job.judges:
        if name in document["accuracy"]:
            continue
        clock = Clock(folder / f"{name}.pt", until - time.monotonic())
        if name in SHAPES["full"]:
            sizes: dict[str, Any] = {"classes": classes, "epochs": _DEEP_EPOCHS, "seed": seed, "device": device}
            found = judged(SHAPES["full"][name], synthetic, test, **sizes, kept=clock, progress=clock)
        else:
            found = train_and_test(name, *synthetic, *test, classes=classes, seed=seed, device=device).accuracy  # type: ignore[arg-type]
        document["accuracy"][name] = found
        print(f"  {name}: {found:.4f}", flush=True)
        result.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
        (folder / f"{name}.pt").unlink(missing_ok=True)
    accuracies: dict[str, float] = document["accuracy"]
    return accuracies


def of_diffusion(folder: Path, data: Folder, plan: Plan, job: Job, seed: int, device: torch.device) -> dict[str, Any]:
    """Measure what the moments alone draw, on which diffusion must improve."""
    denoiser, event = load_released(folder / "released"), poisson_event(plan.stage(STEPS))
    assert isinstance(denoiser, EdmDenoiser)
    images, labels = draw(denoiser.first, len(data.classes), job.samples, seed, device)
    test = channels_first(data.test_images), torch.from_numpy(data.test_labels)
    sizes: dict[str, Any] = {"classes": len(data.classes), "seed": seed, "device": device}
    found = {kind: train_and_test(kind, images, labels, *test, **sizes).accuracy for kind in CLASSIFIER_KINDS}
    return {"noise_multiplier": event.noise_multiplier, "steps": event.count, "accuracy_of_moments": found}


def go_on(job: Job, folder: Path, minutes: float, seed: int) -> dict[str, Any] | None:
    """Go on with a job for so many minutes. Returns what was found once all of it is, None where it goes on."""
    folder.mkdir(parents=True, exist_ok=True)
    until, (device, machine) = time.monotonic() + 60 * minutes, here()
    data = private_part(job.dataset) if job.dpimagebench else SETS[job.dataset]()
    account = open_filter(job.epsilon, job.delta)
    plan = build_plan(job.recipe, job.options, account, account.capacity_nano, facts_of(data))
    if not (folder / RESULT).exists():
        if not piece(folder, data, plan, minutes, device):
            return None
        document = {"recipe": job.recipe, "dataset": job.dataset, "records": len(data.labels), "seed": seed}
        document |= {"epsilon": job.epsilon, "delta": job.delta, "options": dict(job.options)}
        document |= {"samples": job.samples, "machine": machine, "torch": torch.__version__}
        document["pieces"] = json.loads((folder / LOG).read_text(encoding="utf-8"))
        document["accuracy"] = {}
        if job.recipe == "dp_diffusion":
            document |= of_diffusion(folder, data, plan, job, seed, device)
        (folder / RESULT).write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    try:
        judge(folder, data, job, seed, until, device)
    except Cancelled:
        return None
    found: dict[str, Any] = json.loads((folder / RESULT).read_text(encoding="utf-8"))
    return found


def main(arguments: list[str] | None = None) -> None:
    """Go on with a training, and measure it once it has ended."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--job", choices=list(JOBS), required=True)
    parser.add_argument("--folder", type=Path, help="of one training; git should ignore it; default: var/pieces/JOB")
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--samples", type=int, help="synthetic images; a job has a number of its own")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    job = replace(JOBS[given.job], samples=given.samples or JOBS[given.job].samples)
    found = go_on(job, given.folder or Path("var/pieces") / given.job, given.minutes, given.seed)
    print("not done: run this again" if found is None else json.dumps(found["accuracy"]), flush=True)


if __name__ == "__main__":
    main()
