"""Time of drawing from a release of `moments` on Fashion-MNIST, and what a CNN learns from the images.

Run `python -m benchmarks.drawing --json FILE`. Each epsilon is trained once without 5,000 training images, on which the
CNN is tested. Times are processor time of one thread, per image, the median over batches.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

import torch
from torch import Tensor

from benchmarks.results import Results, Row, machine, parser_of, show, spread
from benchmarks.runs import CPU, EPOCHS, tests_of, trained
from benchmarks.small_data import Folder, fashion
from models.portable.drawing import batches, to_pixels
from models.released import ReleasedGenerator
from workers.evaluation.utility import train_and_test


def draw(generator: ReleasedGenerator, classes: int, samples: int, seed: int) -> tuple[Tensor, Tensor, list[float]]:
    """Draw as a job does; returns pixels (n, h, w, c), labels (n,), and milliseconds per image of each batch."""
    pixels, labels, milliseconds = [], [], []
    for wanted, stream in batches(samples, seed, range(classes)):
        began = time.process_time()
        with torch.inference_mode():
            pixels.append(to_pixels(generator.sample(wanted, stream)))
        milliseconds.append(1e3 * (time.process_time() - began) / len(wanted))
        labels.append(wanted)
    return torch.cat(pixels), torch.cat(labels), milliseconds


def measure(folder: Folder, epsilon: float, samples: int, seeds: Sequence[int]) -> Row:
    generator, classes = trained(folder, "moments", {}, epsilon)[0].to(CPU), len(folder.classes)
    draw(generator, classes, 256, 0)  # warm up
    times, accuracies = list[float](), []
    for seed in seeds:
        pixels, labels, milliseconds = draw(generator, classes, samples, seed)
        times += milliseconds
        learned = pixels.permute(0, 3, 1, 2).contiguous(), labels
        found = train_and_test("cnn", *learned, *tests_of(folder), classes=classes, seed=seed, epochs=EPOCHS)
        accuracies.append(found.accuracy)
    return {"epsilon": epsilon, "ms_per_image": statistics.median(times), **spread(accuracies)}


def main(arguments: list[str] | None = None) -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--epsilons", type=float, nargs="+", default=[1.0, 10.0])
    parser.add_argument("--samples", type=int, default=10_000)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    folder, results = fashion().held_out(), Results(options.json, samples=options.samples, **machine())
    for epsilon in options.epsilons:
        if results.find(epsilon=epsilon, seeds=len(options.seeds)) is None:
            results.put(measure(folder, epsilon, options.samples, options.seeds))
    show(results.rows, ("epsilon", "ms_per_image:.2f", "ours:.4f", "sd:.4f", "seeds"))


if __name__ == "__main__":
    main()
