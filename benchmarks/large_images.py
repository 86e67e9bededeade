"""What large colour pictures cost: training the default, drawing from it and evaluating it, and the memory of each.

Run `python -m benchmarks.large_images --json FILE`. Pictures are made by a public
seed, in a file that is mapped into memory as a dataset is. Each row is measured in a process of its own, on one thread.
An evaluation is timed by one step of its CNN; what the whole protocol takes is worked out from that, and marked so.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.generator_runs import train
from benchmarks.small_data import Folder
from models.portable.drawing import batches, to_pixels
from workers.evaluation.likeness import IMAGES_MAX
from workers.evaluation.utility import TRAINING, seen_size, train_and_test

CLASSES, EPSILON, PATCH, SEED = 10, 10.0, 8, 0
SAMPLES = 30_000  # that an evaluation draws where nothing is said
_DRAWN, _LEARNED = 256, 1010  # images that are drawn, and that the CNN sees, to find what one takes


def pictures(file: Path, records: int, side: int) -> npt.NDArray[np.uint8]:
    """Write coloured squares of a public seed into a file and return them as it is mapped: (n, side, side, 3)."""
    stream = np.random.Generator(np.random.PCG64(SEED))
    mapped = np.lib.format.open_memmap(file, "w+", np.uint8, (records, side, side, 3))
    for at in range(0, records, 100):
        squares = stream.integers(0, 256, (min(100, records - at), side // PATCH, side // PATCH, 3), dtype=np.uint8)
        mapped[at : at + 100] = squares.repeat(PATCH, axis=1).repeat(PATCH, axis=2)
    mapped.flush()
    return np.load(file, mmap_mode="r")  # type: ignore[no-any-return]


def peak_gib() -> float:
    """The most resident memory that this process has had, in GiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def made(side: int, records: int) -> dict[str, Any]:
    """Train on so many pictures and draw from what was trained."""
    with tempfile.TemporaryDirectory() as folder:
        images = pictures(Path(folder) / "images.npy", records, side)
        labels = np.arange(records) % CLASSES
        names = tuple(f"class {number}" for number in range(CLASSES))
        began = time.process_time()
        generator, _, _ = train(Folder(images, labels, images[:0], labels[:0], names), "ours", EPSILON)
    row = {"side": side, "records": records, "train_seconds": time.process_time() - began}
    row |= {"train_peak_gib": peak_gib(), "components": generator.config.components}
    wanted, stream = next(batches(_DRAWN, SEED, range(CLASSES)))
    began = time.process_time()
    to_pixels(generator.sample(wanted, stream))
    return row | {"draw_ms_per_image": 1e3 * (time.process_time() - began) / _DRAWN, "draw_peak_gib": peak_gib()}


def measured(side: int) -> dict[str, Any]:
    """Let the CNN of an evaluation learn and be tested on a few pictures of one size."""
    with tempfile.TemporaryDirectory() as folder:
        images = torch.from_numpy(pictures(Path(folder) / "images.npy", _LEARNED, side).transpose(0, 3, 1, 2).copy())
    labels, began = torch.arange(_LEARNED) % CLASSES, time.process_time()
    learned, asked = (images[:-10], labels[:-10]), (images[-10:], labels[-10:])
    train_and_test("cnn", *learned, *asked, classes=CLASSES, seed=SEED, epochs=1)
    seconds = (time.process_time() - began) / _LEARNED
    whole = {"evaluation_hours_extrapolated": TRAINING["cnn"].images_seen * seconds / 3600}
    height, width = seen_size(side, side)
    held = SAMPLES * height * width + IMAGES_MAX * side * side  # as classifiers see them, and whole to be compared
    samples = {"samples_gib": 3 * held / 2**30}  # in memory for an evaluation, whatever the records
    return {"side": side, "cnn_ms_per_image": 1e3 * seconds, "cnn_peak_gib": peak_gib()} | whole | samples


def main() -> None:
    """Measure every row in a process of its own, print a table and, where asked, keep it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sides", type=int, nargs="+", default=[128, 256])
    parser.add_argument(
        "--records", type=int, nargs="*", default=[0, 1000, 10_000], help="trained on; 0: an evaluation"
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--alone", action="store_true", help="measure the one row that is named, and print it")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.alone:
        side, records = options.sides[0], options.records[0]
        print(json.dumps(made(side, records) if records else measured(side)))
        return
    rows = []
    for side in options.sides:
        for records in options.records:
            line = [sys.executable, "-m", "benchmarks.large_images", "--alone", "--sides", str(side)]
            done = subprocess.run([*line, "--records", str(records)], stdout=subprocess.PIPE, text=True, check=True)
            rows.append(json.loads(done.stdout.splitlines()[-1]))
            print(rows[-1], flush=True)
            if options.json is not None:
                document = {"machine": platform.machine(), "torch": torch.__version__, "rows": rows}
                options.json.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
