"""Drawing from a release of `moments`, as it was until November 2026 and as it is: time, pixels, and their worth.

Run `python -m benchmarks.drawing --json FILE`. At each epsilon the default is trained once on Fashion-MNIST without
5,000 training images, on one core both draw the same batches of the same seeds in turn, and a CNN that learned what
either drew is tested on the 5,000 images. Times are of processor time on one thread.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.former_rendering import FormerGenerator
from benchmarks.generator_runs import EPOCHS, train
from benchmarks.small_data import DEVELOPMENT, Folder, channels_first
from models.portable.drawing import batches, to_pixels
from models.portable.generator import Generator
from models.portable.textured import TexturedConfig, TexturedGenerator
from workers.evaluation.utility import train_and_test

OLD, NEW = "old", "new"


def both(trained: Generator) -> dict[str, TexturedGenerator]:
    """Return generators of the same numbers that draw in the old way and in the new one."""
    found: dict[str, TexturedGenerator] = {}
    for name, kind in ((OLD, FormerGenerator), (NEW, TexturedGenerator)):
        found[name] = kind(TexturedConfig(**dataclasses.asdict(trained.config)))
        found[name].load_state_dict(trained.state_dict())
        found[name].eval()
    return found


@dataclasses.dataclass
class Drawn:
    """What one of them drew: pixels (n, h, w, c) uint8 in batches, and the milliseconds per image of each."""

    pixels: list[Tensor] = dataclasses.field(default_factory=list)
    milliseconds: list[float] = dataclasses.field(default_factory=list)


def draw_in_turn(
    generators: Mapping[str, TexturedGenerator], samples: int, seed: int
) -> tuple[dict[str, Drawn], Tensor]:
    """Let each draw every batch, one after the other, and return what they drew and the labels."""
    found, labels = {name: Drawn() for name in generators}, []
    classes = next(iter(generators.values())).config.classes
    for wanted, stream in batches(samples, seed, range(classes)):
        start = stream.get_state()
        for name, generator in generators.items():
            stream.set_state(start)
            began = time.process_time()
            with torch.inference_mode():
                found[name].pixels.append(to_pixels(generator.sample(wanted, stream)))
            found[name].milliseconds.append(1e3 * (time.process_time() - began) / len(wanted))
        labels.append(wanted)
    return found, torch.cat(labels)


def _accuracy(pixels: Tensor, labels: Tensor, folder: Folder, seed: int) -> float:
    test = channels_first(folder.test_images), torch.from_numpy(folder.test_labels)
    learned = pixels.permute(0, 3, 1, 2).contiguous(), labels
    return train_and_test("cnn", *learned, *test, classes=len(folder.classes), seed=seed, epochs=EPOCHS).accuracy


def measure(epsilon: float, samples: int, seeds: Sequence[int]) -> list[dict[str, Any]]:
    """Return the rows of one epsilon, old and new."""
    folder = DEVELOPMENT["fashion"]()
    generators = both(train(folder, "ours", epsilon)[0])
    draw_in_turn(generators, 256, 0)  # the first batch finds memory and tables
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in generators}
    ratios: list[float] = []
    for seed in seeds:
        drawn, labels = draw_in_turn(generators, samples, seed)
        ratios += [old / new for old, new in zip(drawn[OLD].milliseconds, drawn[NEW].milliseconds, strict=True)]
        pixels = {name: torch.cat(each.pixels) for name, each in drawn.items()}
        for name, images in pixels.items():
            accuracy = _accuracy(images, labels, folder, seed)
            runs[name].append({"seed": seed, "ms_per_image": statistics.median(drawn[name].milliseconds)})
            runs[name][-1] |= {"accuracy": accuracy}
        other = (pixels[OLD] != pixels[NEW]).float().mean().item()
        runs[NEW][-1] |= {"pixels_that_differ": other}
        print(f"  epsilon {epsilon:g} seed {seed}: {[each[-1] for each in runs.values()]}", flush=True)
    return [
        {
            "variant": name,
            "epsilon": epsilon,
            "ms_per_image": statistics.median(run["ms_per_image"] for run in made),
            "accuracy": statistics.mean(run["accuracy"] for run in made),
            "standard_error": statistics.stdev(run["accuracy"] for run in made) / len(made) ** 0.5
            if len(made) > 1
            else None,
            "times_faster": statistics.median(ratios) if name == NEW else 1.0,
            "seeds": list(seeds),
            "runs": made,
        }
        for name, made in runs.items()
    ]


def main() -> None:
    """Measure, print a table and, where asked, keep it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--epsilons", type=float, nargs="+", default=[1.0, 10.0])
    parser.add_argument("--samples", type=int, default=10_000)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = [row for epsilon in options.epsilons for row in measure(epsilon, options.samples, options.seeds)]
    for row in rows:
        print(
            f"{row['variant']} at epsilon {row['epsilon']:g}: {row['ms_per_image']:.2f} ms an image, "
            f"{row['times_faster']:.2f} times as fast, accuracy {row['accuracy']:.4f}"
        )
    if options.json is not None:
        facts = {"machine": platform.machine(), "cores": os.cpu_count(), "torch": torch.__version__}
        document = {**facts, "samples": options.samples, "rows": rows}
        options.json.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
