"""Bytes of per-sample gradients, counted tensor by tensor: of DP-SGD's and of RGP's, on a wide residual network."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from models.portable.layers import initialise
from models.private_classifier import WideResNet
from privacy.gradients.dpsgd import DpSgd
from privacy.gradients.estimator import shapes_of
from privacy.gradients.integers import Sums, exact_sums, squares, whole
from privacy.gradients.per_sample import Traces, trace_gradients
from privacy.gradients.rgp import Rgp

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
        return exact_sums([({"": whole(rows, dpsgd.scales(squares(rows).sqrt(), dpsgd.clip))}, None)], dpsgd.bound)

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
