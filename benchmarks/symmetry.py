"""What a declared symmetry is worth on photographs, and what a false declaration costs on digits.

Run `python -m benchmarks.symmetry --json FILE`. Every row trains `moments`, or `guided_moments`, on a folder's private
images with fresh secrets, draws synthetic images, trains the small CNN on them to the last step and tests it once on
real images that took no part: all of CIFAR-10 by the fixed protocol of `benchmarks.datalens_utility` with 30,000
samples, the small sets by that of `benchmarks.small_folders`. Nothing is selected on them: `--held-out` measures where
settings were chosen. A row is written after each of its secrets; a file that has some of them goes on with the others,
in the order of what was asked first: run it again and again. All of it takes three hours of a processor core.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.datalens_utility import measure
from benchmarks.generator_runs import DELTA, accuracy_of, draw, here, samples_of, trained
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


def with_one_secret_more(row: dict[str, Any], folder: Folder, samples: int | None) -> dict[str, Any]:
    """Train once, measure, and return the row with what was found."""
    seed, name, (device, machine) = len(row["runs"]), row["dataset"], here()
    asked = {"symmetry": row["symmetry"], **row["options"]}
    generator, plan, seconds = trained(folder, row["recipe"], asked, row["epsilon"])
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
    """Measure all rows, print them as a table and, where asked, keep them as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--datasets", nargs="+", choices=list(FOLDERS), default=list(FOLDERS))
    parser.add_argument("--epsilons", type=float, nargs="+", default=[1.0, 3.0, 10.0])
    parser.add_argument("--symmetries", nargs="+", default=["none", "mirror", "square"])
    parser.add_argument("--recipe", choices=["moments", "guided_moments"], default="moments")
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help="of the recipe, as JSON")
    parser.add_argument("--secrets", type=int, default=3, help="fresh secrets for each row")
    parser.add_argument("--samples", type=int, help="synthetic images; default: what each protocol says")
    parser.add_argument("--held-out", action="store_true", help="test on held-out training images, to choose settings")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    options = {name: json.loads(value) for name, value in (setting.split("=", 1) for setting in given.option)}
    document: dict[str, Any] = {"held_out": given.held_out, "rows": []}
    if given.json is not None and given.json.exists():
        document = json.loads(given.json.read_text(encoding="utf-8"))
    if document["held_out"] != given.held_out:
        parser.error(f"{given.json} is of {'held-out' if document['held_out'] else 'test'} images: name another file")
    rows, folders = [{"recipe": "moments", **row} for row in document["rows"]], dict[str, Folder]()
    document["rows"] = rows
    for count in range(given.secrets):
        for name, epsilon, symmetry in ROWS:
            if name not in given.datasets or epsilon not in given.epsilons or symmetry not in given.symmetries:
                continue
            if name not in folders:
                folder = FOLDERS[name]()
                part = min(5000, len(folder.labels) // 5)
                folders[name] = folder.held_out(test=part) if given.held_out else folder
            asked = {"dataset": name, "records": len(folders[name].labels), "epsilon": epsilon, "delta": DELTA}
            asked |= {"recipe": given.recipe, "symmetry": symmetry, "options": options}
            place = next((at for at, row in enumerate(rows) if asked.items() <= row.items()), len(rows))
            row = rows[place] if place < len(rows) else {**asked, "runs": []}
            if len(row["runs"]) > count:
                continue
            row = with_one_secret_more(row, folders[name], given.samples)
            rows[place : place + 1] = [row]
            print(f"  {name} epsilon {epsilon:g} {symmetry}: {row['runs'][-1]}", flush=True)
            if given.json is not None:
                given.json.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    print(f"{'recipe':<14} {'dataset':<12} {'records':>7} {'epsilon':>7} {'symmetry':<8} secrets {'cnn':>6} {'sd':>6}")
    for row in rows:
        spread = "" if row["sd"] is None else f"{row['sd']:.4f}"
        print(
            f"{row['recipe']:<14} {row['dataset']:<12} {row['records']:>7} {row['epsilon']:>7g} {row['symmetry']:<8} "
            f"{len(row['runs']):>7} {row['accuracy']:>6.4f} {spread:>6}"
        )


if __name__ == "__main__":
    main()
