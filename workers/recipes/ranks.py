"""One training on several processes of one machine, each with a device of its own.

The runner starts them for a job of the service (`workers.train.followers`); `torchrun` can, for a recipe that is called
by hand.

Without a process group, or alone in one, every function here does nothing but what one process needs. A recipe is the
same program on every rank: each computes the whole public part, and its share of what looks at private records.

Privacy:
    The processes together are the curator: what they send to one another (partial sums, teachers' weights, checkpoints)
    is private and stays between them. A release is made once: rank 0 holds the whole sum, adds the noise and hands the
    result to the others. Drawing the same derived noise on every rank looks equivalent and is not: should two ranks'
    sums ever differ, two releases of one noise tell the difference without any; and noise that each rank drew for its
    own share would be the wrong amount. So a rank other than 0 draws no noise. Payments, too, are made once, by rank 0,
    before any rank goes on.

    Sensitivities are those of one process: which rank computes a unit's contribution changes neither its clipping nor
    its vote. What they add up are integers, so partial sums are exact.

    A rank that dies ends the training: the others fail at their next exchange (`RankLost`), or the launcher ends them.
    What was paid and not released is lost then, as in any crash.

    What is public may differ between ranks by rounding alone, as between GPUs, and changes no sensitivity. Where shares
    are added that were measured against it (bases, carriers, the images that teachers vote on, a network's first
    weights), all take rank 0's.
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
_LOOPBACK = ("lo", "lo0")  # as Linux and BSD call it
_MEETING_FILE = "meeting"


class RankLost(RuntimeError):
    """Another process of this training is gone. What was exchanged until then stands; nothing more can be."""


def ranks() -> int:
    """Return how many processes train together."""
    return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1


def rank() -> int:
    """Return the number of this process among them; 0 pays, adds noise and keeps checkpoints."""
    return distributed.get_rank() if ranks() > 1 else 0


def meet(number: int, together: int, folder: Path, *, device: torch.device, seconds: float) -> None:
    """Join the other processes of a training on this machine; returns when all are there.

    They talk over the loopback interface, and GPUs over what joins them: NCCL on GPUs, gloo elsewhere.

    Args:
        number: of this process, from 0.
        together: how many there are.
        folder: of this meeting alone, which the user of these processes alone can read.
        device: of this process.
        seconds: that one exchange may take, which may wait for another rank to work alone.

    Raises:
        RankLost: not all could come.
    """
    loopback = next(name for _, name in socket.if_nameindex() if name in _LOOPBACK)
    os.environ["GLOO_SOCKET_IFNAME"] = os.environ["NCCL_SOCKET_IFNAME"] = loopback
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.set_device(device)
    timeout = timedelta(seconds=seconds)
    store = distributed.FileStore(str(folder / _MEETING_FILE), together)  # type: ignore[attr-defined]  # torch's own
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
    """Leave the others; does nothing for a process that has not met any."""
    if distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()


def share(count: int) -> slice:
    """Return this process's part of so many things in a row; the parts of all ranks are disjoint and cover them."""
    return slice(rank() * count // ranks(), (rank() + 1) * count // ranks())


def sum_on_first(values: Tensor) -> Tensor:
    """Add up the tensors of all ranks, which have one shape and type.

    Returns:
        The sum on rank 0. PRIVATE. Elsewhere nothing of use.

    Raises:
        RankLost: as every exchange.
    """
    if ranks() == 1:
        return values
    total = values.to(_exchange_device(), copy=True).contiguous()
    with _exchange():
        distributed.reduce(total, dst=0)
    return total.to(values.device)


def from_first(values: Tensor) -> Tensor:
    """Return rank 0's tensor on every rank; the others pass one of its shape and type."""
    if ranks() == 1:
        return values
    sent = values.to(_exchange_device(), copy=True).contiguous()
    with _exchange():
        distributed.broadcast(sent, src=0)
    return sent.to(values.device)


def least_of_all(values: Tensor) -> Tensor:
    """Return, number by number, the least of what the ranks pass, on every rank; all pass one shape and type."""
    if ranks() == 1:
        return values
    least = values.to(_exchange_device(), copy=True).contiguous()
    with _exchange():
        distributed.all_reduce(least, distributed.ReduceOp.MIN)
    return least.to(values.device)


def object_from_first(value: T | None) -> T:
    """Return what rank 0 passes on every rank. Sent by pickle, between the processes of one job only."""
    box: list[T | None] = [value]
    if ranks() > 1:
        with _exchange():
            distributed.broadcast_object_list(box, src=0, device=_exchange_device())
    return cast("T", box[0])  # rank 0 passes a value of the type


@torch.no_grad()
def weights_from_first(network: nn.Module) -> None:
    """Give every rank's network the weights of rank 0's."""
    for value in network.state_dict().values() if ranks() > 1 else ():
        value.copy_(from_first(value))


def join_on_first(rows: Tensor) -> Tensor:
    """Return the rows of all ranks one after the other, in the order of `share`, on rank 0; elsewhere its own rows."""
    if ranks() == 1:
        return rows
    parts: list[Tensor] | None = [rows] * ranks() if rank() == 0 else None
    with _exchange():
        distributed.gather_object(rows.cpu(), parts, dst=0)
    return rows if parts is None else torch.cat(parts).to(rows.device)


def privatise_once(private_sum: Tensor, add_noise: Callable[[Tensor], Tensor]) -> Tensor:
    """Add up the integer sums of all ranks, let rank 0 privatise the total, and return what it made on every rank.

    Args:
        private_sum: of this rank's share, int64, of one shape everywhere. PRIVATE.
        add_noise: adds the noise that was paid for. Called on rank 0 alone.
    """
    total = sum_on_first(private_sum)
    return from_first(add_noise(total) if rank() == 0 else total)


def pay_once(charge: Callable[[], None]) -> None:
    """Call what charges on rank 0, and let every rank go on when it is paid.

    Raises:
        BudgetExceeded: on every rank, when it was raised on rank 0.
    """
    refused: BudgetExceeded | None = None
    if rank() == 0:
        try:
            charge()
        except BudgetExceeded as error:
            refused = error
    if ranks() > 1:
        amounts = None if refused is None else (refused.requested_nano, refused.remaining_nano)
        amounts = object_from_first(amounts)
        if refused is None and amounts is not None:
            refused = BudgetExceeded(*amounts)
    if refused is not None:
        raise refused


@contextmanager
def _exchange() -> Iterator[None]:
    """Tell a lost partner from an error of this process. The backends raise plain RuntimeErrors."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        raise RankLost("another process of this training is gone") from error


def _exchange_device() -> torch.device:
    """NCCL exchanges what is on the GPU, gloo what is in memory."""
    on_gpu = distributed.get_backend() == "nccl"
    return torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
