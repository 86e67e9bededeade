"""What a declared symmetry is worth on photographs, and what a false declaration costs on digits.

Run `python -m benchmarks.symmetry --json FILE`. Every row trains `moments` with fresh secrets,
draws synthetic images, trains the small CNN on them to the last step and tests it once on real images that took no
part: all of CIFAR-10 by the protocol of `benchmarks.datalens_utility` with 30,000 samples, the small sets by that of
`benchmarks.small_folders`. A row is written after each of its secrets; all of it takes three hours of a core.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence

import torch

from benchmarks.datalens_utility import measure
from benchmarks.generator_runs import DELTA, accuracy_of, draw, here, samples_of, trained
from benchmarks.results import Results, Row, parser_of, settings_of, show
from benchmarks.small_data import SETS, Folder, cifar10
from models.released import ReleasedGenerator

WHOLE, SAMPLES = "cifar10", 30_000
FOLDERS: Mapping[str, Callable[[], Folder]] = {
    WHOLE: SETS[WHOLE],
    "cifar10_5000": lambda: cifar10().cut(5000),
    "digits": SETS["digits"],
}
# In the order of what is asked first: data set, epsilon, symmetry.
ROWS: tuple[tuple[str, float, str], ...] = (
    *[(WHOLE, epsilon, "mirror") for epsilon in (1.0, 10.0)],
    *[("cifar10_5000", epsilon, symmetry) for epsilon in (3.0, 10.0, 1.0) for symmetry in ("mirror", "none")],
    *[("digits", epsilon, symmetry) for epsilon in (3.0, 10.0, 1.0) for symmetry in ("mirror", "square", "none")],
    *[(WHOLE, epsilon, symmetry) for symmetry in ("none", "square") for epsilon in (1.0, 10.0)],
)


def accuracy(
    name: str, folder: Folder, generator: ReleasedGenerator, seed: int, samples: int, device: torch.device
) -> float:
    """Return the accuracy of a CNN trained on a generator's images."""
    if name == WHOLE:
        return measure(folder, generator, samples, seed, device, ("cnn",))["cnn"]
    return accuracy_of(*draw(generator, len(folder.classes), samples, seed), folder, seed)


def with_one_secret_more(row: Row, folder: Folder, samples: int | None) -> Row:
    """Train once, measure, and return the row with what was found."""
    seed, name, (device, machine) = len(row["runs"]), row["dataset"], here()
    asked = {"symmetry": row["symmetry"], **row["options"]}
    generator, plan, seconds = trained(folder, "moments", asked, row["epsilon"])
    drawn = samples or (SAMPLES if name == WHOLE else samples_of(folder))
    found = accuracy(name, folder, generator, seed, drawn, device)
    runs = [*row["runs"], {"seed": seed, "train_seconds": round(seconds, 1), "accuracy": found, "machine": machine}]
    each = [run["accuracy"] for run in runs]
    return {
        **row,
        "samples": drawn,
        "accuracy": statistics.mean(each),
        "sd": statistics.stdev(each) if len(each) > 1 else None,
        "runs": runs,
        "config": plan.config.model_dump(),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure all rows, print them and, where asked, keep them as JSON."""
    parser = parser_of(__doc__)
    parser.add_argument("--datasets", nargs="+", choices=list(FOLDERS), default=list(FOLDERS))
    parser.add_argument("--epsilons", type=float, nargs="+", default=[1.0, 3.0, 10.0])
    parser.add_argument("--symmetries", nargs="+", default=["none", "mirror", "square"])
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help="of the recipe, as JSON")
    parser.add_argument("--secrets", type=int, default=3, help="fresh secrets for each row")
    parser.add_argument("--samples", type=int, help="synthetic images; default: each protocol's")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    results, folders = Results(given.json), dict[str, Folder]()
    for count in range(given.secrets):
        for name, epsilon, symmetry in ROWS:
            if name not in given.datasets or epsilon not in given.epsilons or symmetry not in given.symmetries:
                continue
            if name not in folders:
                folders[name] = FOLDERS[name]()
            asked = {"dataset": name, "records": len(folders[name].labels), "epsilon": epsilon, "delta": DELTA}
            asked |= {"symmetry": symmetry, "options": settings_of(given.option)}
            row = results.find(**asked)
            if row is None or len(row["runs"]) <= count:
                made = with_one_secret_more(row or {**asked, "runs": []}, folders[name], given.samples)
                results.put(made, replaced=row)
                print(f"  {name} epsilon {epsilon:g} {symmetry}: {made['runs'][-1]}", flush=True)
    show(results.rows, ("dataset", "records", "epsilon", "symmetry", "accuracy:.4f", "sd:.4f"))


if __name__ == "__main__":
    main()
