"""Pictures of 256 x 256 from end to end: pushed, trained on by every recipe that makes pictures, drawn and downloaded.

Run `python -m benchmarks.large_pictures --json FILE`. One service runs on this machine. The trainings are as small as
can be: what is looked at is whether the size goes through and how long that takes, not what is seen.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from obscura.client import Client
from obscura.client.local_service import LocalClient
from privacy.plans.registry import RECIPES

SIDE, RECORDS, DRAWN = 256, 40, 6
CLASSES = ("across", "down")
MAKERS = tuple(name for name, recipe in RECIPES.items() if recipe.publishes == "generator")
OPTIONS: dict[str, dict[str, Any]] = {
    "moments": {"components": 6, "evaluation_samples": 100},
    "datalens": {"teachers": 10, "images": 20, "top_k": 4, "evaluation_samples": 100},
    "dp_diffusion": {
        "features": 4, "blocks": 1, "expected_batch": 10, "epochs": 0.5, "multiplicity": 1, "sampling_steps": 2,
        "anchors": 10, "basis_size": 10, "rank": 2, "evaluation_samples": 100,
    },
    "dpgan": {
        "features": 4, "latent": 4, "expected_batch": 10, "epochs": 0.5, "generator_batch": 8, "anchors": 10,
        "basis_size": 10, "rank": 2, "evaluation_samples": 100,
    },
    "select_public": {"choices": 2},
}  # fmt: skip


def write(folder: Path, seed: int) -> Path:
    """Write pictures of two classes: stripes across and down, with noise."""
    rng = np.random.default_rng(seed)
    for number in range(RECORDS):
        shade = np.sin(np.arange(SIDE) / rng.uniform(4, 12))[:, None] * np.ones((1, SIDE)) * 90 + 128
        pixels = (shade.T if number % 2 else shade)[..., None] + rng.normal(0, 12, (SIDE, SIDE, 3))
        place = folder / CLASSES[number % 2] / f"{number:03d}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(place)
    return folder


def row_of(client: Client, recipe: str, public: str, folder: Path) -> dict[str, Any]:
    """Train by one recipe on pictures of its own, for pictures have one account, and say what became of it."""
    row: dict[str, Any] = {"recipe": recipe, "drawn": 0, "shapes": [], "error": ""}
    options = OPTIONS.get(recipe, {}) | ({"public_dataset_id": public} if recipe == "select_public" else {})
    started = time.monotonic()
    try:
        account = client.create_account(name=recipe, owner="benchmark", epsilon=10, delta=1e-5, unit="record")
        stated = {"at_most": 2 * RECORDS, "size": SIDE, "name": recipe}
        pictures = write(folder / f"private {recipe}", 2 + MAKERS.index(recipe))
        dataset = client.datasets.push(pictures, account_id=account.id, **stated)
        release = client.train(dataset, epsilon=9, recipe=recipe, options=options, show=False)
        row["trained_seconds"] = round(time.monotonic() - started, 1)
        files = [*release.sample(DRAWN).to_imagefolder(folder / recipe).glob("*/*.png")]
        row |= {"drawn": len(files), "shapes": sorted({Image.open(file).size for file in files})}
    except Exception as error:  # the benchmark goes on, and the row says so
        row["error"] = f"{type(error).__name__}: {error}"
    return row | {"seconds": round(time.monotonic() - started, 1)}


def main() -> int:
    """Train by every recipe; the exit status is 1 where one did not hand out pictures of the size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--recipes", nargs="+", choices=MAKERS, default=list(MAKERS))
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as name, LocalClient(Path(name) / "service") as client:
        public = client.datasets.push(write(Path(name) / "public", 1), public=True, size=SIDE, name="public").id
        for recipe in options.recipes:
            rows.append(row_of(client, recipe, public, Path(name)))
            print(json.dumps(rows[-1]), flush=True)
    found = {"side": SIDE, "records": RECORDS, "rows": rows}
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    return 0 if all(row["drawn"] == DRAWN and row["shapes"] == [(SIDE, SIDE)] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
