"""DataLens by the service's recipe on Fashion-MNIST: what its images are worth, preset by preset, table by table.

Run `python -m benchmarks.datalens_loop --json FILE`; `--table 7` has what that table of the paper varies (1, 2, 4, 7),
each around the preset `published`. Every row trains on all training images with a fresh secret for each seed, draws
synthetic images, trains the small CNN on them to the last step and tests it once on the test images.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.datalens_published import ABLATED, BY_EPSILON, VARIED
from benchmarks.datalens_utility import measure
from benchmarks.generator_runs import DELTA, here, trained
from benchmarks.results import Results, Row, parser_of, settings_of, show
from benchmarks.small_data import SETS, Folder
from privacy.plans.datalens import VOTES, DataLensConfig

SAMPLES, SEEDS, EPSILONS = 10_000, 3, (1.0, 10.0)
MOMENTS = "moments"  # the default recipe, beside DataLens' presets
PRESETS = ("published", "kernel", MOMENTS)
AT_1: Mapping[str, float] = {"top_k": 200, "teachers": 4000, "beta": 0.7}  # of `published` at epsilon 1
PAPERS_NAME = {"fashion": "fashion-mnist", "mnist": "mnist"}


@dataclass(frozen=True)
class Asked:
    """What a row is of.

    Attributes:
        preset: of DataLens, or `moments`.
        epsilon: at delta 1e-5.
        options: beside the preset's.
        published: accuracy of the paper on Fashion-MNIST, where it tells one.
    """

    preset: str
    epsilon: float
    options: Mapping[str, Any] = field(default_factory=dict)
    published: float | None = None

    def is_of(self, row: Mapping[str, Any], dataset: str, samples: int) -> bool:
        """Whether a row of a file is this one."""
        preset = MOMENTS if row["recipe"] == MOMENTS else row["preset"]
        found = (preset, row["epsilon"], row.get("options", {}), row["dataset"], row["samples"])
        return found == (self.preset, self.epsilon, dict(self.options), dataset, samples)


def table(number: str, dataset: str) -> Iterator[Asked]:
    """Yield the rows of DataLens in a table of its paper, as `published` with what the table varies."""
    papers = PAPERS_NAME[dataset]
    if number in ("1", "2"):
        for epsilon, accuracy in BY_EPSILON[papers].items():
            if (epsilon in EPSILONS) if number == "1" else epsilon <= 1:
                yield Asked("published", epsilon, {}, accuracy)
    elif number == "4":
        for varied, of in VARIED[papers].items():
            for value, accuracy in of.items():
                option = {"k": "top_k"}.get(varied, varied)
                if value != AT_1[option]:  # that row stands in Table 1
                    given = max(value, 1e-6) if varied == "beta" else value  # any vote at all
                    yield Asked("published", 1.0, {option: given}, accuracy)
    else:
        for there, accuracy in ABLATED[papers].items():
            switches = zip(("use_top_k", "use_stochastic_sign", "use_threshold"), map(bool, there), strict=True)
            yield Asked("published", 1.0, {switch: on for switch, on in switches if not on}, accuracy)


def as_page(number: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a table of the paper on Fashion-MNIST as docs/research has it, from the rows of a file."""
    lines = ["| `published` with | ε | accuracy ± sd | secrets | published |", "|---|---|---|---|---|"]
    for asked in table(number, "fashion"):
        options = ", ".join(f"`{name}` {json.dumps(value)}" for name, value in asked.options.items())
        row = next((row for row in rows if asked.is_of(row, "fashion", SAMPLES)), None)
        found = "**not run** | 0"
        if row is not None:
            spread = "" if row["sd"] is None else f" ± {row['sd']:.3f}"
            found = f"{row['accuracy']:.3f}{spread} | {row['seeds']}"
        lines.append(f"| {options or 'nothing else'} | {asked.epsilon:g} | {found} | {asked.published:.4f} |")
    return "\n".join(lines) + "\n"


def with_one_seed_more(row: Row, asked: Asked, folder: Folder) -> Row:
    """Train once, measure, and return the row with what was found."""
    seed, (device, machine) = len(row["accuracies"]), here()
    recipe, options = ("moments", {}) if asked.preset == MOMENTS else ("datalens", {"preset": asked.preset})
    generator, plan, seconds = trained(folder, recipe, {**options, **asked.options}, asked.epsilon, device=device)
    accuracy = measure(folder, generator, row["samples"], seed, device, ("cnn",))["cnn"]
    print(f"  {asked.preset} {dict(asked.options)} epsilon {asked.epsilon:g} seed {seed}: {accuracy:.4f}", flush=True)
    accuracies, votes = [*row["accuracies"], accuracy], plan.stage(VOTES)
    return row | {
        "recipe": recipe,
        "preset": "default" if asked.preset == MOMENTS else asked.preset,
        "options": dict(asked.options),
        "teachers": plan.config_of(DataLensConfig).teachers if recipe == "datalens" else 0,
        "epsilon": asked.epsilon,
        "seeds": len(accuracies),
        "accuracy": statistics.mean(accuracies),
        "sd": statistics.stdev(accuracies) if len(accuracies) > 1 else None,
        "accuracies": accuracies,
        "published": asked.published,
        "seconds": round((seed * row.get("seconds", 0.0) + seconds) / (seed + 1), 1),
        "images_aggregated": 0 if votes is None else votes.event.count,
        "delta": DELTA,
        "machine": machine,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure what a file has no row of yet, or too few seeds."""
    parser = parser_of(__doc__)
    parser.add_argument("--dataset", choices=sorted(SETS), default="fashion")
    parser.add_argument("--preset", choices=PRESETS, action="append")
    parser.add_argument("--epsilon", type=float, action="append")
    parser.add_argument("--table", choices=("1", "2", "4", "7"), help="of the paper, in place of presets and epsilons")
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help="of the recipe, as JSON")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--samples", type=int, default=SAMPLES)
    given = parser.parse_args(arguments)
    options, papers = settings_of(given.option), BY_EPSILON.get(PAPERS_NAME.get(given.dataset, ""), {})
    wanted = [
        Asked(preset, epsilon, options, papers.get(epsilon))
        for epsilon in given.epsilon or EPSILONS
        for preset in given.preset or PRESETS
    ]
    results, folder = Results(given.json), SETS[given.dataset]()
    for asked in table(given.table, given.dataset) if given.table else wanted:
        there = next((row for row in results.rows if asked.is_of(row, given.dataset, given.samples)), None)
        while there is None or len(there["accuracies"]) < given.seeds:
            begun = {"dataset": given.dataset, "samples": given.samples, "accuracies": []}
            there = results.put(with_one_seed_more(there or begun, asked, folder), replaced=there)
    if given.table and given.dataset == "fashion":
        print(as_page(given.table, results.rows))
    else:
        show(results.rows, ("recipe", "preset", "epsilon", "accuracy:.4f", "sd:.4f", "seeds", "published"))


if __name__ == "__main__":
    main()
