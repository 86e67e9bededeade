"""What large colour pictures cost: training the default, drawing from it and evaluating it, and the memory of each.

Run `python -m benchmarks.large_images --json FILE`. Pictures are made by a public seed, in a file that is mapped into
memory; a service decrypts a dataset into memory, which is as many bytes. They are told apart from what a training holds
itself. Each row is measured in a process of its own, on one thread, in seconds of the processor and of the wall.
An evaluation is timed by single images that classifiers see, and that are averaged for them; what the whole protocol
takes is worked out from that, and marked so.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from threading import Event, Thread
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.generator_runs import train
from benchmarks.small_data import Folder
from models.classifiers import CLASSIFIER_KINDS
from models.portable.drawing import batches, to_pixels
from workers.evaluation.likeness import IMAGES_MAX
from workers.evaluation.utility import TRAINING, as_seen, seen_size, train_and_test
from workers.train.process import keep_freed_memory

CLASSES, EPSILON, PATCH, SEED = 10, 10.0, 8, 0
SAMPLES = 30_000  # that an evaluation draws where nothing is said
_DRAWN, _LEARNED = 256, 1010  # images that are drawn, and that classifiers see, to find what one takes
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


def pictures(file: Path, records: int, side: int) -> npt.NDArray[np.uint8]:
    """Write coloured squares of a public seed into a file and return them as it is mapped: (n, side, side, 3)."""
    stream = np.random.Generator(np.random.PCG64(SEED))
    mapped = np.lib.format.open_memmap(file, "w+", np.uint8, (records, side, side, 3))
    for at in range(0, records, 100):
        squares = stream.integers(0, 256, (min(100, records - at), side // PATCH, side // PATCH, 3), dtype=np.uint8)
        mapped[at : at + 100] = squares.repeat(PATCH, axis=1).repeat(PATCH, axis=2)
    mapped.flush()
    return np.load(file, mmap_mode="r")  # type: ignore[no-any-return]


class Cost:
    """Seconds of the processor and of the wall, and the most memory that the process holds but for mapped files."""

    def __enter__(self) -> Self:
        self._ended, self._peak, self._watcher = Event(), 0, Thread(target=self._watch)
        self._began = time.process_time(), time.monotonic()
        self._watcher.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.processor, self.wall = time.process_time() - self._began[0], time.monotonic() - self._began[1]
        self._ended.set()
        self._watcher.join()

    def row(self, name: str) -> dict[str, float]:
        """Return all three under a name."""
        wall, peak = {f"{name}_wall_seconds": self.wall}, {f"{name}_peak_gib": self._peak / 2**30}
        return {f"{name}_seconds": self.processor} | wall | peak

    def _watch(self) -> None:
        while True:
            pages = Path("/proc/self/statm").read_text("ascii").split()  # of Linux: size, resident, of files
            self._peak = max(self._peak, (int(pages[1]) - int(pages[2])) * os.sysconf("SC_PAGE_SIZE"))
            if self._ended.wait(0.05):
                return


def made(side: int, records: int) -> dict[str, Any]:
    """Train on so many pictures and draw from what was trained."""
    keep_freed_memory()  # as a process of the service does
    with tempfile.TemporaryDirectory() as folder:
        images = pictures(Path(folder) / "images.npy", records, side)
        labels = np.arange(records) % CLASSES
        names = tuple(f"class {number}" for number in range(CLASSES))
        with Cost() as training:
            generator, _, _ = train(Folder(images, labels, images[:0], labels[:0], names), "ours", EPSILON)
    row = {"side": side, "records": records} | training.row("train") | {"pixels_gib": images.nbytes / 2**30}
    wanted, stream = next(batches(_DRAWN, SEED, range(CLASSES)))
    with Cost() as drawing:
        to_pixels(generator.sample(wanted, stream))
    row |= {"components": generator.config.components, "draw_ms_per_image": 1e3 * drawing.processor / _DRAWN}
    return row | {"draw_peak_gib": drawing.row("draw")["draw_peak_gib"]}


def measured(side: int) -> dict[str, Any]:
    """Average a few pictures of one size as an evaluation does, and let its classifiers learn them and be tested."""
    with tempfile.TemporaryDirectory() as folder:
        whole = torch.from_numpy(pictures(Path(folder) / "images.npy", _LEARNED, side).transpose(0, 3, 1, 2).copy())
    with Cost() as averaging:
        images = as_seen(whole)
    row: dict[str, Any] = {"side": side, "averaging_ms_per_image": 1e3 * averaging.processor / _LEARNED}
    labels, seconds = torch.arange(_LEARNED) % CLASSES, SAMPLES * averaging.processor / _LEARNED
    learned, asked = (images[:-10], labels[:-10]), (images[-10:], labels[-10:])
    for kind in CLASSIFIER_KINDS:
        train_and_test(kind, *asked, *asked, classes=CLASSES, seed=SEED, epochs=1)  # what a process does once
        with Cost() as learning:
            train_and_test(kind, *learned, *asked, classes=CLASSES, seed=SEED, epochs=1)
        row[f"{kind}_ms_per_image"] = 1e3 * learning.processor / _LEARNED
        seconds += TRAINING[kind].images_seen * learning.processor / _LEARNED
    row |= {"cnn_peak_gib": learning.row("cnn")["cnn_peak_gib"], "evaluation_minutes_extrapolated": seconds / 60}
    height, width = seen_size(side, side)
    held = SAMPLES * height * width + IMAGES_MAX * side * side  # as classifiers see them, and whole to be compared
    return row | {"samples_gib": 3 * held / 2**30}  # in memory for an evaluation, whatever the records


def main() -> None:
    """Measure every row in a process of its own, print a table and, where asked, keep it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sides", type=int, nargs="+", default=[128, 256])
    parser.add_argument(
        "--records", type=int, nargs="*", default=[0, 1000, 10_000, 100_000], help="trained on; 0: an evaluation"
    )
    parser.add_argument("--json", type=Path, help="to keep the rows in, beside those that it has of other sizes")
    parser.add_argument("--alone", action="store_true", help="measure the one row that is named, and print it")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.alone:
        side, records = options.sides[0], options.records[0]
        print(json.dumps(made(side, records) if records else measured(side)))
        return
    sizes = {(side, records) for side in options.sides for records in options.records}
    kept = json.loads(options.json.read_text("utf-8"))["rows"] if options.json and options.json.exists() else []
    rows = [row for row in kept if (row["side"], row.get("records", 0)) not in sizes]
    for side in options.sides:
        for records in options.records:
            line = [sys.executable, "-m", "benchmarks.large_images", "--alone", "--sides", str(side)]
            line += ["--records", str(records)]
            done = subprocess.run(line, stdout=subprocess.PIPE, text=True, check=True, env=os.environ | _ONE_THREAD)
            rows.append(json.loads(done.stdout.splitlines()[-1]))
            print(rows[-1], flush=True)
            rows.sort(key=lambda row: (row["side"], row.get("records", 0)))
            if options.json is not None:
                document = {"machine": platform.machine(), "torch": torch.__version__, "rows": rows}
                options.json.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
