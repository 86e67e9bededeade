"""Do the orders that the DP-SGD family's papers claim come out, where noise costs something?

Run `python -m benchmarks.reproductions.orders --setup NAME --seeds 0 1 2 --json FILE`; without `--setup`, every set-up.
An order says which of two methods should win. In each set-up

1. every method tries the same number of settings, trained on the set-up's images and tested on held-out training
   images, one seed; the best setting is kept,
2. it is run with each seed and a fresh secret, trained on the same images and tested once on the test images,
3. the same steps are run without noise: with the baseline's setting, and with the best of as many of their own.

An order is tested only where noise costs the baseline at least five points against the latter, because noise also
forces a low rate; elsewhere the verdict is "not a test". Verdicts are two-sided (Welch's t test, 5%). The power is the
difference that four of five such experiments would detect. Runs are written as they finish; a file keeps its runs.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.stats import t as student

from benchmarks.results import parser_of, show, spread, write_json
from benchmarks.runs import accuracy, steps_plan, train_plan, without_noise
from benchmarks.small_data import Folder, cifar10, fashion, load_clipart

BASELINE = "dpsgd"
NOISELESS, SAME_SETTING = "dpsgd without noise", "dpsgd without noise, same setting"
POINTS = 0.05  # that noise costs where an order is tested
LEVEL, SEEN = 0.05, 0.8
TUNING_SEED = 100
_HELD_OUT = 5_000
Options = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class SetUp:
    """Where methods are compared: a set, how many of its first records are trained on, and what all methods share.

    Attributes:
        anchors: GEP's public images; None: patterns from a public seed.
    """

    folder: Callable[[], Folder]
    records: int
    epsilon: float
    steps: int
    options: Options
    anchors: Callable[[], npt.NDArray[np.uint8]] | None = None


@dataclasses.dataclass(frozen=True)
class Method:
    """One way to privatise a step, and the settings that are tried for it: as many as for every other method."""

    options: Options
    tries: tuple[Options, ...]


_CNN: Options = {"architecture": "cnn", "expected_batch": 128, "clip": 1.0, "momentum": 0.0}
_FASHION = SetUp(
    fashion, 5_000, 0.5, 100, {**_CNN, "anchors": 200, "basis_size": 100}, functools.partial(load_clipart, 200, 28)
)
_CIFAR = SetUp(cifar10, 10_000, 0.5, 100, {**_CNN, "anchors": 100, "basis_size": 60})
SET_UPS: Mapping[str, SetUp] = {
    "fashion-mnist, small CNN": _FASHION,
    "cifar-10, small CNN": _CIFAR,
    # Noise costs the baseline more than five points here by the stricter reading as well (docs/research/orders.md).
    "fashion-mnist, small CNN, epsilon 0.3": dataclasses.replace(_FASHION, epsilon=0.3),
    "cifar-10, small CNN, epsilon 0.3": dataclasses.replace(_CIFAR, epsilon=0.3),
}
_GEP: Options = {"basis_groups": "widths"}  # S1:S2 = 5:1 follows
_RGP = ({"rank": 1, "learning_rate": 2.0}, {"rank": 2, "learning_rate": 1.0}, {"rank": 2, "learning_rate": 2.0})
METHODS: Mapping[str, Method] = {
    BASELINE: Method({}, tuple({"learning_rate": rate} for rate in (0.5, 1.0, 2.0))),
    NOISELESS: Method({}, tuple({"learning_rate": rate} for rate in (1.0, 2.0, 4.0))),
    "gep": Method({"estimator": "gep", **_GEP}, tuple({"learning_rate": rate} for rate in (1.0, 2.0, 4.0))),
    "bgep": Method({"estimator": "bgep", **_GEP}, tuple({"learning_rate": rate} for rate in (1.0, 2.0, 4.0))),
    "rgp": Method({"estimator": "rgp"}, _RGP),
    "rgp_random": Method({"estimator": "rgp_random"}, _RGP),
    "random freeze": Method(
        {"freeze": "random", "freeze_cooling": 0.65},
        (
            {"freeze_rate": 0.7, "learning_rate": 1.0},
            {"freeze_rate": 0.7, "learning_rate": 2.0},
            {"freeze_rate": 0.9, "learning_rate": 2.0},
        ),
    ),
    "topagg, k = 0.8": Method(
        {"estimator": "topagg", "keep": 0.8},
        (
            {"clip": 1.0, "learning_rate": 0.5},
            {"clip": 1.0, "learning_rate": 1.0},
            {"clip": 0.5, "learning_rate": 2.0},
        ),
    ),
    "dpsgd, momentum 0.9": Method(
        {"clip": 0.1, "momentum": 0.9}, tuple({"learning_rate": rate} for rate in (0.5, 1.0, 2.0))
    ),
}
# What the papers found: the first wins. TopAgg's paper finds it as good as the baseline, to 0.01 points at epsilon 1.
ORDERS: tuple[tuple[str, str, str], ...] = (
    ("gep", BASELINE, "GEP, Table 1: 59.7 against 43.6 (CIFAR-10, epsilon 2)"),
    ("gep", "bgep", "GEP, Table 1: 59.7 against 50.3"),
    ("bgep", BASELINE, "GEP, Table 1: 50.3 against 43.6"),
    ("rgp", "rgp_random", "RGP, Table 2: 63.4 against 51.0 (CIFAR-10, epsilon 8)"),
    ("rgp", BASELINE, "RGP, Table 2: 63.4 against 55.9"),
    ("random freeze", BASELINE, "freeze, Table 3: 64.5 against 63.1 (CIFAR-10, epsilon 3)"),
    (BASELINE, "dpsgd, momentum 0.9", "freeze, Table 3: 63.1 against 60.4"),
    ("topagg, k = 0.8", BASELINE, "DataLens, Table 8: 95.42 against 95.41 (MNIST, epsilon 1)"),
)


def compared(better: Sequence[float], worse: Sequence[float]) -> dict[str, Any]:
    """Compare two methods' accuracies by Welch's t test.

    Returns:
        The difference of means, its standard error, the two-sided verdict at 5%, and the power: the difference that
        four of five such experiments would have seen. Nothing where a side has fewer than two runs.
    """
    if min(len(better), len(worse)) < 2:
        return {}
    difference = statistics.mean(better) - statistics.mean(worse)
    squares = [statistics.variance(side) / len(side) for side in (better, worse)]
    error = math.sqrt(sum(squares))
    parts = sum(square**2 / (len(side) - 1) for square, side in zip(squares, (better, worse), strict=True))
    freedom = sum(squares) ** 2 / parts if parts else math.inf
    limit = float(student.ppf(1 - LEVEL / 2, freedom)) * error
    verdict = "no difference seen" if abs(difference) <= limit else "as published" if difference > 0 else "reversed"
    return {
        "difference": difference,
        "standard_error": error,
        "verdict": verdict,
        "power": limit + float(student.ppf(SEEN, freedom)) * error,
    }


def judged(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a set-up's accuracies by method, the cost of noise, and a row for each order."""
    found: dict[str, list[float]] = {}
    for run in runs:
        found.setdefault(run["method"], []).append(run["accuracy"])
    means = {
        name: {"mean": row["ours"], "sd": row["sd"], "seeds": row["seeds"]}
        for name, row in ((name, spread(values)) for name, values in found.items())
    }
    if BASELINE not in found or NOISELESS not in found:
        return {"methods": means, "noise_costs": None, "orders": []}
    costs = means[NOISELESS]["mean"] - means[BASELINE]["mean"]
    same = means[SAME_SETTING]["mean"] - means[BASELINE]["mean"] if SAME_SETTING in means else None
    rows = []
    for better, worse, published in ORDERS:
        row = compared(found.get(better, []), found.get(worse, []))
        if row:
            verdict = row["verdict"] if costs >= POINTS else "not a test"
            rows.append({"better": better, "worse": worse, "published": published, **row, "verdict": verdict})
    return {"methods": means, "noise_costs": costs, "noise_costs_at_the_same_setting": same, "orders": rows}


def chosen(tries: Sequence[Mapping[str, Any]], method: str) -> Options:
    """Return the setting of a method that was best on the held-out images."""
    best: Options = max((run for run in tries if run["method"] == method), key=lambda run: run["accuracy"])["setting"]
    return best


def measure(set_up: SetUp, name: str, setting: Options, seed: int, *, held_out: bool) -> dict[str, Any]:
    """Make one run and return what is kept of it."""
    method = METHODS[BASELINE if name == SAME_SETTING else name]
    options = {**set_up.options, **method.options, **setting}
    anchors = None
    if set_up.anchors is not None and options.get("estimator") in ("gep", "bgep"):
        anchors, options["anchors_dataset_id"] = set_up.anchors(), "public-pictures"
    whole = _loaded(set_up.folder)
    folder = whole.tuning(set_up.records, _HELD_OUT) if held_out else whole.first(set_up.records)
    plan = steps_plan(folder, options, set_up.epsilon, seed, set_up.steps)
    plan, started = without_noise(plan) if name in (NOISELESS, SAME_SETTING) else plan, time.monotonic()
    found = accuracy(train_plan(folder, plan, anchors), folder)
    seconds = round(time.monotonic() - started, 1)
    print(f"  {name} {json.dumps(setting)} seed {seed}: {found:.4f} ({seconds:.0f} s)", flush=True)
    return {"method": name, "setting": setting, "seed": seed, "accuracy": found, "seconds": seconds}


@functools.cache
def _loaded(folder: Callable[[], Folder]) -> Folder:
    return folder()


def run_set_up(
    set_up: SetUp, document: dict[str, Any], seeds: Sequence[int], methods: Sequence[str], keep: Callable[[], None]
) -> None:
    """Make the runs that a set-up's document lacks."""
    tries, runs = document.setdefault("tries", []), document.setdefault("runs", [])
    for name in methods:
        for setting in METHODS[name].tries:
            if (name, setting) not in [(run["method"], run["setting"]) for run in tries]:
                tries.append(measure(set_up, name, setting, TUNING_SEED, held_out=True))
                keep()
    for seed in seeds:
        for name in (SAME_SETTING, *methods):
            if (name, seed) not in [(run["method"], run["seed"]) for run in runs]:
                setting = chosen(tries, BASELINE if name == SAME_SETTING else name)
                runs.append(measure(set_up, name, setting, seed, held_out=False))
                keep()


def main(arguments: list[str] | None = None) -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--setup", nargs="+", choices=list(SET_UPS), default=list(SET_UPS))
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    options = parser.parse_args(arguments)
    if not {BASELINE, NOISELESS} <= set(options.methods):
        parser.error(f"the rule is about what {BASELINE} loses to noise: --methods needs {BASELINE} and {NOISELESS}")
    document: dict[str, Any] = {}
    if options.json is not None and options.json.exists():
        document = json.loads(options.json.read_text(encoding="utf-8"))

    def keep() -> None:
        write_json(options.json, document)

    for name in options.setup:
        set_up = SET_UPS[name]
        described = {"records": set_up.records, "epsilon": set_up.epsilon, "steps": set_up.steps, **set_up.options}
        of_it = document.setdefault(name, {"set_up": described})
        run_set_up(set_up, of_it, options.seeds, options.methods, keep)
        of_it |= judged(of_it["runs"])
        keep()
        same = of_it["noise_costs_at_the_same_setting"]
        print(f"{name}: noise costs the baseline {of_it['noise_costs']:.4f} ({same:.4f} at the same setting)")
        rows = [{"method": method, **row} for method, row in of_it["methods"].items()]
        show(rows, ("method", "mean:.4f", "sd:.4f", "seeds"))
        show(of_it["orders"], ("better", "worse", "difference:+.4f", "standard_error:.4f", "power:.4f", "verdict"))


if __name__ == "__main__":
    main()
