"""How far off previews are: what a stand-in forecasts, beside what was measured on the images themselves.

Run `python -m benchmarks.previews --json FILE`. The truth is the median of the column `default` of small_folders.json.
A forecast is made from what was declared alone, once with the stand-in that a worker chooses by itself and once with a
public set that looks like the private one. Where Fashion-MNIST stands in for a part of itself, the two share no image.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch
from scipy.stats import spearmanr

from benchmarks.generator_runs import DELTA, OURS
from benchmarks.results import Results, Row, machine, parser_of, show, since
from benchmarks.small_data import SETS, Folder, cifar10, facts_of, fashion, mnist
from benchmarks.small_folders import ROWS
from models.stand_ins import StandIn
from privacy.accounting.filter import open_filter
from privacy.plans.plan import PublicFacts
from privacy.plans.registry import build_plan
from workers.recipes.registry import TRAINERS
from workers.train.kinds.preview import Rehearsal, cut, find_stand_in, forecast

TRUTH = Path("docs/research/small_folders.json")
ALIKE = ("fashion_3000", "fashion_10000")  # whose stand-in is of the same kind


def others_of(folder: Folder) -> Folder:
    """Return Fashion-MNIST without the images of a folder cut from it."""
    whole = fashion()
    own = {image.tobytes() for image in folder.images}
    kept = np.array([image.tobytes() not in own for image in whole.images])
    return dataclasses.replace(whole, images=whole.images[kept], labels=whole.labels[kept])


def of_folder(source: Folder, name: str, facts: PublicFacts) -> StandIn:
    """Return a stand-in made of a public folder."""
    return cut(source.images, source.labels, source.classes, name, facts)


def chosen(name: str, folder: Folder, facts: PublicFacts) -> StandIn:
    """Return what a worker would choose by itself; of a part of Fashion-MNIST, the rest of it."""
    if name.startswith("fashion"):
        return of_folder(others_of(folder), "Fashion-MNIST", facts)
    return find_stand_in(facts)


NAMED: Mapping[str, Callable[[], Folder]] = {"digits": mnist, "emoji": cifar10}  # public sets that look alike


def measure(folder: Folder, stand_in: StandIn, epsilon: float) -> Row:
    """Make one forecast."""
    facts, privacy_filter = facts_of(folder), open_filter(epsilon, DELTA)
    plan = build_plan("moments", {}, privacy_filter, privacy_filter.capacity_nano, facts)
    started = time.monotonic()
    found = forecast(Rehearsal(plan, facts, stand_in), TRAINERS["moments"])
    return {
        "stand_in": found.stand_in,
        "accuracy": found.accuracy,
        "real": found.real,
        "seconds": since(started),
    }


def main() -> None:
    """Make the forecasts that are missing, and print how far off they are."""
    parser = parser_of(__doc__)
    parser.add_argument("--datasets", nargs="+", default=list(ROWS))
    options = parser.parse_args()
    torch.set_num_threads(1)
    results = Results(options.json, **machine())
    measured = json.loads(TRUTH.read_text(encoding="utf-8"))["rows"]
    truth = {(row["dataset"], row["epsilon"]): row["accuracy"] for row in measured if row["variant"] == OURS}
    for name in options.datasets:
        folder = SETS[name]()
        facts = facts_of(folder)
        stand_ins = {"chosen": chosen(name, folder, facts)}
        if name in NAMED:
            stand_ins["named"] = of_folder(NAMED[name](), NAMED[name].__name__, facts)
        for epsilon in ROWS[name]:
            for how, stand_in in stand_ins.items():
                if results.find(dataset=name, epsilon=epsilon, how=how) is None:
                    row = {"dataset": name, "epsilon": epsilon, "how": how, **measure(folder, stand_in, epsilon)}
                    results.put(row | {"truth": truth.get((name, epsilon))})
    results.document["summary"] = summary(results.rows)
    results.write()
    show(results.rows, ("dataset", "epsilon", "how", "stand_in", "accuracy:.3f", "truth:.3f"))
    print(json.dumps(results.document["summary"], indent=2))


def summary(rows: list[Row]) -> Row:
    """Return how far off the forecasts are in all."""
    known = [row for row in rows if row["truth"] is not None]
    named = {(row["dataset"], row["epsilon"]) for row in known if row["how"] == "named"}
    by_choice = {
        "chosen": [row for row in known if row["how"] == "chosen"],
        "named_where_there_is_one": [
            row for row in known if row["how"] == "named" or (row["dataset"], row["epsilon"]) not in named
        ],
    }
    alike = [abs(row["accuracy"] - row["truth"]) for row in by_choice["chosen"] if row["dataset"] in ALIKE]
    found: Row = {"rows_alike": len(alike), "mean_distance_alike": float(np.mean(alike)) if alike else None}
    for how, which in by_choice.items():
        pairs = [(row["accuracy"], row["truth"]) for row in which]
        found[f"rank_correlation_{how}"] = float(spearmanr(*zip(*pairs, strict=True))[0]) if len(pairs) > 2 else None
    return found


if __name__ == "__main__":
    main()
