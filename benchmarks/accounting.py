"""How much noise jobs priced as a whole need, beside the best numerical accountant; and a search for wrong prices.

Run `python -m benchmarks.accounting --json FILE`. Noise is what one job that uses up its account needs, at delta 1e-5:
by its price (`privacy.accounting.approximate_gdp`), and by dp-accounting's privacy loss distributions, which know no
later job. With `--jobs N` it prices N random jobs. By privacy losses on a finer grid it looks for an epsilon at which
one shows more than was paid for; the same search is made for prices by the central limit theorem, which are too low.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from dp_accounting.pld import privacy_loss_distribution

from benchmarks.results import machine, parser_of, show, write_json
from privacy.accounting.approximate_gdp import curve, deviation, least_mu_squared, least_noise, mu_squared_within
from privacy.accounting.certificate import pld_epsilon
from privacy.accounting.events import PoissonGaussianEvent
from privacy.accounting.filter import open_filter
from privacy.accounting.gaussian import gaussian_deltas

DELTA = 1e-5
UNITS = 60_000
SETTINGS = {  # units of a step on average, steps
    "scatter": (8_192, 293),
    "cnn": (512, 352),
    "resnet20": (1_024, 3_000),
    "dpgan": (512, 170_000),
    "diffusion": (4_096, 4_395),
}
EPSILONS = (1.0, 3.0, 10.0)
ACCOUNTS = (1.0, 2.0, 3.0, 10.0)  # epsilons of accounts in which a job has epsilon 1
_CLOSE = 1e-4  # relative, of the best accountant's noise
_FINER = 3  # grids of the search beside those of prices
_LOOKS = 400  # epsilons of a search before it closes in on the worst
_LARGE = 1_000.0  # mu^2 of an account of epsilon 600
_TOO_MUCH = 1e-9  # relative: below that, a difference may be rounding


def least(fits: Callable[[float], bool], low: float, high: float) -> float:
    """Return the smallest number that fits, between one that does not and one that does."""
    while high > low * (1 + _CLOSE):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


def noise_row(setting: str, epsilon: float, account: float) -> dict[str, Any]:
    """Return the noise of a job of `epsilon` in an account of `account`, both ways."""
    batch, steps = SETTINGS[setting]
    probability = batch / UNITS
    rate = open_filter(account, DELTA).rate
    began = time.perf_counter()
    ours = least_noise(probability, steps, mu_squared_within(epsilon, DELTA, rate), rate)
    seconds = time.perf_counter() - began

    def fits(noise: float) -> bool:
        return pld_epsilon([PoissonGaussianEvent(probability, noise, steps)], DELTA) <= epsilon

    best = least(fits, ours / 1.2, ours * 1.01)
    return {
        "setting": setting,
        "epsilon": epsilon,
        "account": account,
        "filter_noise": round(ours, 4),
        "pld_noise": round(best, 4),
        "ratio": round(ours / best, 4),
        "seconds": round(seconds, 2),
    }


def random_job(rng: np.random.Generator) -> PoissonGaussianEvent:
    """Return a job: rates, noises and lengths of every size."""
    probability, noise, count = np.exp(rng.uniform(np.log([1e-4, 0.45, 1.0]), np.log([0.9, 20.0, 3_000.0])))
    return PoissonGaussianEvent(float(probability), float(noise), int(count))


def shown(losses: privacy_loss_distribution.PrivacyLossDistribution, epsilons: np.ndarray) -> np.ndarray:
    """Return the deltas of both directions' worse one at increasing epsilons, by cumulated sums."""
    found = np.zeros(len(epsilons))
    for one in (losses._pmf_remove, losses._pmf_add):
        dense = one.to_dense_pmf()
        loss = (dense._lower_loss + np.arange(dense.size)) * dense._discretization
        chance = np.append(np.cumsum(dense._probs[::-1])[::-1], 0.0)
        other = np.append(np.cumsum((dense._probs * np.exp(-loss))[::-1])[::-1], 0.0)
        first = np.searchsorted(loss, epsilons, side="right")
        found = np.maximum(found, dense._infinity_mass + chance[first] - np.exp(epsilons) * other[first])
    return found


def excess(job: PoissonGaussianEvent, mu_squared: float, rate: float, rng: np.random.Generator) -> float:
    """Return how many times what was paid for a job shows, at the worst epsilon that is found."""
    known = curve((job,)).epsilons
    step = 2.0 ** math.floor(math.log2(deviation(job) / math.sqrt(job.count) / 10)) / _FINER
    losses = privacy_loss_distribution.from_gaussian_mechanism(
        job.noise_multiplier, sampling_prob=job.sampling_probability, value_discretization_interval=step
    ).self_compose(job.count)
    low, high, worst = 0.0, 1.5 * float(known[-1]), 0.0
    for _ in range(3):
        epsilons = np.sort(rng.uniform(low, high, _LOOKS))
        d = rate * mu_squared
        paid = d + (1 - d) * gaussian_deltas(math.sqrt(mu_squared), epsilons)
        found = shown(losses, epsilons) / paid
        at = int(found.argmax())
        worst = max(worst, float(found[at]))
        low, high = float(epsilons[max(at - 1, 0)]), float(epsilons[min(at + 1, _LOOKS - 1)])
    return worst


def search(jobs: int, seed: int) -> Iterator[dict[str, Any]]:
    """Price random jobs and look for an epsilon at which a price is too low; the same for the central limit's.

    Yields:
        The results so far, after every hundred jobs and at the end.
    """
    rng = np.random.default_rng(seed)
    worst, too_low, control, made = 0.0, 0, 0, 0
    while made < jobs:
        job = random_job(rng)
        epsilon, delta = math.exp(rng.uniform(math.log(0.1), math.log(10))), 10 ** rng.uniform(-8, -3)
        rate = open_filter(epsilon, delta).rate
        price = least_mu_squared([job], rate)
        if not price < min(curve((job,)).mu_squared, _LARGE):
            continue  # priced as if it sampled nobody, so that nothing of the curve was used; or beyond any account
        made += 1
        found = excess(job, price, rate, rng)
        worst, too_low = max(worst, found), too_low + (found > 1 + _TOO_MUCH)
        if made % 10 == 0:
            control += excess(job, deviation(job) ** 2, rate, rng) > 1 + _TOO_MUCH
        if made % 100 == 0 or made == jobs:
            yield {
                "jobs": made,
                "too_low": too_low,
                "worst": worst,
                "control_jobs": made // 10,
                "control_too_low": control,
            }


def main(arguments: list[str] | None = None) -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--settings", nargs="*", default=list(SETTINGS), choices=list(SETTINGS))
    parser.add_argument("--jobs", type=int, default=0, help="search among so many random jobs")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    rows = [noise_row(name, epsilon, epsilon) for name in options.settings for epsilon in EPSILONS]
    small = [noise_row(name, 1.0, account) for name in options.settings for account in ACCOUNTS]
    show((*rows, *small), ("setting", "epsilon", "account", "filter_noise", "pld_noise", "ratio"))
    worst = max((row["ratio"] for row in rows), default=None)
    document = machine() | {"rows": rows, "small_jobs": small, "worst_ratio": worst}
    write_json(options.json, document)
    for found in search(options.jobs, options.seed):
        print(found, flush=True)
        write_json(options.json, document | {"search": found})


if __name__ == "__main__":
    main()
