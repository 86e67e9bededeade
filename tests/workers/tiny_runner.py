"""A runner with a small recipe, for the tests: it pays for every stage of the plan and adds noise to class means.

The environment says what goes wrong: TINY_PAUSE (seconds a step), TINY_KILL (the step at which the first attempt
kills itself), TINY_STOP (the steps, such as "3,4", at which the first attempt stops itself, until it is told to go on),
TINY_CANARY (a text that the data holds and an error quotes).
"""

import dataclasses
import os
import signal
import sys
import time
from typing import Any

import numpy as np
import torch

from models.portable.generator import Generator, GeneratorConfig
from privacy.errors import BudgetExceeded
from workers.recipes.interface import Cancelled, NothingUseful, Run, load_checkpoint, save_checkpoint
from workers.train import runner

CHECKPOINT_STEPS = 5
USEFUL_STEPS = 2  # means and pooled covariance, as for the real recipe


def train(run: Run) -> Generator:
    plan, facts, data = run.plan, run.facts, run.data
    releases = [stage for stage in plan.stages for _ in range(stage.event.count)]
    saved = load_checkpoint(run.checkpoints) or {"total": torch.zeros(len(facts.classes), facts.pixels), "step": 0}
    total, first = saved["total"], saved["step"]
    sums = np.stack([data.private_images[data.private_labels == c].sum(0).ravel() for c in range(len(facts.classes))])
    done = first
    for step in range(first, len(releases)):
        run.progress(stage=releases[step].name, step=step, steps=len(releases))
        if os.environ.get("TINY_CANARY"):
            raise ValueError(f"cannot read {os.environ['TINY_CANARY']} in {data.private_images[:1].tolist()}")
        try:
            run.pay(dataclasses.replace(releases[step].event, count=1), releases[step].name)
        except BudgetExceeded:
            break
        noise = run.noise("tiny", step)
        total += torch.from_numpy(sums + noise.discrete_gaussian(sums.shape, 1e5))
        done = step + 1
        if os.environ.get("TINY_KILL") == str(done) and run.attempt == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if done % CHECKPOINT_STEPS == 0:
            save_checkpoint(run.checkpoints, {"total": total, "step": done})
        if str(done) in os.environ.get("TINY_STOP", "").split(",") and run.attempt == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(float(os.environ.get("TINY_PAUSE", "0")))
    if done < USEFUL_STEPS:
        raise NothingUseful
    generator = Generator(GeneratorConfig(len(facts.classes), facts.channels, facts.height, facts.width, 4))
    generator.mean.copy_((total / max(done, 1) / 1e5).clamp(0, 1))
    generator.factor.normal_(generator=torch.Generator().manual_seed(0)).mul_(0.1)
    return generator


def interrupted(run: Run) -> Generator:
    """Train in a process that is told to stop after some charges."""

    def progress(*, step: int, **_: Any) -> None:
        if step == 12:
            raise Cancelled

    return train(dataclasses.replace(run, progress=progress))


TRAINERS: dict[str, Any] = {"datalens": train}


def main() -> int:
    return runner.main(trainers=TRAINERS)


if __name__ == "__main__":
    sys.exit(main())
