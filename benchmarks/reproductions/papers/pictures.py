"""DataLens, Figure 4: what is released, to look at. One picture of a data set, a class in each row."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from benchmarks.generator_runs import tiled
from benchmarks.reproductions.papers.accuracies import FOLDERS
from benchmarks.reproductions.papers.datalens import DEFAULT, EPSILONS, PAPER, drawn
from benchmarks.reproductions.papers.rows import Row, row_of, since

_COLUMNS, _GAP, _WHITE = 6, 8, 255
_PLACE = Path("var/benchmarks")


def figure_4(dataset: str, budget: str) -> list[Row]:
    """Draw images of Algorithms 1-3 and of our default, each at epsilon 1 and 10, into one file; a row tells of each.

    From left to right they stand as in the rows; of each class the first six that are drawn.
    """
    folder, rows, blocks = FOLDERS[dataset](), list[Row](), list[npt.NDArray[np.uint8]]()
    file = _PLACE / f"datalens_figure_4_{dataset}.png"
    for method in (PAPER, DEFAULT):
        for epsilon in EPSILONS:
            started = time.monotonic()
            images, labels = drawn(method, folder, epsilon, 0, budget, _COLUMNS * len(folder.classes))
            blocks.append(tiled(images, labels, len(folder.classes)))
            setting = f"columns {(len(blocks) - 1) * _COLUMNS + 1} to {len(blocks) * _COLUMNS} of {file}"
            rows.append(row_of("datalens", "figure 4", method, dataset, epsilon, setting, seconds=since(started)))
    gap = np.full((len(blocks[0]), _GAP, *blocks[0].shape[2:]), _WHITE, dtype=np.uint8)
    beside = [part for block in blocks for part in (block, gap)][:-1]
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.concatenate(beside, axis=1).squeeze()).save(file, optimize=True)
    return rows


FIGURES: Mapping[tuple[str, str], Callable[[str, str], list[Row]]] = {("datalens", "4"): figure_4}
