"""Memory of per-sample gradients: DP-SGD with explicit ones beside RGP, on a wide residual network.

Run `python -m benchmarks.gradient_memory --json FILE`. Nothing is worked out from shapes: a dispatch mode watches every
tensor that torch makes and adds up the storages that are alive. Two figures for each way, both over what the trace of
the pass holds already:

- per-sample gradients: what stays when every record's gradient of every parameter (DP-SGD) or of every carrier (RGP)
  has been made, before clipping;
- peak: the most that is alive while the estimator takes a micro-batch in, with clipping, sums and passing tensors.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from models.networks import WideResNet, initialise
from privacy.gradients.dpsgd import DpSgd
from privacy.gradients.estimator import shapes_of
from privacy.gradients.integers import Sums, exact_sums, squares, whole
from privacy.gradients.per_sample import Traces, trace_gradients
from privacy.gradients.rgp import Rgp

RANK = 8
BATCH = 8
CLASSES = 10


class LiveBytes(TorchDispatchMode):
    """Adds up the storages that are made within the block and are still alive.

    Attributes:
        now: bytes alive.
        peak: the most that were alive together.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Sequence[Any], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Run the operation and look at what it returned; a view of an argument brings no storage of its own."""
        before = {value.untyped_storage().data_ptr() for value in tree_iter((args, kwargs or {})) if _is_tensor(value)}
        found = func(*args, **(kwargs or {}))
        for value in tree_iter(found):
            if _is_tensor(value) and value.untyped_storage().data_ptr() not in before:
                self._watch(value.untyped_storage())
        return found

    def _watch(self, storage: torch.UntypedStorage) -> None:
        key, size = storage.data_ptr(), storage.nbytes()
        if key in self._known or size == 0:
            return
        self._known.add(key)
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._forget, key, size)

    def _forget(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.now -= size


def _is_tensor(value: object) -> bool:
    return isinstance(value, torch.Tensor)


def losses(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Cross-entropy of every row."""
    return nn.functional.cross_entropy(outputs, targets, reduction="none")


def network(depth: int = 28, widen: int = 4) -> nn.Module:
    """A wide residual network for 32x32x3 images with GroupNorm."""
    return initialise(WideResNet(3, CLASSES, depth, widen), 0)


def measure(model: nn.Module, records: int, rank: int) -> dict[str, dict[str, int]]:
    """Measure both ways on one micro-batch.

    Returns:
        "dpsgd" and "rgp", each with `per_sample_bytes` and `peak_bytes` of the whole micro-batch.
    """
    torch.manual_seed(0)
    images, labels = torch.rand(records, 3, 32, 32), torch.randint(0, CLASSES, (records,))
    common = {"clip": 1.0, "noise_multiplier": 1.0, "expected_batch": float(records)}
    dpsgd = DpSgd(shapes_of(model), **common)
    rgp = Rgp(model, shapes_of(model), rank=rank, **common)
    rgp.begin_step(model)

    def traces() -> Traces:
        return trace_gradients(model, losses, images, labels)

    def clip_and_sum(taken: Traces) -> Sums:
        rows = dpsgd.rows(taken)
        return exact_sums({"": whole(rows, dpsgd.scales(squares(rows).sqrt(), dpsgd.clip))}, None, dpsgd.bound)

    return {
        "dpsgd": {
            "per_sample_bytes": live_bytes(lambda taken: taken.shares(), traces()).now,
            "peak_bytes": live_bytes(clip_and_sum, traces()).peak,
        },
        "rgp": {
            "per_sample_bytes": live_bytes(rgp.carrier_shares, traces()).now,
            "peak_bytes": live_bytes(rgp.add, traces()).peak,
        },
    }


def live_bytes(work: Callable[[Traces], Any], traces: Traces) -> LiveBytes:
    """Watch one piece of work, and read the bytes while its result is still held."""
    with LiveBytes() as counter:
        result = work(traces)
    reading = LiveBytes()
    reading.now, reading.peak = counter.now, counter.peak
    del result
    return reading


def document_of(found: Mapping[str, Mapping[str, int]], model: nn.Module, records: int, rank: int) -> dict[str, Any]:
    """Return the figures with what they were measured on."""
    plain, carriers = found["dpsgd"], found["rgp"]
    return {
        "machine": f"{platform.machine()} CPU",
        "torch": torch.__version__,
        "commit": subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True
        ).stdout.strip(),
        "network": "WRN28-4, 32x32x3",
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "batch": records,
        "rank": rank,
        **{name: dict(figures) for name, figures in found.items()},
        "rgp_over_dpsgd_bytes": carriers["per_sample_bytes"] / plain["per_sample_bytes"],
        "rgp_over_dpsgd_peak_bytes": carriers["peak_bytes"] / plain["peak_bytes"],
    }


def main() -> None:
    """Measure, print a table and, where asked, keep it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--batch", type=int, default=BATCH)
    options = parser.parse_args()
    model = network()
    found = measure(model, options.batch, RANK)
    document = document_of(found, model, options.batch, RANK)
    print(f"{document['network']}, {document['parameters']:,} parameters, {options.batch} records, rank {RANK}")
    print(f"{'':<8}{'per-sample gradients':>24}{'a record':>14}{'peak':>14}")
    for name, figures in found.items():
        kept, peak = figures["per_sample_bytes"] / 2**20, figures["peak_bytes"] / 2**20
        print(f"{name:<8}{kept:>20.1f} MiB{kept / options.batch:>10.2f} MiB{peak:>10.1f} MiB")
    print(f"RGP / DP-SGD: {document['rgp_over_dpsgd_bytes']:.4f} (peak {document['rgp_over_dpsgd_peak_bytes']:.4f})")
    if options.json is not None:
        options.json.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
