"""Small networks with records of theirs, and every estimator with options that a test may change."""

from typing import Any

import torch
from torch import nn

from privacy.gradients.build import random_mask
from privacy.gradients.dpsgd import DpSgd
from privacy.gradients.estimator import Estimator, shapes_of
from privacy.gradients.gep import Gep
from privacy.gradients.per_sample import Traces, trace_gradients
from privacy.gradients.rgp import Rgp
from privacy.gradients.topagg import TopAggSgd
from privacy.mechanisms.noise import SecureNoise

Records = tuple[torch.Tensor, torch.Tensor]  # inputs and targets


def noise(label: str = "step") -> SecureNoise:
    return SecureNoise.derive(b"a fixed secret for these tests", label)


def losses(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(outputs, targets, reduction="none")


def perceptron() -> nn.Module:
    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 4))


def batch(n: int, seed: int = 5) -> Records:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, 12, generator=generator), torch.randint(0, 4, (n,), generator=generator)


def anchors(model: nn.Module, stream: torch.Generator) -> Traces:
    inputs, _ = batch(40, seed=6)
    return trace_gradients(model, losses, inputs, torch.randint(4, (40,), generator=stream))


def convolutional() -> nn.Module:
    torch.manual_seed(8)
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1, stride=2),
        nn.GroupNorm(2, 6),
        nn.ReLU(),
        nn.Conv2d(6, 7, 3, bias=False),
        nn.Flatten(),
        nn.Linear(7 * 4, 9),
        nn.Tanh(),
        nn.Linear(9, 3),
    )


def images(n: int, seed: int = 1) -> Records:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, 3, 8, 8, generator=generator), torch.randint(0, 3, (n,), generator=generator)


class Tokens(nn.Module):
    """A small transformer block over tokens: embedding, layer norms, linear layers with several positions."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 6, padding_idx=0)
        self.query, self.key, self.value = (nn.Linear(6, 6, bias=bias) for bias in (True, False, True))
        self.norm, self.final, self.head = nn.LayerNorm(6), nn.LayerNorm(6), nn.Linear(6, 3)

    def forward(self, index: torch.Tensor) -> torch.Tensor:
        x = self.embed(index)
        z = self.norm(x)
        attention = (self.query(z) @ self.key(z).mT / 6**0.5).softmax(dim=-1)
        return self.head(self.final(x + attention @ self.value(z)).mean(dim=1))


class TiedTokens(nn.Module):
    """Its last weight is the embedding's, as in a language model, and another layer's is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.first, self.second = nn.Embedding(7, 6, padding_idx=0), nn.Linear(6, 6), nn.Linear(6, 6)
        self.second.weight = self.first.weight
        self.out, self.head = nn.Linear(6, 7, bias=False), nn.Linear(7, 3)
        self.out.weight = self.embed.weight

    def forward(self, index: torch.Tensor) -> torch.Tensor:
        return self.head(self.out(self.second(self.first(self.embed(index)).tanh()).tanh()).tanh().mean(dim=1))


def sequences(n: int) -> Records:
    """Return sequences of four tokens; the class is how many of them are below three, in steps of two."""
    tokens = torch.randint(1, 7, (n, 4), generator=torch.Generator().manual_seed(n))
    return tokens, ((tokens < 3).sum(dim=1) + 1) // 2


ESTIMATORS: dict[str, dict[str, Any]] = {
    "dpsgd": {},
    "topagg": {"keep": 0.5},
    "gep": {"basis_size": 6, "clip_residual": 0.2},
    "b_gep": {"basis_size": 6, "clip_residual": None},
    "gep_of_widths": {"basis_size": 6, "clip_residual": 0.2, "groups": "widths", "iterations": 3},
    "rgp": {"rank": 2},
}
FREEZING = [kind for kind in ESTIMATORS if kind != "rgp"]


def make(kind: str, model: nn.Module, **changes: Any) -> Any:
    """Make an estimator for a network, with hardly any noise."""
    options = {"clip": 0.3, "noise_multiplier": 1e-6, "expected_batch": 1.0, **ESTIMATORS[kind], **changes}
    if kind == "rgp":
        return Rgp(model, shapes_of(model), **options)
    if "basis_size" in options:
        return Gep(shapes_of(model), anchors, **options)
    return (TopAggSgd if kind == "topagg" else DpSgd)(shapes_of(model), **options)


def freeze_some(estimator: Estimator, rate: float = 0.5, seed: int = 0) -> torch.Tensor:
    mask = random_mask(estimator.coordinates, rate, torch.Generator().manual_seed(seed))
    estimator.freeze(mask)
    return mask


def released(estimator: Estimator) -> torch.Tensor:
    return torch.cat([value.flatten() for value in estimator.privatise(noise()).values()])


def sums(estimator: Estimator, model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return what a step sums before its noise, as one vector in the units of the sensitivity."""
    estimator.begin_step(model)
    estimator.add(trace_gradients(model, losses, inputs, targets))
    found = torch.cat([value.flatten() for value in estimator.discard().values()])
    assert found.dtype == torch.int64
    return found.double() * (estimator.sensitivity / estimator.bound)
