"""Memory of per-sample gradients: DP-SGD with explicit ones compared with RGP, on a wide residual network.

Run `python -m benchmarks.gradient_memory --json FILE`. A dispatch mode watches every tensor that torch makes and adds
up the storages that are alive. Two figures for each method, beyond what the trace of the pass already holds:

- per-sample gradients: the memory that stays when every record's gradient of every parameter (DP-SGD) or of every
  carrier (RGP) has been made, before clipping;
- peak: the most that is alive while the estimator processes a micro-batch, with clipping, sums and temporaries.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from benchmarks.results import machine, parser_of, show, write_json
from models.portable.layers import initialise
from models.private_classifier import WideResNet
from privacy.gradients.dpsgd import DpSgd
from privacy.gradients.estimator import shapes_of
from privacy.gradients.integers import Sums, exact_sums, squares, whole
from privacy.gradients.per_sample import Traces, trace_gradients
from privacy.gradients.rgp import Rgp

CLASSES, RANK, BATCH = 10, 8, 8


class LiveBytes(TorchDispatchMode):
    """Count the bytes of the storages made within the block that are still alive (`now`), and their `peak`."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Sequence[Any], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        before = {storage.data_ptr() for storage in _storages((args, kwargs or {}))}
        made = func(*args, **(kwargs or {}))
        for storage in _storages(made):
            key, size = storage.data_ptr(), storage.nbytes()
            if key not in before and key not in self._known and size > 0:
                self._known.add(key)
                self.now += size
                self.peak = max(self.peak, self.now)
                weakref.finalize(storage, self._forget, key, size)
        return made

    def _forget(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.now -= size


def _storages(values: Any) -> list[torch.UntypedStorage]:
    return [value.untyped_storage() for value in tree_iter(values) if isinstance(value, torch.Tensor)]


def network(depth: int = 28, widen: int = 4) -> nn.Module:
    """Return a wide residual network for 32x32x3 images with GroupNorm."""
    return initialise(WideResNet(3, CLASSES, depth, widen), 0)


def measure(model: nn.Module, records: int, rank: int) -> dict[str, dict[str, int]]:
    """Measure both methods on one micro-batch.

    Returns:
        "dpsgd" and "rgp", each with `per_sample_bytes` and `peak_bytes` of the whole micro-batch.
    """
    torch.manual_seed(0)
    images, labels = torch.rand(records, 3, 32, 32), torch.randint(0, CLASSES, (records,))
    common = {"clip": 1.0, "noise_multiplier": 1.0, "expected_batch": float(records)}
    dpsgd = DpSgd(shapes_of(model), **common)
    rgp = Rgp(model, shapes_of(model), rank=rank, **common)
    rgp.begin_step(model)

    def losses(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(outputs, targets, reduction="none")

    def clip_and_sum(taken: Traces) -> Sums:
        rows = dpsgd.rows(taken)
        return exact_sums([({"": whole(rows, dpsgd.scales(squares(rows).sqrt(), dpsgd.clip))}, None)], dpsgd.bound)

    def live(work: Callable[[Traces], Any]) -> tuple[int, int]:
        traces = trace_gradients(model, losses, images, labels)
        with LiveBytes() as counter:
            result = work(traces)
        figures = counter.now, counter.peak  # while the result is still held
        del result
        return figures

    return {
        "dpsgd": {"per_sample_bytes": live(lambda taken: taken.shares())[0], "peak_bytes": live(clip_and_sum)[1]},
        "rgp": {"per_sample_bytes": live(rgp.carrier_shares)[0], "peak_bytes": live(rgp.add)[1]},
    }


def main(arguments: list[str] | None = None) -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--batch", type=int, default=BATCH)
    options = parser.parse_args(arguments)
    model = network()
    found = measure(model, options.batch, RANK)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    ratios = {f"rgp_over_dpsgd_{key}": found["rgp"][key] / found["dpsgd"][key] for key in found["rgp"]}
    show([{"estimator": name, **figures} for name, figures in found.items()], ("estimator", *found["rgp"]))
    print(", ".join(f"{name} {value:.4f}" for name, value in ratios.items()))
    facts = {"network": "WRN28-4, 32x32x3", "parameters": parameters, "batch": options.batch, "rank": RANK}
    write_json(options.json, machine() | facts | found | ratios)


if __name__ == "__main__":
    main()
