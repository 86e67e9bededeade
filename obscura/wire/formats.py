"""File formats of uploads, releases and samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

UploadFormat = Literal["zip", "npz", "idx"]  # `service.ingest.request` maps each to the module that reads it
# How an image gets the declared size: "exact" refuses other sizes and colours, "crop" fills the size, "pad" adds white.
UploadFit = Literal["exact", "crop", "pad"]
UPLOAD_RECORDS_MAX = 2_000_000
SampleFormat = Literal["imagefolder", "npz", "parquet", "webdataset"]

CARD_FILE = "privacy_card.json"  # in every release
# Files of a release that may be downloaded, by name.
DOWNLOADS = (
    "generator.safetensors", "generator.json", "classifier.safetensors", "classifier.json", "extractor.safetensors",
    "histogram.json", CARD_FILE,
)  # fmt: skip
IMAGES_FILE = "images.zip"  # of a generator: synthetic images that were stored when it was published
# Files created when a release is downloaded; see `service.cards`. The first two are for generators only.
MODEL_CARD_FILE, LOADER_FILE, MANIFEST_FILE = "README.md", "load_generator.py", "artifact.json"
MADE = (MODEL_CARD_FILE, LOADER_FILE, MANIFEST_FILE)


@dataclass(frozen=True)
class Packing:
    """A file format of samples.

    Attributes:
        suffix: Suffix of the file, without the dot.
        contents: Description, in Markdown, of the content besides README and privacy card.
        code: Python program that loads the unpacked file, or `sample.<suffix>`.
        viewed: Files that the viewer of the Hugging Face hub shows; empty if it cannot read the format.
    """

    suffix: str
    media_type: str
    title: str
    contents: str
    code: str
    viewed: tuple[str, ...] = ()


PACKINGS: Mapping[str, Packing] = {
    "imagefolder": Packing(
        "zip",
        "application/zip",
        "Image folders (zip)",
        "`<class>/<number>.png`, described line by line in `metadata.jsonl` and as a whole in `croissant.json`.",
        "from torchvision.datasets import ImageFolder\n\n"
        'images = ImageFolder(".")\nimage, label = images[0]\nprint(len(images), images.classes[label], image.size)',
        ("*/*.png", "metadata.jsonl"),
    ),
    "npz": Packing(
        "npz",
        "application/octet-stream",
        "NumPy arrays (npz)",
        "`images` (uint8), `labels` and `classes`. `provenance.json` contains the signature of the arrays.",
        'import numpy as np\n\nsample = np.load("sample.npz")\nprint(sample["images"].shape, sample["labels"][:10])',
    ),
    "parquet": Packing(
        "zip",
        "application/zip",
        "Parquet for Hugging Face (zip)",
        "`data/*.parquet` with the columns `image` (PNG) and `label`, described in `croissant.json`.",
        "from datasets import load_dataset\n\n"
        'images = load_dataset("parquet", data_files="data/*.parquet", split="train")\n'
        "print(images.features, images[0])",
        ("data/train-*",),
    ),
    "webdataset": Packing(
        "tar",
        "application/x-tar",
        "WebDataset (tar)",
        "`<number>.png` and `<number>.cls`, the label. Files whose names begin and end with two underscores "
        "are not images, and readers of WebDataset skip them. `__classes.json__` lists the class names.",
        "import webdataset\n\n"
        'images = webdataset.WebDataset("sample.tar", shardshuffle=False).decode("pil").to_tuple("png", "cls")\n'
        "print(next(iter(images)))",
        ("*.tar",),
    ),
}
