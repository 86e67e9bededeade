"""How far off are previews? Compare a stand-in's forecast with the accuracy measured on the images themselves.

Run `python -m benchmarks.previews --json FILE`. The truth is the median of the case `moments` in small_folders.json. A
forecast uses only declared facts: once with the stand-in that a worker chooses and once with a public set that looks
like the private one. Where Fashion-MNIST replaces a part of itself, the two share no image.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch
from scipy.stats import spearmanr

from benchmarks.results import Results, Row, machine, parser_of, show, since
from benchmarks.runs import plan_of
from benchmarks.small_data import SETS, Folder, cifar10, facts_of, fashion, mnist
from models.stand_ins import StandIn
from privacy.plans.plan import PublicFacts
from workers.recipes.registry import TRAINERS
from workers.train.kinds.preview import find_stand_in, forecast

TRUTH = Path("docs/research/small_folders.json")
ALIKE = ("fashion_3000", "fashion_10000")  # their stand-in is of the same kind
EPSILONS: Mapping[str, tuple[float, ...]] = {
    **dict.fromkeys(("digits", *ALIKE), (1.0, 3.0, 10.0)),
    "emoji": (3.0, 10.0),
    "cifar10": (10.0,),
}
NAMED: Mapping[str, Callable[[], Folder]] = {"digits": mnist, "emoji": cifar10}  # public sets that look alike


def others_of(folder: Folder) -> Folder:
    """Return Fashion-MNIST without the images of a folder cut from it."""
    whole, own = fashion(), {image.tobytes() for image in folder.images}
    kept = np.array([image.tobytes() not in own for image in whole.images])
    return dataclasses.replace(whole, images=whole.images[kept], labels=whole.labels[kept])


def stand_ins_of(name: str, folder: Folder, facts: PublicFacts) -> Mapping[str, StandIn]:
    """Return the stand-in that a worker would choose and, where there is one, the named public set."""

    def of_folder(source: Folder, title: str) -> StandIn:
        return find_stand_in(facts, (source.images, source.labels, source.classes, title))

    chosen = of_folder(others_of(folder), "Fashion-MNIST") if name in ALIKE else find_stand_in(facts)
    return {"chosen": chosen} | ({"named": of_folder(NAMED[name](), NAMED[name].__name__)} if name in NAMED else {})


def measure(folder: Folder, stand_in: StandIn, epsilon: float) -> Row:
    plan, started = plan_of(folder, "moments", {}, epsilon), time.monotonic()
    found = forecast(plan, facts_of(folder), stand_in, TRAINERS["moments"])
    figures = {"stand_in": found.stand_in, "accuracy": found.accuracy, "real": found.real}
    return figures | {"seconds": since(started)}


def summary(rows: list[Row]) -> Row:
    """Return the mean distance from the truth for stand-ins of the same kind, and the rank correlations."""
    known = [row for row in rows if row["truth"] is not None]
    named = {(row["dataset"], row["epsilon"]) for row in known if row["how"] == "named"}
    chosen = [row for row in known if row["how"] == "chosen"]
    mixed = [row for row in known if row["how"] == "named" or (row["dataset"], row["epsilon"]) not in named]
    alike = [abs(row["accuracy"] - row["truth"]) for row in chosen if row["dataset"] in ALIKE]
    found: Row = {"rows_alike": len(alike), "mean_distance_alike": float(np.mean(alike)) if alike else None}
    for how, which in (("chosen", chosen), ("named_where_there_is_one", mixed)):
        pairs = [(row["accuracy"], row["truth"]) for row in which]
        found[f"rank_correlation_{how}"] = float(spearmanr(*zip(*pairs, strict=True))[0]) if len(pairs) > 2 else None
    return found


def main(arguments: list[str] | None = None) -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--datasets", nargs="+", default=list(EPSILONS), choices=list(EPSILONS))
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    results = Results(options.json, **machine())
    truth = {
        (row["dataset"], row["epsilon"]): statistics.median(run["accuracy"]["cnn"] for run in row["runs"])
        for row in json.loads(TRUTH.read_text(encoding="utf-8"))["rows"]
        if row["name"] == "moments"
    }
    for name in options.datasets:
        folder = SETS[name]()
        stand_ins = stand_ins_of(name, folder, facts_of(folder))
        for epsilon in EPSILONS[name]:
            for how, stand_in in stand_ins.items():
                if results.find(dataset=name, epsilon=epsilon, how=how) is None:
                    row = {"dataset": name, "epsilon": epsilon, "how": how, **measure(folder, stand_in, epsilon)}
                    results.put(row | {"truth": truth.get((name, epsilon))})
    results.document["summary"] = summary(results.rows)
    results.write()
    show(results.rows, ("dataset", "epsilon", "how", "stand_in", "accuracy:.3f", "truth:.3f"))
    print(json.dumps(results.document["summary"], indent=2))


if __name__ == "__main__":
    main()
