"""Generate synthetic images from a released generator, batch by batch."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from threading import Event, Lock

import numpy as np
import numpy.typing as npt
import torch

from models.classifiers import between_layers
from models.portable.drawing import batches, to_pixels, turns
from models.released import ReleasedGenerator
from privacy.mechanisms.topagg import one_thread_per_operation
from privacy.plans.plan import Plan, PublicFacts
from workers.recipes.interface import Piece, Progress

DRAWING = "draw_images"  # a stage of reports: for evaluations and a release's own images
_NUMBERS_TOGETHER = 2**26  # pixels generated at once: few batches of large images


@dataclass(frozen=True)
class SampleRequest:
    """The images to generate, validated by `service.jobs.kinds`. All fields are public.

    Args:
        seed: public seed, 0 <= seed < 2**63.
        chosen: labels to draw, a non-empty subset of `range(len(names))` without repetition; None means all.
        proportions: a number above 0 for each chosen label; None: labels take turns, so counts differ by at most one.
    """

    count: int
    seed: int
    names: tuple[str, ...]
    chosen: tuple[int, ...] | None = None
    proportions: tuple[float, ...] | None = None

    @property
    def labels_drawn(self) -> tuple[int, ...]:
        return tuple(range(len(self.names))) if self.chosen is None else self.chosen

    @property
    def labels(self) -> npt.NDArray[np.int64]:
        """The label of each image, (count,), in order."""
        return turns(self.count, self.labels_drawn, self.proportions).numpy()


def draw(
    generator: ReleasedGenerator, request: SampleRequest, progress: Progress = lambda **_: None, stage: str = DRAWING
) -> Iterator[tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]]:
    """Yield batches of `(b, h, w, c)` uint8 images and their `(b,)` int64 labels, `request.count` in all.

    On a CPU, batches are drawn in parallel, each on one thread. Every batch has its own random stream and a fixed order
    of operations. So equal seeds give equal bytes for any number of threads.

    `progress` receives the number of images that were drawn and consumed. It is called before every layer of the
    network and after every batch, never by two threads at once. An exception from it ends the drawing.
    """
    generator.eval()
    held = (value for module in generator.modules() for value in (*module.parameters(), *module.buffers()))
    device = next((value.device for value in held), torch.device("cpu"))
    drawn, turn, over = 0, Lock(), Event()

    def look() -> None:
        if over.is_set():
            raise CancelledError
        with turn:
            progress(stage=stage, step=drawn, steps=request.count)

    def draw_batch(labels: torch.Tensor, stream: torch.Generator) -> npt.NDArray[np.uint8]:
        with torch.inference_mode():
            return to_pixels(generator.sample(labels.to(device), stream)).numpy()  # from (b, c, h, w) in [0, 1]

    threads = torch.get_num_threads() if device.type == "cpu" else 1
    waiting: deque[tuple[torch.Tensor, Future[npt.NDArray[np.uint8]]]] = deque()
    asked, most = batches(request.count, request.seed, request.labels_drawn, request.proportions), 1
    with one_thread_per_operation(), between_layers(generator.modules(), look), ThreadPoolExecutor(threads) as pool:
        try:
            while True:
                for labels, stream in islice(asked, most - len(waiting)):
                    waiting.append((labels, pool.submit(draw_batch, labels, stream)))
                if not waiting:
                    return
                labels, batch = waiting.popleft()
                pixels = batch.result()
                yield pixels, labels.numpy()
                drawn += len(labels)
                look()
                most = min(threads + 1, max(1, _NUMBERS_TOGETHER // pixels.size))  # draw one more as one is consumed
        finally:
            over.set()
            for _, batch in waiting:
                batch.cancel()


def drawing_work(plan: Plan, facts: PublicFacts, count: int) -> Piece:
    return Piece(DRAWING, count, count * plan.config.drawing_seconds * facts.size)
