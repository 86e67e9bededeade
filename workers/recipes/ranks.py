"""One training on several processes of one machine, each with its own device.

The runner starts them (`workers.train.followers`). Without a process group, every function here works for a single
process. A recipe is the same program on every rank. Each rank computes the whole public part, and its share of the
computation on private records.

Privacy:
    The processes together are the curator: partial sums, teachers' weights and checkpoints are private and shared only
    among them. A release is made once: rank 0 has the whole sum, adds the noise and sends the result. Drawing the same
    derived noise on every rank would not be equivalent: if two ranks' sums ever differed, their difference would be
    free of noise. So only rank 0 draws noise. It also makes every payment, once, before any rank goes on.
    Sensitivities are those of one process: which rank computes a unit's contribution changes neither its clipping nor
    its vote. Contributions are integers, so partial sums are exact.
    A rank that dies ends the training: the others fail at their next exchange (`RankLost`), or the launcher ends them.
    Payments without a release are lost then, as in any crash.
    Public values may differ between ranks by rounding, which changes no sensitivity. If shares are computed relative to
    such a value (bases, carriers, images that teachers vote on, initial weights), all ranks use rank 0's value.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TypeVar, cast

import torch
from torch import Tensor, distributed, nn

from privacy.errors import BudgetExceeded

T = TypeVar("T")


class RankLost(RuntimeError):
    """Another process of this training is gone. Earlier exchanges are valid; no further one is possible."""


def ranks() -> int:
    """Return how many processes train together."""
    return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1


def rank() -> int:
    """Return the number of this process; rank 0 pays, adds noise and saves checkpoints."""
    return distributed.get_rank() if ranks() > 1 else 0


def meet(number: int, together: int, folder: Path, *, device: torch.device, seconds: float) -> None:
    """Join the other processes of a training on this machine. Return when all have joined, or raise RankLost.

    They communicate over the loopback interface: by NCCL on GPUs, gloo elsewhere.

    Args:
        folder: private folder of this meeting.
        seconds: timeout of one exchange; another rank may be working alone meanwhile.
    """
    loopback = next(name for _, name in socket.if_nameindex() if name in ("lo", "lo0"))  # on Linux and BSD
    os.environ["GLOO_SOCKET_IFNAME"] = os.environ["NCCL_SOCKET_IFNAME"] = loopback
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.set_device(device)
    timeout = timedelta(seconds=seconds)
    store = distributed.FileStore(str(folder / "meeting"), together)  # type: ignore[attr-defined]  # torch's own
    store.set_timeout(timeout)
    with _exchange():
        distributed.init_process_group(
            "nccl" if on_gpu else "gloo",
            store=store,
            rank=number,
            world_size=together,
            timeout=timeout,
            device_id=device if on_gpu else None,
        )


def part() -> None:
    """Leave the process group. Idempotent."""
    if distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()


def share(count: int) -> slice:
    """Return this process's slice of `count` items. The slices of all ranks are disjoint and cover all items."""
    return slice(rank() * count // ranks(), (rank() + 1) * count // ranks())


def from_first(values: Tensor) -> Tensor:
    """Return rank 0's tensor on every rank. Other ranks must pass a tensor of the same shape and type."""
    if ranks() == 1:
        return values
    sent = values.to(_exchange_device(), copy=True).contiguous()
    with _exchange():
        distributed.broadcast(sent, src=0)
    return sent.to(values.device)


def all_agree(answer: bool) -> bool:
    """Return, identically on every rank, whether all ranks answer yes. Public."""
    if ranks() == 1:
        return answer
    least = torch.tensor(int(answer), device=_exchange_device())
    with _exchange():
        distributed.all_reduce(least, distributed.ReduceOp.MIN)
    return bool(least)


def object_from_first(value: T | None) -> T:
    """Return rank 0's value on every rank. The value is pickled, but only processes of one job exchange it."""
    box: list[T | None] = [value]
    if ranks() > 1:
        with _exchange():
            distributed.broadcast_object_list(box, src=0, device=_exchange_device())
    return cast("T", box[0])  # rank 0 passes a value of this type


@torch.no_grad()
def weights_from_first(network: nn.Module) -> None:
    for value in network.state_dict().values() if ranks() > 1 else ():
        value.copy_(from_first(value))


def join_on_first(rows: Tensor) -> Tensor:
    """Return the rows of all ranks on rank 0, in the order of `share`; other ranks return their own rows."""
    if ranks() == 1:
        return rows
    parts: list[Tensor] | None = [rows] * ranks() if rank() == 0 else None
    with _exchange():
        distributed.gather_object(rows.cpu(), parts, dst=0)
    return rows if parts is None else torch.cat(parts).to(rows.device)


def privatise_once(private_sum: Tensor, add_noise: Callable[[Tensor], Tensor]) -> Tensor:
    """Add the integer sums of all ranks, privatise the total on rank 0, and return the release on every rank.

    `private_sum` is this rank's share of the sum, int64, with the same shape on every rank. Only rank 0 calls
    `add_noise`.
    """
    if ranks() == 1:
        return add_noise(private_sum)
    total = private_sum.to(_exchange_device(), copy=True).contiguous()
    with _exchange():
        distributed.reduce(total, dst=0)
    total = total.to(private_sum.device)
    return from_first(add_noise(total) if rank() == 0 else total)


def pay_once(charge: Callable[[], None]) -> None:
    """Charge on rank 0. Return on every rank once it is paid, or raise rank 0's BudgetExceeded on every rank."""
    refused: tuple[int, int] | None = None
    if rank() == 0:
        try:
            charge()
        except BudgetExceeded as error:
            refused = error.requested_nano, error.remaining_nano
    refused = object_from_first(refused)
    if refused is not None:
        raise BudgetExceeded(*refused)


@contextmanager
def _exchange() -> Iterator[None]:
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        raise RankLost("another process of this training is gone") from error


def _exchange_device() -> torch.device:
    on_gpu = distributed.get_backend() == "nccl"
    return torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
