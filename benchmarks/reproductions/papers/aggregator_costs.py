"""DataLens, Table 6 and Figure 2, and how near releases are to the exact mean gradient."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from scipy.stats import norm
from torch import Tensor

from benchmarks.budgets import NoLedger
from benchmarks.reproductions.aggregators.d2p_fed import D2PFed
from benchmarks.reproductions.aggregators.fetch_sgd import FetchSgd
from benchmarks.reproductions.aggregators.gaussian import ClippedSum
from benchmarks.reproductions.aggregators.release import Aggregator, aggregate
from benchmarks.reproductions.aggregators.topagg import TopAgg
from benchmarks.reproductions.papers.aggregator_set_ups import DELTA, NO_COMPRESSION, TOPAGG, SetUp, place
from benchmarks.reproductions.papers.dense_networks import PixelStudent
from benchmarks.reproductions.papers.rows import Row, row_of, since, spread
from models.shards import Shards
from models.teacher_ensemble import TeacherConfig, TeacherEnsemble
from privacy.accounting.filter import open_filter
from privacy.mechanisms.noise import SecureNoise, derive_key
from privacy.mechanisms.partition import record_units, shard_members, shard_of

_PIXELS, _TEACHERS = 784, 4000
_PUBLISHED_6 = {  # seconds of an epoch
    "mnist": {TOPAGG: 338.34, "D2P-Fed": 492.43, "FetchSGD": 785.34},
    "fashion-mnist": {TOPAGG: 340.84, "D2P-Fed": 471.02, "FetchSGD": 775.35},
}
_SHARED_BY = (2245, 300, 100, 30, 10, 1)  # images that share epsilon 1: what the paper's k and sigma afford, and fewer


def _aggregators(length: float) -> dict[str, list[Aggregator]]:
    """Four settings of each method, for gradients of about this length."""
    of: dict[str, Any] = {"teachers": _TEACHERS, "dimension": _PIXELS, "stddev": 1e3}
    even = length / math.sqrt(1024)  # a rotated coordinate
    ks, quorums = (100, 200, 400, 784), (0.1, 0.2, 0.3, 0.5)
    sketches = [(100, 256), (400, 256), (100, 784), (400, 784)]
    return {
        TOPAGG: [TopAgg(k=200, c=1e-5, beta=beta, **of) for beta in quorums],
        "TopAgg without threshold": [TopAgg(k=k, c=1e-5, **of) for k in ks],
        "D2P-Fed": [D2PFed(levels=levels, clip=times * even, **of) for levels in (2, 16) for times in (1, 3)],
        "FetchSGD": [FetchSgd(k=k, c=1e-5, rows=3, columns=columns, **of) for k, columns in sketches],
        NO_COMPRESSION: [ClippedSum(clip=times * length, **of) for times in (0.25, 0.5, 1.0, 2.0)],
    }


def table_6(dataset: str, budget: str) -> list[Row]:
    """Seconds for one aggregated image of 784 pixels and 4,000 teachers, one thread; medians of five.

    Gradients are drawn at random: what they are does not change the time. TopAgg has k = 200, D2P-Fed 16 levels,
    FetchSGD k = 100 and three rows of 256 buckets.
    """
    del budget  # seconds, whatever the budget
    rows, images = [], 10
    g = torch.randn(_TEACHERS, images, _PIXELS, generator=torch.Generator().manual_seed(0))
    for method, settings in _aggregators(28.0).items():
        aggregator, found = settings[2 if method == "D2P-Fed" else 0], []
        for repeat in range(5):
            noise, coins = SecureNoise.derive(bytes(32), repeat), torch.Generator().manual_seed(repeat)
            started = time.perf_counter()
            aggregate(aggregator, g, NoLedger(), coins, noise)
            found.append((time.perf_counter() - started) / images)
        more = {**spread(found), "ours": statistics.median(found), "seconds": round(sum(found) * images, 1)}
        more["published"] = _PUBLISHED_6.get(dataset, {}).get(method)
        setting = "seconds an image (published: an epoch on a GPU)"
        rows.append(row_of("datalens", "6", method, dataset, 1.0, setting, **more))
    return rows


def _gradients(dataset: str) -> Mapping[str, Tensor]:
    """Two sorts of teachers, and what they say of ten images, one of each class: (N, 10, 784). PRIVATE.

    Linear ones look at a grey image. The paper's, with 32 hidden units, have taken ten steps and look at what an
    untrained generator draws.
    """
    where = place(SetUp(dataset, 60_000, _TEACHERS), held_out=False)
    images, labels, secret = where.folder.images, where.folder.labels, bytes(32)
    shard = shard_of(record_units(images, labels), derive_key(secret, "shards"), _TEACHERS)
    members = shard_members(shard, _TEACHERS)
    shards = Shards(torch.from_numpy(images.reshape(len(images), -1)), torch.from_numpy(labels), members)
    coins = torch.Generator().manual_seed(0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        student, y = PixelStudent(10), torch.arange(10)
        ensemble = TeacherEnsemble(TeacherConfig(inputs=_PIXELS, classes=10, hidden=32), _TEACHERS, generator=coins)
        for _ in range(10):
            ensemble.update(shards.batch(15, coins, slice(0, _TEACHERS)), student.propose(y).detach(), y)
        found = [g.clone() for _, g in ensemble.image_gradients(student.propose(y).detach(), y)]
    return {
        "linear teachers": where.teachers(secret).gradients(where.start),
        "the paper's teachers": torch.cat(found),
    }


def directions(dataset: str, budget: str) -> list[Row]:
    """Cosine of what is released with the exact mean gradient, by how many images share epsilon 1; not in the paper.

    For the operator alone. Whether a loop learns has no part in it, so the paper's own teachers can be asked, too. Of
    four settings of each method the best one is told, with its strength: the length of the teachers' mean share over
    the longest that a share may be, twice which is the sensitivity.
    """
    del budget
    rows = []
    for sort, private in _gradients(dataset).items():
        exact, length = private.mean(dim=0), float(private.norm(dim=2).median())
        for method, settings in _aggregators(length).items():
            started = time.monotonic()
            sums = [setting.sums(private, torch.Generator().manual_seed(0)) for setting in settings]
            for shared_by in _SHARED_BY:
                tried = [_cosines(of, total, exact, shared_by) for of, total in zip(settings, sums, strict=True)]
                best = max(range(len(tried)), key=lambda at: statistics.mean(tried[at]))
                more = {**spread(tried[best]), "shared_by": shared_by, "teachers": sort}
                more["strength"] = _strength(settings[best], sums[best])
                setting = f"cosine with the exact mean gradient, {sort}, {shared_by} images share the budget"
                more["seconds"] = since(started)
                rows.append(row_of("datalens", "directions", method, dataset, 1.0, setting, **more))
    return rows


def _strength(of: Aggregator, sums: Tensor) -> float:
    """Length of the teachers' mean share over the longest that one share can be: signal for sensitivity."""
    return float(sums.double().norm(dim=1).mean()) / (of.teachers * math.sqrt(of.square_max))


def _cosines(of: Aggregator, sums: Tensor, exact: Tensor, shared_by: int) -> Sequence[float]:
    paid = of.affording(open_filter(1.0, DELTA).capacity_nano, shared_by)
    noise, found = SecureNoise.derive(bytes(32), shared_by), []
    for _ in range(5):
        released = of.direction(sums + torch.from_numpy(noise.discrete_gaussian(tuple(sums.shape), paid.stddev)))
        found.append(float(torch.nn.functional.cosine_similarity(released, exact, dim=1).mean()))
    return found


def figure_2(dataset: str, budget: str) -> list[Row]:
    """What the data-dependent bound could save: nothing, for the likeliest output of an image is never likely.

    For the operator alone: it reads exact votes. By Theorem 5 the chance of the likeliest outcome is the product over
    the coordinates; Theorem 4 helps only where that is near one. Rows give its logarithm to base ten, for one image
    of each class, under the paper's k, sigma and beta, and how many coordinates, the surest ones first, could be
    released before their outcome is less likely than not.
    """
    del budget
    started = time.monotonic()
    private = _gradients(dataset)["linear teachers"]
    rows = []
    for epsilon, k, sigma in ((1.0, 200, 5000.0), (10.0, 350, 900.0)):
        of = TopAgg(teachers=_TEACHERS, dimension=_PIXELS, stddev=sigma, k=k, c=1e-5)
        sums = of.sums(private, torch.Generator().manual_seed(0)).double().numpy()  # (classes, d)
        for beta in (0.1, 0.5, 0.9):
            quorum = beta * of.teachers
            up, down = norm.sf(quorum, sums, sigma), norm.cdf(-quorum, sums, sigma)
            likeliest = torch.from_numpy(up).maximum(torch.from_numpy(down)).maximum(torch.from_numpy(1 - up - down))
            logs = likeliest.log().sort(dim=1, descending=True).values  # (classes, d)
            together = (logs.cumsum(dim=1) > math.log(0.5)).sum(dim=1).double().mean()
            setting = f"log10 of the likeliest outcome's chance; k {k}, sigma {sigma:g}, beta {beta}"
            more = {**spread((logs.sum(dim=1) / math.log(10)).tolist()), "coordinates_together": float(together)}
            more |= {"seeds": 1, "seconds": since(started)}
            rows.append(row_of("datalens", "figure 2", "data-dependent bound", dataset, epsilon, setting, **more))
    return rows


TABLES = {("datalens", "6"): table_6}
FIGURES = {("datalens", "2"): figure_2, ("datalens", "directions"): directions}
