"""CelebA, Camelyon and EuroSAT as DPImageBench (Gong et al. 2025, arXiv:2503.14681) lays them out, at 32 x 32 pixels.

None of the three is in a package, so nothing here fetches them: their own terms say how they are had. DPImageBench's
preprocessing writes `dataset/NAME/train_32.zip` and `test_32.zip` (CelebA: `train_32_Male.zip`), each with PNGs and
a `dataset.json` that lists them with their labels. Put that folder, or a link to it, into the cache as `dpimagebench`,
or name it by OBSCURA_DPIMAGEBENCH; then `python -m benchmarks.dpimagebench --dataset celeba` measures it.
"""

from __future__ import annotations

import dataclasses
import io
import json
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks.fetching import cache
from benchmarks.small_data import Folder, Images, Labels

SIDE = 32


@dataclasses.dataclass(frozen=True)
class Layout:
    """One set.

    Attributes:
        folder: its name below `dataset`.
        ending: of both archives' names, after `_32`.
        classes: in label order: those of the sorted folders that labels were taken from.
        validation: training images that the protocol keeps out.
    """

    folder: str
    ending: str
    classes: tuple[str, ...]
    validation: int


LAYOUTS: Mapping[str, Layout] = {
    "celeba": Layout("celeba", "_Male", ("not Male", "Male"), 17_706),  # 162,770 - 145,064
    "camelyon": Layout("camelyon", "", ("normal", "tumour"), 32_898),  # 302,436 - 269,538
    "eurosat": Layout(
        "eurosat",
        "",
        (
            "AnnualCrop",
            "Forest",
            "HerbaceousVegetation",
            "Highway",
            "Industrial",
            "Pasture",
            "PermanentCrop",
            "Residential",
            "River",
            "SeaLake",
        ),
        2_000,  # 23,000 - 21,000
    ),
}


def read_set(name: str, root: Path | None = None) -> Folder:
    """Return a set, all of its training images private and its test images public.

    Args:
        name: of LAYOUTS.
        root: DPImageBench's folder `dataset`; by default that of OBSCURA_DPIMAGEBENCH, else of the cache.

    Raises:
        FileNotFoundError: the set is not there, with what to do.
        ValueError: an archive is not as it should be.
    """
    layout = LAYOUTS[name]
    place = (root or Path(os.environ.get("OBSCURA_DPIMAGEBENCH", cache() / "dpimagebench"))) / layout.folder
    parts = [place / f"{part}_{SIDE}{layout.ending}.zip" for part in ("train", "test")]
    missing = [f"{layout.folder}/{part.name}" for part in parts if not part.is_file()]
    if missing:
        raise FileNotFoundError(
            f"{name} is in no package; DPImageBench's preprocessing makes {' and '.join(missing)} of the official files"
        )
    return Folder(*_read(parts[0], layout), *_read(parts[1], layout), layout.classes)


def _read(file: Path, layout: Layout) -> tuple[Images, Labels]:
    """Return the images (n, 32, 32, 3) uint8 and labels (n,) of an archive, in the order of its list."""
    with zipfile.ZipFile(file) as archive:
        listed = json.loads(archive.read("dataset.json"))["labels"]
        if not listed:
            raise ValueError(f"{file.name} lists no labels in its dataset.json")
        images = np.empty((len(listed), SIDE, SIDE, 3), np.uint8)
        for index, (name, _) in enumerate(listed):
            picture = Image.open(io.BytesIO(archive.read(name))).convert("RGB")
            if picture.size != (SIDE, SIDE):
                raise ValueError(f"{name} of {file.name} has {picture.width} x {picture.height} pixels, not {SIDE}")
            images[index] = np.asarray(picture)
    labels = np.array([label for _, label in listed], np.int64)
    if labels.min() < 0 or labels.max() >= len(layout.classes):
        raise ValueError(f"{file.name} has labels beyond its {len(layout.classes)} classes")
    return images, labels
