"""Three deep classifiers that judge synthetic images: ResNet, wide ResNet and ResNeXt, with BatchNorm.

They see synthetic images in training and public ones in the test, so nothing here is private. `full` has the depths and
widths by which DPImageBench (Gong et al. 2025, arXiv:2503.14681) compares generators; `quick` has networks of
the same kinds that two CPU cores train in minutes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from models.classifiers import logits_in_batches, mixed_precision
from workers.recipes.interface import CheckpointFolder, NullCheckpoints, Progress, load_checkpoint, save_checkpoint

_WIDTH_MIN = 16
_BATCH, _RATE, _DECAY = 250, 2e-3, 1e-3


@dataclasses.dataclass(frozen=True)
class Shape:
    """A residual network of three stages, each with half the resolution and twice the channels of the one before."""

    blocks: int  # of a stage
    width: int  # channels of the first stage's blocks
    groups: int = 1  # of those convolutions; more than one makes blocks of three convolutions, those of a ResNeXt
    stem: int = 16  # channels of the first convolution

    def __post_init__(self) -> None:
        # On CPUs the gradient of a 1 x 1 convolution with stride 2, in `channels_last` order, writes beyond its memory
        # where there are fewer channels than a vector register holds floats: 8 with AVX2, where it was seen to end the
        # process with torch 2.15, and 16 with AVX-512 (https://github.com/uxlfoundation/oneDNN/issues/6035).
        if self.width < _WIDTH_MIN:
            raise ValueError(f"a residual network's first stage needs {_WIDTH_MIN} channels or more, not {self.width}")


SHAPES: Mapping[str, Mapping[str, Shape]] = {
    "quick": {"ResNet-20": Shape(3, 16), "WRN-10-2": Shape(1, 32), "ResNeXt-11": Shape(1, 32, 8)},
    "full": {
        "ResNet-110": Shape(18, 16),
        "WRN-40-4": Shape(6, 64),
        "ResNeXt-29": Shape(3, 256, 4, 64),
    },
}


class _Block(nn.Module):
    """Two 3 x 3 convolutions, or one in groups between two of 1 x 1, and a shortcut; normalised before each."""

    def __init__(self, inputs: int, width: int, groups: int, stride: int) -> None:
        super().__init__()
        sizes = [(inputs, width, 3, stride, 1), (width, width, 3, 1, 1)]
        if groups > 1:
            sizes = [(inputs, width, 1, 1, 1), (width, width, 3, stride, groups), (width, width, 1, 1, 1)]
        self.norms = nn.ModuleList(nn.BatchNorm2d(channels) for channels, *_ in sizes)
        self.convolutions = nn.ModuleList(
            nn.Conv2d(a, b, side, step, side // 2, groups=parts, bias=False) for a, b, side, step, parts in sizes
        )
        alike = stride == 1 and inputs == width
        self.shortcut = None if alike else nn.Conv2d(inputs, width, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        changed = x
        kept = x
        for place, (norm, convolution) in enumerate(zip(self.norms, self.convolutions, strict=True)):
            active = torch.relu(norm(changed))
            if place == 0 and self.shortcut is not None:
                kept = self.shortcut(active)
            changed = convolution(active)
        return kept + changed


def residual_network(shape: Shape, channels: int, classes: int) -> nn.Module:
    """Build a network of images (n, channels, h, w) in [0, 1] with outputs (n, classes)."""
    layers: list[nn.Module] = [nn.Conv2d(channels, shape.stem, 3, padding=1, bias=False)]
    inputs = shape.stem
    for stage in range(3):
        width = shape.width * 2**stage
        for block in range(shape.blocks):
            layers.append(_Block(inputs, width, shape.groups, 2 if stage > 0 and block == 0 else 1))
            inputs = width
    ends = [nn.BatchNorm2d(inputs), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes)]
    return nn.Sequential(*layers, *ends)


def _gradients_of(network: nn.Module, images: Tensor, labels: Tensor, batch: int) -> Callable[[Tensor], None]:
    # On a GPU a step is recorded once and replayed: a deep network of few channels has a thousand small kernels, which
    # take longer to launch one by one than to compute.
    def compute(rows: Tensor) -> None:
        seen = (images[rows].float() / 255).contiguous(memory_format=torch.channels_last)
        with mixed_precision(images.device):
            logits = network(seen)
        nn.functional.cross_entropy(logits.float(), labels[rows]).backward()  # type: ignore[no-untyped-call]

    if images.device.type != "cuda":

        def at_once(rows: Tensor) -> None:
            network.zero_grad(set_to_none=True)
            compute(rows)

        return at_once
    torch.backends.cudnn.benchmark = True  # one shape for all batches
    recorded_rows, graph = torch.arange(batch, device=images.device), torch.cuda.CUDAGraph()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    beside = torch.cuda.Stream()
    beside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(beside):  # libraries choose their kernels before anything is recorded
        for _ in range(3):
            network.zero_grad(set_to_none=True)
            compute(recorded_rows)
    torch.cuda.current_stream().wait_stream(beside)
    network.load_state_dict(before)  # BatchNorm had averaged
    network.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        compute(recorded_rows)

    def replay(rows: Tensor) -> None:
        recorded_rows.copy_(rows)
        graph.replay()

    return replay


def judged(
    shape: Shape,
    synthetic: tuple[Tensor, Tensor],
    test: tuple[Tensor, Tensor],
    *,
    classes: int,
    epochs: int,
    seed: int,
    device: torch.device,
    kept: CheckpointFolder | None = None,
    progress: Progress | None = None,
) -> float:
    """Train a fresh network on synthetic images to the last step, test it once and return the accuracy in [0, 1]."""
    images, labels = (part.to(device) for part in synthetic)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = residual_network(shape, images.shape[1], classes)
    network = network.to(device).to(memory_format=torch.channels_last)
    each = len(images) // _BATCH or 1
    optimiser = torch.optim.AdamW(network.parameters(), lr=_RATE, weight_decay=_DECAY, fused=device.type == "cuda")
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, _RATE, total_steps=epochs * each)
    parts = {"network": network, "optimiser": optimiser, "schedule": schedule}
    kept = kept or NullCheckpoints()
    saved, done = load_checkpoint(kept, device=device), 0
    if saved:
        done = saved["epochs"]
        for name, part in parts.items():
            part.load_state_dict(saved[name])
    network.train()
    learn = _gradients_of(network, images, labels, min(_BATCH, len(images)))
    for epoch in range(done, epochs):
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(epochs * seed + epoch))
        for index in torch.split(order.to(device), _BATCH)[:each]:
            learn(index)
            optimiser.step()
            schedule.step()
        save_checkpoint(kept, {name: part.state_dict() for name, part in parts.items()} | {"epochs": epoch + 1})
        if progress is not None:
            progress(stage="epochs", step=epoch + 1, steps=epochs)
    predicted = logits_in_batches(network, test[0].to(device).float() / 255, batch=500).argmax(dim=1).cpu()
    return float((predicted == test[1]).float().mean())
