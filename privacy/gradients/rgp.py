"""Reparametrised gradient perturbation (Yu et al., ICML 2021, arXiv:2106.09352, Algorithms 1 and 2), and RGP-random.

A weight W (p, d) is L R + (W - L R). Columns of L (p, r) and rows of R (r, d), the carriers, are orthonormal. Only the
gradients of L and R are computed per record: r (p + d) numbers instead of p d. With a layer's inputs a_t and output
gradients g_t at position t,

    dL = sum_t g_t (R a_t)^T,    dR = sum_t (L^T g_t) a_t^T.

A weight that several layers share has one pair of carriers; a record contributes the sum over these layers. All of a
record's numbers (of L, R, biases, norms and small layers) are clipped jointly to C, summed and released. The update of
W is (dL) R + L (dR) - L L^T (dL) R (Corollary 2.1.1).

Adjacency: add or remove one record. Unit: the record. Event: one Gaussian release for each step, Poisson-sampled.

Sensitivity: C, as DP-SGD's, in whole steps of a grid. The carriers come from the released weights: by power iteration
on W_t during the warm-up, on the historical update W_t - W_0 after it. RGP-random draws them from public randomness.
Their ranks follow from the layers' shapes. Given the carriers, the proof is that of the Gaussian mechanism.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Unpack

import torch
from torch import nn
from torch.nn import functional

from privacy.accounting.events import positive_finite
from privacy.errors import InvalidParameter
from privacy.gradients.arithmetic import aligned_linear, aligned_products
from privacy.gradients.estimator import Common, Estimator
from privacy.gradients.integers import exact_sums, parted, squares, whole
from privacy.gradients.layers import LayerTrace, Shares, convolution_weight_shares
from privacy.gradients.per_sample import Traces, add_shares
from privacy.mechanisms.noise import SecureNoise


def carriers_of(
    matrix: torch.Tensor, rank: int, generator: torch.Generator, iterations: int = 1
) -> tuple[torch.Tensor, torch.Tensor]:
    """Approximate a matrix by a product L R of lower rank (Algorithm 2).

    Args:
        matrix: (p, d), released.
        rank: r, below p and d.
        generator: public randomness.
        iterations: K, at least 1.

    Returns:
        L (p, r) with orthonormal columns and R (r, d) with orthonormal rows.
    """
    right = torch.randn(matrix.shape[1], rank, generator=generator, dtype=matrix.dtype).to(matrix.device)  # (d, r)
    for _ in range(iterations):
        left = torch.linalg.qr(matrix @ right)[0]  # (p, r)
        right = torch.linalg.qr(matrix.mT @ left)[0]
    return left, right.mT


class Rgp(Estimator):
    """RGP; or RGP-random, if `random` is True.

    Args:
        model: its linear and ungrouped convolutional layers get carriers if they are larger than the rank.
        rank: upper bound of r in every layer. Public.
        rank_fraction: largest rank as a share of a matrix's smaller side, in (0, 1]. Public.
        clip: C, the largest joint norm of one record's gradients and the sensitivity. Public.
        common: parameters of every estimator. The noise multiplier is the noise's standard deviation over C.
        warm_up_steps: number of first steps, whose carriers come from the weights, not from their changes.
        random: draw new random carriers in every step (RGP-random).
        iterations: K, power iterations for each pair of carriers. Public.
    """

    def __init__(
        self,
        model: nn.Module,
        shapes: Mapping[str, torch.Size],
        *,
        rank: int,
        clip: float,
        rank_fraction: float = 1.0,
        warm_up_steps: int = 0,
        random: bool = False,
        iterations: int = 1,
        seed: int = 0,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(shapes, **common)
        self.clip = self.sensitivity = positive_finite("clip", clip)
        self.rank, self.rank_fraction, self.iterations = rank, rank_fraction, iterations
        self.random, self.warm_up_steps, self.steps = random, warm_up_steps, 0
        self._generator = torch.Generator().manual_seed(seed)
        names = {id(value): name for name, value in model.named_parameters() if name in self.shapes}
        self._start = {
            names[id(layer.weight)]: layer.weight.detach().clone()
            for layer in model.modules()
            if isinstance(layer, nn.Linear) or (isinstance(layer, nn.Conv2d) and layer.groups == 1)
            if id(layer.weight) in names
            if min(layer.weight.flatten(1).shape) > self.rank_in(layer.weight.flatten(1).shape)
        }
        self._carriers: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}

    def rank_in(self, shape: torch.Size) -> int:
        """Return r for a matrix (p, d): `rank`, or less if `rank_fraction` of the smaller side is less; at least 1."""
        return max(1, min(self.rank, math.floor(self.rank_fraction * min(shape))))

    def begin_step(self, model: nn.Module) -> None:
        """Find the step's carriers from released weights, or from public randomness."""
        weights, generator = dict(model.named_parameters()), self._generator
        for name, start in self._start.items():
            matrix = weights[name].detach().flatten(1)  # (p, d)
            rank = self.rank_in(matrix.shape)
            if self.random:
                normal = (torch.randn(size, rank, generator=generator) for size in matrix.shape)
                left, right = (torch.linalg.qr(columns)[0].to(matrix) for columns in normal)  # (p, r) and (d, r)
                right = right.mT
            else:
                if self.steps >= self.warm_up_steps and self.steps > 0:  # at the first step no weight has changed yet
                    matrix = matrix - start.flatten(1)
                left, right = carriers_of(matrix, rank, generator, self.iterations)
            self._carriers[name] = self.curator.agree(left), self.curator.agree(right)

    def add(self, traces: Traces) -> None:
        """Clip each record's gradients of carriers and other parameters jointly, and add them to the sum."""
        if self._start and not self._carriers:
            raise InvalidParameter("carriers", None, "call begin_step, which finds the carriers, before adding records")
        parts = self.carrier_shares(traces)  # name -> (n, ...)
        rows = torch.cat([part.flatten(1) for part in parts.values()], dim=1)  # (n, all of them)
        scales = self.scales(squares(rows).sqrt(), self.clip)
        sums = exact_sums([({"": whole(rows, scales)}, traces.present)], self.bound)
        self._add_sums(parted(sums[""], {name: part.shape[1:] for name, part in parts.items()}))

    def carrier_shares(self, traces: Traces) -> Shares:
        """Return each record's gradients of L and R, and of the parameters without carriers. PRIVATE.

        Returns:
            "<weight>/L" (n, p, r), "<weight>/R" (n, r, d), and others by parameter name (n, *shape).
        """
        found: Shares = {}
        for trace in traces.layers:
            weight = trace.full("weight")
            if weight not in self._carriers:
                add_shares(found, trace.shares())
                continue
            shares = _carrier_shares(trace, *self._carriers[weight])
            add_shares(found, dict(zip((f"{weight}/L", f"{weight}/R"), shares, strict=True)))
            bias = getattr(trace.layer, "bias", None)
            if isinstance(bias, nn.Parameter) and bias.requires_grad:
                rows = trace.backprops if isinstance(trace.layer, nn.Linear) else trace.backprops.movedim(1, -1)
                add_shares(found, {trace.full("bias"): rows.reshape(traces.records, -1, len(bias)).sum(dim=1)})
        return found

    def privatise(self, noise: SecureNoise) -> Shares:
        empty: dict[str, torch.Size] = {}
        for name, shape in self.shapes.items():
            pair = self._carriers.get(name)
            empty |= {name: shape} if pair is None else {f"{name}/L": pair[0].shape, f"{name}/R": pair[1].shape}
        noisy = self._privatise_sums(empty, noise)
        for name, (left, right) in self._carriers.items():
            d_left, d_right = noisy[f"{name}/L"].to(left), noisy[f"{name}/R"].to(left)
            update = d_left @ right + left @ d_right - left @ (left.mT @ d_left @ right)
            noisy[name] = update.reshape(self.shapes[name])
        self._carriers = {}
        self.steps += 1
        return {name: noisy[name] / self.expected_batch for name in self.shapes}

    def state(self) -> dict[str, Any]:
        """Return the public generator, the weights of the first step and the number of steps done."""
        return {"generator": self._generator.get_state(), "start": dict(self._start), "steps": self.steps}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._generator.set_state(state["generator"].cpu())
        self._start = {name: state["start"][name].to(value) for name, value in self._start.items()}
        self.steps = int(state["steps"])


def _carrier_shares(trace: LayerTrace, left: torch.Tensor, right: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return each record's gradients of a layer's carriers: of L (n, p, r), and of R (n, r, d)."""
    n, layer, rank = trace.records, trace.layer, len(right)
    if isinstance(layer, nn.Conv2d):
        kernel = right.reshape(rank, layer.in_channels, *layer.kernel_size)
        inner = functional.conv2d(trace.activations, kernel, None, layer.stride, layer.padding, layer.dilation)
        back = functional.conv2d(trace.backprops, left.mT[:, :, None, None])  # (rows, r, h', w')
        right_shares = convolution_weight_shares(layer, trace.activations, back, trace.repeats).flatten(2)
        g, h = (
            values.reshape(n, trace.repeats, values.shape[1], -1).transpose(1, 2).flatten(2)
            for values in (trace.backprops, inner)
        )  # (n, p, repeats * t) and (n, r, repeats * t)
        return aligned_products(g, h), right_shares
    if isinstance(layer, nn.Embedding):  # tied to a linear layer: its inputs are rows of the identity
        index = trace.activations.reshape(n, -1)  # (n, t)
        g = trace.backprops.reshape(n, -1, layer.embedding_dim)  # (n, t, d)
        if layer.padding_idx is not None:
            g = g * (index != layer.padding_idx)[:, :, None]
        inner = aligned_linear(g, right)  # (n, t, r)
        left_shares = torch.zeros(n, layer.num_embeddings, rank, device=g.device, dtype=g.dtype)
        left_shares.scatter_add_(1, index[:, :, None].expand_as(inner), inner)
        return left_shares, aligned_products(left[index].mT, g.mT)
    a = trace.activations.reshape(n, -1, trace.activations.shape[-1])  # (n, t, d)
    g = trace.backprops.reshape(n, -1, trace.backprops.shape[-1])  # (n, t, p)
    return (aligned_products(g.mT, aligned_linear(a, right).mT), aligned_products(aligned_linear(g, left.mT).mT, a.mT))
