"""Trainings and judges that need hours of a GPU, in pieces of some minutes.

Run `python -m benchmarks.in_pieces --job diffusion_fashion_10 --minutes 8` again and again: each call resumes from the
folder's checkpoint until its minutes are over and the next checkpoint is written. The call that ends the training draws
synthetic images and trains classifiers on them to the last step. It tests each once on the test images, and writes
result.json and grid.png. JOBS lists what waits for a GPU.
"""

from __future__ import annotations

import argparse
import json
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from benchmarks.deep_classifiers import SHAPES, judged
from benchmarks.results import Row, write_json
from benchmarks.runs import DELTA, draw, here, plan_of, tests_of
from benchmarks.small_data import SETS, Folder, facts_of
from models.classifiers import CLASSIFIER_KINDS
from models.portable.edm import EdmDenoiser
from models.released import load_released
from privacy.plans.plan import Plan, PlanBudget
from privacy.plans.private_steps import STEPS, poisson_event
from workers.evaluation.report import draw_grid
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
    """A training of a recipe on a set of `small_data`; judges are of the evaluation's protocol, or deep ones."""

    recipe: str
    dataset: str
    epsilon: float
    options: Mapping[str, Any] = field(default_factory=dict)
    delta: float = DELTA
    samples: int = 30_000
    judges: tuple[str, ...] = CLASSIFIER_KINDS


# The free steps before the private ones keep no checkpoint, so these are few enough to fit into a piece.
_AFTER_MOMENTS = {"preset": "fashion_mnist_moments", "patch": 2, "moments_steps": 5000}
_DEEP: dict[str, Any] = {"delta": 1.67e-6, "samples": 60_000, "judges": tuple(SHAPES["full"])}
# In the order in which a GPU should take them.
JOBS: Mapping[str, Job] = {
    **{
        f"dpimagebench_{name.partition('_')[0]}_{epsilon:g}": Job("moments", name, epsilon, **_DEEP)
        for name in ("fashion_55000", "cifar10_45000")
        for epsilon in (1.0, 10.0)
    },
    **{
        f"diffusion_{name}_{epsilon:g}": Job("dp_diffusion", name, epsilon, _AFTER_MOMENTS)
        for name in ("fashion", "cifar10")
        for epsilon in (1.0, 10.0)
    },
}


class Clock:
    """Progress that ends a piece when its time is over, and the file that holds its checkpoint.

    After the time is over the piece ends at the first report that follows a checkpoint, so that no work is repeated;
    without a checkpoint it ends a minute later.
    """

    def __init__(self, path: Path, seconds: float, every_seconds: float = 0.0) -> None:
        self.began, self._path, self._seconds, self._every = time.monotonic(), path, seconds, every_seconds
        self._kept_at, self._done = self.began, False
        self.step_times: list[float] = []

    def __call__(self, *, stage: str, step: int, steps: int) -> None:
        now = time.monotonic()
        self.step_times.append(now)
        if step % max(1, steps // 50) == 0:
            print(f"  {stage} {step} of {steps} ({now - self.began:.0f} s)", flush=True)
        if self._done or now - self.began > self._seconds + _GRACE_SECONDS:
            raise Cancelled

    def replace(self, write: Callable[[BinaryIO], None]) -> None:
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
        return self._path.open("rb") if self._path.exists() else None


def piece(folder: Path, data: Folder, plan: Plan, minutes: float) -> bool:
    """Train for so many minutes; return whether the training has ended."""
    secret_file, pieces = folder / SECRET, json.loads((folder / LOG).read_text()) if (folder / LOG).exists() else []
    if not secret_file.exists():
        secret_file.write_bytes(secrets.token_bytes(32))
    clock = Clock(folder / CHECKPOINT, 60 * minutes, _EVERY_SECONDS if minutes else 0.0)
    declared = facts_of(data)
    run = Run(
        plan=plan,
        facts=declared,
        data=TrainingData(data.images, data.labels, declared.classes),
        budget=PlanBudget(plan.stages, capacity_nano=2 * plan.cost_nano),  # public images: repeated steps may cost
        secret=secret_file.read_bytes(),
        attempt=len(pieces) + 1,
        progress=clock,
        checkpoints=clock,
        device=here()[0],
    )
    try:
        trained = TRAINERS[plan.recipe](run)
    except Cancelled:
        trained = None
    gaps = sorted(later - earlier for earlier, later in pairwise(clock.step_times))
    seconds = {"seconds": round(time.monotonic() - clock.began, 1)}
    seconds["seconds_a_step"] = gaps[len(gaps) // 2] if gaps else None
    write_json(folder / LOG, [*pieces, {**seconds, "steps": len(clock.step_times)}])
    if trained is None:
        return False
    (folder / "released").mkdir(exist_ok=True)
    save_trained(trained, folder / "released")
    (folder / CHECKPOINT).unlink(missing_ok=True)
    return True


def judge(folder: Path, data: Folder, job: Job, seed: int, until: float) -> None:
    """Train classifiers on synthetic images and test each once; skip those that have an accuracy."""
    classes, document, device = len(data.classes), json.loads((folder / RESULT).read_text("utf-8")), here()[0]
    if not (folder / DRAWN).exists():
        started = time.monotonic()
        images, labels = draw(load_released(folder / "released"), classes, job.samples, seed)
        document["images_a_second"] = round(job.samples / (time.monotonic() - started), 1)
        shown = torch.cat([images[labels == label][:_SHOWN] for label in range(classes)])
        (folder / "grid.png").write_bytes(draw_grid(shown.permute(0, 2, 3, 1).numpy(), data.classes))
        torch.save((images, labels), folder / DRAWN)
    synthetic: tuple[Tensor, Tensor] = torch.load(folder / DRAWN)
    for name in job.judges:
        if name in document["accuracy"]:
            continue
        clock = Clock(folder / f"{name}.pt", until - time.monotonic())
        sizes: dict[str, Any] = {"classes": classes, "seed": seed, "device": device}
        if name in SHAPES["full"]:
            sizes |= {"epochs": _DEEP_EPOCHS, "kept": clock, "progress": clock}
            found = judged(SHAPES["full"][name], synthetic, tests_of(data), **sizes)
        else:
            found = train_and_test(name, *synthetic, *tests_of(data), **sizes).accuracy  # type: ignore[arg-type]
        document["accuracy"][name] = found
        print(f"  {name}: {found:.4f}", flush=True)
        write_json(folder / RESULT, document)
        (folder / f"{name}.pt").unlink(missing_ok=True)


def of_diffusion(folder: Path, data: Folder, plan: Plan, job: Job, seed: int) -> Row:
    """Measure the images of the moments alone, on which diffusion must improve."""
    denoiser, event = load_released(folder / "released"), poisson_event(plan.stage(STEPS))
    assert isinstance(denoiser, EdmDenoiser)
    drawn = draw(denoiser.first, len(data.classes), job.samples, seed)
    sizes: dict[str, Any] = {"classes": len(data.classes), "seed": seed, "device": here()[0]}
    found = {kind: train_and_test(kind, *drawn, *tests_of(data), **sizes).accuracy for kind in CLASSIFIER_KINDS}
    return {"noise_multiplier": event.noise_multiplier, "steps": event.count, "accuracy_of_moments": found}


def resume(job: Job, folder: Path, minutes: float, seed: int) -> Row | None:
    """Resume a job for so many minutes; return its result once it is complete, else None."""
    folder.mkdir(parents=True, exist_ok=True)
    until, data = time.monotonic() + 60 * minutes, SETS[job.dataset]()
    plan = plan_of(data, job.recipe, job.options, job.epsilon, job.delta)
    if not (folder / RESULT).exists():
        if not piece(folder, data, plan, minutes):
            return None
        document: Row = {"recipe": job.recipe, "dataset": job.dataset, "records": len(data.labels), "seed": seed}
        document |= {"epsilon": job.epsilon, "delta": job.delta, "options": dict(job.options)}
        document |= {"samples": job.samples, "machine": here()[1], "torch": torch.__version__, "accuracy": {}}
        document["pieces"] = json.loads((folder / LOG).read_text(encoding="utf-8"))
        if job.recipe == "dp_diffusion":
            document |= of_diffusion(folder, data, plan, job, seed)
        write_json(folder / RESULT, document)
    try:
        judge(folder, data, job, seed, until)
    except Cancelled:
        return None
    found: Row = json.loads((folder / RESULT).read_text(encoding="utf-8"))
    return found


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--job", choices=list(JOBS), required=True)
    parser.add_argument("--folder", type=Path, help="of one training; git should ignore it; default: var/pieces/JOB")
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--samples", type=int, help="synthetic images; default: the job's")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    job = replace(JOBS[given.job], samples=given.samples or JOBS[given.job].samples)
    found = resume(job, given.folder or Path("var/pieces") / given.job, given.minutes, given.seed)
    print("not done: run this again" if found is None else json.dumps(found["accuracy"]), flush=True)


if __name__ == "__main__":
    main()
