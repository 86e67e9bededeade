"""Audit every kind of release: compare measured lower bounds with claimed upper bounds.

Run `python -m benchmarks.canary_audit --json FILE`. Two parts:

* One run (Steinke, Nasr & Jagielski 2023; Mahloujifar et al. 2024 for mu) with a thousand canaries or more, every one
  in the data by a coin of its own: whole trainings, each kind of their releases and the finished generator or network,
  and single releases in which every canary is a worst case. Fashion-MNIST, or scikit-learn's digits where it is not
  installed.
* Many draws: each mechanism on its worst-case neighbours, thousands of times, correct and with each of the faults of
  `broken_mechanisms` and `broken_gradients` that it can have.

The command fails when a verdict is not as it must be: a correct mechanism must stay below its claim, and a broken one
must not where it is audited on its worst case.
"""

from __future__ import annotations

import math
import sys
import time

from benchmarks.audited import Audited
from benchmarks.audited_releases import audited_central_images, audited_mechanisms
from benchmarks.audited_trainings import digits_population, fashion_population
from benchmarks.broken_gradients import BROKEN_GRADIENTS
from benchmarks.broken_mechanisms import BROKEN
from benchmarks.gradient_games import audited_gradients, faults_of
from benchmarks.one_run_audit import COINS_SEED, CONFIDENCE, DELTA, VERDICT, Row, collect_runs
from benchmarks.results import machine, parser_of, show, write_json
from privacy.auditing import distinguishing

DRAWS_CONFIDENCE = 0.999  # of the bounds from many draws, which are sharp enough for it
VARIANTS = {**BROKEN, **BROKEN_GRADIENTS}
APPLIES = {  # which faults a mechanism can have
    "votes on an image": ("no noise", "half the noise", "votes beyond k", "votes beyond one", "shared shards"),
    "warm start": ("no noise", "half the noise", "sums beyond the clip", "mirrored beside"),
    "central images": ("no noise", "half the noise", "no clip"),
    "class histogram (records)": ("no noise", "half the noise"),
    "class histogram (subjects)": ("no noise", "half the noise", "subjects by record"),
    "votes for public pictures": ("no noise", "half the noise", "two votes each"),
    "two iterations of votes for public pictures": ("no noise", "noise once"),
}


def audit_mechanism(audited: Audited, variant: str, effort: int) -> Row:
    """Draw from both neighbours and bound mu and epsilon."""
    with VARIANTS[variant]():
        errors = audited.test(effort)
    claimed_epsilon = audited.epsilon(DELTA)
    measured_mu = distinguishing.mu_lower_bound(errors, DRAWS_CONFIDENCE, audited.probability)
    measured_epsilon = distinguishing.epsilon_lower_bound(errors, DELTA, DRAWS_CONFIDENCE)
    return {
        "mechanism": audited.name,
        "variant": variant,
        "draws": errors.without + errors.present,
        "sampling_probability": audited.probability,
        "errors": [errors.false_alarms, errors.misses],
        "claimed_epsilon": round(claimed_epsilon, 4),
        "measured_epsilon": round(measured_epsilon, 4),
        "claimed_mu": round(audited.mu, 4),
        "measured_mu": round(measured_mu, 4) if math.isfinite(measured_mu) else "none explains it",
        "flagged": measured_mu > audited.mu or measured_epsilon > claimed_epsilon,
        "must_be_flagged": variant != "correct",
    }


def faults(audited: Audited) -> tuple[str, ...]:
    """Return the faults that a mechanism is audited with."""
    for kind, names in APPLIES.items():
        if audited.name.startswith(kind):
            return names
    return faults_of(audited.name)


def collect_mechanisms(effort: int) -> list[Row]:
    """Measure all rows of the second part."""
    everything = (*audited_mechanisms(1.5), audited_central_images(1.5), *audited_gradients(1.5))
    return [
        audit_mechanism(audited, variant, effort) for audited in everything for variant in ("correct", *faults(audited))
    ]


def wrong(rows: list[Row]) -> list[Row]:
    """Return the rows whose verdict is not as it must be.

    A correct mechanism must never be flagged. A broken one must be where it is audited on its worst case; in a whole
    training on real records a fault may stay hidden, as it may from any attacker who can do no better.
    """
    return [row for row in rows if row["must_be_flagged"] not in (None, row["flagged"])]


def main(arguments: list[str] | None = None) -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--epsilons", type=float, nargs="+", default=[1.0, 10.0])
    parser.add_argument("--effort", type=int, default=5, help="times as many draws as the tests make")
    options = parser.parse_args(arguments)
    name, started = "fashion-mnist", time.monotonic()
    try:
        population = fashion_population(records=10_000)
    except FileNotFoundError:
        name, population = "digits", digits_population()
    runs, mechanisms = collect_runs(population, options.epsilons), collect_mechanisms(options.effort)
    columns = ("variant", "claimed_epsilon", "measured_epsilon", "claimed_mu", "measured_mu", "flagged")
    show(runs, ("release", *columns))
    show(mechanisms, ("mechanism", *columns))
    facts = {"dataset": name, "records": len(population.images), "delta": DELTA, "coins_seed": COINS_SEED}
    confidence = {"one_run_bounds": CONFIDENCE, "one_run_verdicts": VERDICT, "mechanisms": DRAWS_CONFIDENCE}
    facts |= {"confidence": confidence, "seconds": round(time.monotonic() - started)}
    write_json(options.json, machine() | facts | {"one_run": runs, "mechanisms": mechanisms})
    if surprises := wrong([*runs, *mechanisms]):
        sys.exit(f"{len(surprises)} verdicts are not as they must be: {surprises}")


if __name__ == "__main__":
    main()
