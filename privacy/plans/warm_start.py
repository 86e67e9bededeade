"""Plan a warm start: noisy class means and covariances of wave coefficients, released before other stages.

Their level of detail follows from declared facts and the budget. A public prior states the strength of each cosine wave
in images. Waves far below the noise would only add static, so they are omitted. Nothing here reads a private record.
Used by `moments`, and by `dp_diffusion` with a `moments_fraction`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from models.sizes import TEXTURE_CELL, TEXTURE_MAPS
from privacy.accounting.events import GaussianEvent
from privacy.accounting.filter import Filter, stddev_for
from privacy.errors import InvalidParameter
from privacy.plans.plan import Stage
from privacy.plans.symmetry import Action, Waves

if TYPE_CHECKING:
    from privacy.plans.moments import MomentsConfig
    from privacy.plans.plan import PublicFacts

Array = npt.NDArray[np.float64]

# Mean square of an orthonormal cosine coefficient of a public image, as a share of its number of pixels, is
# POWER / (OFFSET + rows^2 + columns^2), frequencies in half waves per side. Fitted to 1,500 images of Debian's
# openclipart-png at 64 x 64 (luma of three channels; a third if there is one channel). Luma and the two chroma
# planes are defined by LUMA_CHROMA; chroma planes have these parts of luma's power.
POWER, OFFSET, PLANES = 0.02, 0.25, (1.0, 0.08, 0.035)
# Likewise of texture (`portable.textured`), seen as waves over the cells and over the orientations. The mean square of
# such a number, as a share of the number of cells, is TEXTURE_POWER / (TEXTURE_OFFSET + rows^2 + columns^2), times a
# part for the sum or the difference of fine and coarse waves, and one for the harmonic over orientations. Fitted to the
# same images at 28 x 28.
TEXTURE_POWER, TEXTURE_OFFSET = 0.045, 0.1
TEXTURE_LENGTHS, TEXTURE_HARMONICS = (1.0, 0.16), (1.0, 0.17, 0.043, 0.006, 0.002)
WITHIN = 0.75  # part of the power within classes, in the same images, by their folders
COLOUR_MIX: Array = np.array([[1.0, 1.0, 1.0], [1.0, 0.0, -1.0], [1.0, -2.0, 1.0]])  # luma and two planes of chroma
LUMA_CHROMA: Array = COLOUR_MIX / np.sqrt([[3.0], [2.0], [6.0]])
CENTRE = 0.5  # mid-grey: data on white and on black are equally far from it
NOISE_SHAPE = 0.25

# Chosen on MNIST, the training sides of Fashion-MNIST and CIFAR-10, and parts of the private sides of the small sets.
_COEFFICIENTS_EACH = 10.0  # times the square root of q
_COEFFICIENTS = (9, 256, 400)  # minimum; maximum in grey, and in colour
_COMPONENTS = (80, 120)  # maximum in grey, and in colour
_WITH_TEXTURE = 160  # components that carry coefficients and texture together
_WAVES_EACH = 7.0  # of texture, times the square root of q
_WAVES = (16, 400)  # minimum and maximum
TEXTURE_FROM = 150.0  # below, noise outweighs the benefit of texture
_CLASSES_FROM, _SHIFT_FROM = 70.0, 260.0  # from these, classes have own covariances, and more budget for them
_OWN_FIRST, _OWN_PER_Q = 16, 8.0  # components with covariances of their own
_CLUSTERS_FROM, _CLUSTER_PER_Q, _CLUSTERS, _CLUSTER_SHARE = 5000.0, 600.0, 16, 0.1  # only with texture
_NARROW_TO, _MANY = 40.0, 1600.0
_MEAN_CLIP, _DEVIATION_CLIP = (1.3, 2.0), (1.0, 1.35)  # norms in units of the prior's norm: few, many records
_COMPONENT_CLIP = 0.64  # of the deviations'; few records exceed it, and their loss is small compared with the noise
QUANTISATION = 1024  # clipped records are rounded to integers of at most this norm, for discrete noise
COUNT_WEIGHT = QUANTISATION // 4  # one record's part in its class's count; counts tolerate more noise than means
MEANS, POOLED, CLUSTERS, BY_CLASS = WARM_START = ("class_means", "pooled_covariance", "clusters", "class_covariances")
CLUSTER_ROUNDS = 3  # rounds of k-means, each a release


def coefficients_of(config: MomentsConfig, facts: PublicFacts) -> Waves:
    """Return the cosine waves whose coefficients are released: a grid for each colour plane, or the strongest."""
    rows, columns = config.grid(facts)
    plane, row, column = (axis.ravel() for axis in np.indices((facts.channels, rows, columns)))
    parts = np.array(PLANES if config.colour == "luma_chroma" else (1.0, 1.0, 1.0))[plane]
    scale = POWER * facts.height * facts.width * facts.channels / 3
    power = scale * parts / (OFFSET + row**2 + column**2)
    return _strongest(Waves(row, column, np.zeros_like(row), plane, power), config.coefficients, config)


def texture_waves(config: MomentsConfig, facts: PublicFacts) -> Waves:
    """Return the texture waves whose coefficients are released: the strongest, or all; none without texture."""
    rows, columns = facts.height // TEXTURE_CELL, facts.width // TEXTURE_CELL
    length, turn, row, column = (axis.ravel() for axis in np.indices((2, TEXTURE_MAPS // 2, rows, columns)))
    parts = np.array(TEXTURE_LENGTHS)[length] * np.array(TEXTURE_HARMONICS)[(turn + 1) // 2]
    power = TEXTURE_POWER * rows * columns * parts / (TEXTURE_OFFSET + row**2 + column**2)
    return _strongest(Waves(row, column, turn, length, power), config.texture_size(facts), config)


def _strongest(waves: Waves, count: int | None, config: MomentsConfig) -> Waves:
    """Return the `count` strongest waves (None: all), except those that a symmetry maps to an omitted wave."""
    if count is not None:
        waves = waves.at(np.argsort(-waves.power, kind="stable")[:count])
    return waves.at(np.flatnonzero(waves.partners() >= 0)) if config.symmetry == "square" else waves


def action_of(config: MomentsConfig, facts: PublicFacts) -> Action:
    """Return how the declared symmetries change the numbers of a record: coefficients, then texture."""
    seen = coefficients_of(config, facts), texture_waves(config, facts)
    one, two = (waves.action(config.symmetry) for waves in seen)
    across, down, swapped = (
        np.concatenate([getattr(one, name), getattr(two, name)]) for name in ("across", "down", "swapped")
    )
    partner = np.concatenate([one.partner, two.partner + len(one.partner)])
    return Action(config.symmetry, across, down, partner, swapped)


def power_of(config: MomentsConfig, facts: PublicFacts) -> Array:
    """Return the mean squares that the public prior expects for a record's numbers: coefficients, then texture."""
    return np.concatenate([coefficients_of(config, facts).power, texture_waves(config, facts).power])


def noise_shape(power: Array, exponent: float) -> Array:
    """Return the public scale (f,) by which coefficients are divided before they are clipped and get equal noise.

    Exponent 1/4 minimises the total noise: with scales w_i, the squared clip is proportional to sum P_i / w_i^2, and
    the variance to w_i^2. The product (sum P_i / w_i^2)(sum w_i^2) is least if w_i^2 is proportional to the square root
    of P_i. The scale is normalised to keep the prior's norm.
    """
    shape = power**exponent
    return shape * math.sqrt(float((power / shape**2).sum()) / float(power.sum()))


def signal(facts: PublicFacts, mu: float) -> float:
    """Return q, a signal-to-noise ratio: the declared units per class, times the mu that the warm start costs."""
    return facts.units_declared * mu / len(facts.classes)


def fraction_above_noise(config: MomentsConfig, facts: PublicFacts, stddev: float) -> Callable[[float], float]:
    """Return a function from the number of units of a class to the share of class differences above the noise.

    The share, in [0, 1], follows from the public prior and grows with the number of units. It sums the strengths of
    waves after the best linear shrinkage for the known noise, relative to all possible waves.

    Args:
        stddev: noise in a class's sum, relative to the largest norm of one clipped record.
    """
    seen = coefficients_of(config, facts)
    every = coefficients_of(config.with_values(frequencies=64, coefficients=None), facts)
    # Places of coefficients whose mean is not zero by a declared symmetry.
    may_differ, of_every = (waves.action(config.symmetry).blocks()[0][0] for waves in (seen, every))
    shape = noise_shape(power_of(config, facts), config.noise_shape)[may_differ]
    noise_of_one = (stddev * config.mean_clip * math.sqrt(facts.size) * shape) ** 2
    apart = (1.0 - WITHIN) * seen.power[may_differ]
    whole = (1.0 - WITHIN) * float(every.power[of_every].sum())
    return lambda units: float((apart**2 / (apart + noise_of_one / float(units) ** 2)).sum() / whole)


def clips_for(config: MomentsConfig, facts: PublicFacts, q: float) -> Mapping[str, float]:
    """Return the options that end in `_clip`: norms for coefficients, deviations and components, at 28 x 28 pixels.

    Clips are wider if q, from `signal`, is high: with little noise, a narrow clip distorts more than it saves. With
    declared symmetries, only the first block of `Action.blocks` has means. Deviations are clipped by the norm that
    `noisy_scatter` uses for several blocks.
    """
    power = power_of(config, facts)
    scaled = power / noise_shape(power, config.noise_shape) ** 2
    blocks = action_of(config, facts).blocks()
    norms = [float(scaled[places].sum()) / facts.size for pair in blocks for places in pair]
    along = _along(q, _NARROW_TO)
    means, deviations = (low + (high - low) * along for low, high in (_MEAN_CLIP, _DEVIATION_CLIP))
    means, deviations = means * math.sqrt(norms[0]), deviations * math.sqrt(math.hypot(*norms))
    clips = {"mean": means, "deviation": deviations, "component": _COMPONENT_CLIP * deviations}
    return {f"{name}_clip": round(clip, 3) for name, clip in clips.items()}


def _along(q: float, start: float) -> float:
    """Return the logarithmic position of q, from 0 at `start` to 1 at _MANY (Fashion-MNIST at epsilon 1)."""
    return min(1.0, max(0.0, math.log(q / start) / math.log(_MANY / start))) if q > 0 else 0.0


def detail_for(facts: PublicFacts, q: float, texture: bool, clusters: int | None) -> dict[str, Any]:
    """Return the options of a warm start that follow from facts and budget, except clips.

    Args:
        q: from `signal`.
        clusters: number per class; None: several if texture is released and their centres are far above the noise.
    """
    if clusters is None:
        clusters = min(_CLUSTERS, round(q / _CLUSTER_PER_Q)) if texture and q >= _CLUSTERS_FROM else 1
    in_colour = facts.channels > 1
    most = min(_COEFFICIENTS[2 if in_colour else 1], facts.pixels)
    coefficients = min(max(_COEFFICIENTS[0], round(_COEFFICIENTS_EACH * math.sqrt(q))), most)
    waves = min(max(_WAVES[0], round(_WAVES_EACH * math.sqrt(q))), _WAVES[1])
    of_clusters = _CLUSTER_SHARE if clusters > 1 else 0.0
    shares = (0.8, 0.2, 0.0)  # means, pooled covariance, own ones: with few records, means carry labels
    if q >= _CLASSES_FROM:  # the classes' own covariances are above the noise
        along = _along(q, _SHIFT_FROM)
        of_own, of_means = round(0.35 + 0.1 * along, 2), round(0.35 - 0.2 * along, 2)
        shares = (of_means, round(1.0 - of_own - of_means, 2), of_own)
    means, pooled, own = (round(share * (1.0 - of_clusters), 3) for share in shares)
    limit = _WITH_TEXTURE if texture else min(_COMPONENTS[in_colour], coefficients)
    return {
        **({"texture_waves": waves} if texture else {}),
        "colour": "luma_chroma" if in_colour else "rgb",
        "centre": CENTRE,
        "noise_shape": NOISE_SHAPE,
        "shrink": True,
        "frequencies": 64,
        "coefficients": coefficients,
        "components": limit,
        "class_components": min(limit, round(_OWN_FIRST + q / _OWN_PER_Q)),  # more with less noise
        "clusters": clusters,
        "mean_fraction": means,
        "pooled_covariance_fraction": pooled,
        "class_covariance_fraction": own,
        "cluster_fraction": of_clusters,
    }


def warm_start_event(name: str, stddev: float) -> GaussianEvent:
    """Return the event of one release of the warm start with discrete noise of parameter `stddev`.

    Privacy:
        A record (one per subject if the unit is the subject) adds to the sum of one class or cluster, or to one matrix.
        Let Q be QUANTISATION. To a sum, a record adds its coefficients, of norm at most Q, and a count of Q/4. To a
        matrix, it adds an outer product of norm at most Q^2 (`workers.recipes.released_sums` has the proofs).
    """
    together = math.nextafter(math.hypot(QUANTISATION, COUNT_WEIGHT), math.inf)  # of coefficients and count
    sensitivity = together if name in (MEANS, CLUSTERS) else float(QUANTISATION**2)
    return GaussianEvent.of_discrete_noise(sensitivity, stddev)


def warm_start_stages(config: MomentsConfig, budget_nano: int, privacy_filter: Filter) -> list[Stage]:
    """Divide a budget among the releases of a warm start by their shares. Return a stage for each nonzero share.

    Raises:
        InvalidParameter: the budget is too small.
    """
    shares = {
        MEANS: config.mean_fraction,
        POOLED: config.pooled_covariance_fraction,
        CLUSTERS: config.cluster_fraction,
        BY_CLASS: config.class_covariance_fraction,
    }
    stages, left_nano = [], budget_nano
    for name, share in shares.items():
        if share == 0:
            continue
        share_nano = min(int(budget_nano * share), left_nano)  # shares may add up to slightly more than 1
        left_nano -= share_nano
        count = CLUSTER_ROUNDS if name == CLUSTERS else 1
        if share_nano < count:
            raise InvalidParameter("budget_nano", budget_nano, "it is too small to pay for a warm start: raise epsilon")
        stddev = stddev_for(warm_start_event(name, 1e9).sensitivity, share_nano, count)
        event = dataclasses.replace(warm_start_event(name, stddev), count=count)
        stages.append(Stage(name, event, privacy_filter.cost_nano(event), stddev))
    return stages
