"""What a downloaded sample holds: as folders of pictures, as arrays, for torch, and for Hugging Face's `datasets`."""

from __future__ import annotations

import io
import json
import os
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from obscura.errors import ObscuraClientError
from obscura.extras import extras
from obscura.wire.formats import SampleFormat

if TYPE_CHECKING:
    from datasets import Dataset
    from torch.utils.data import TensorDataset


__all__ = ["Images", "PlaceTaken"]

READABLE: tuple[SampleFormat, ...] = ("npz", "imagefolder")  # formats of a sample that `read_images` reads


class PlaceTaken(ObscuraClientError):
    """Something is already where images should go; nothing was changed."""


@dataclass(frozen=True)
class Images:
    """Synthetic images in memory.

    Attributes:
        pixels: uint8, (n, h, w) where they are grey, else (n, h, w, 3).
        labels: int64, (n,).
        classes: name of each label; a label's number where the sample does not name it.
    """

    pixels: np.ndarray[Any, np.dtype[np.uint8]]
    labels: np.ndarray[Any, np.dtype[np.int64]]
    classes: tuple[str, ...]

    def to_torch(self) -> TensorDataset:
        """A `torch.utils.data.TensorDataset` of (float32 in [0, 1], (c, h, w)) and int64 labels.

        Raises:
            MissingExtra: torch is not installed.
        """
        with extras():
            import torch
            from torch.utils.data import TensorDataset

        pixels = self.pixels[:, :, :, None] if self.pixels.ndim == 3 else self.pixels
        scaled = torch.from_numpy(np.ascontiguousarray(pixels.transpose(0, 3, 1, 2))).float() / 255
        return TensorDataset(scaled, torch.from_numpy(self.labels))

    def to_hf(self) -> Dataset:
        """A `datasets.Dataset` with the columns `image` and `label`.

        Raises:
            MissingExtra: `datasets` is not installed.
        """
        with extras():
            import datasets

        columns = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=list(self.classes))})
        pictures = [Image.fromarray(pixels) for pixels in self.pixels]
        return datasets.Dataset.from_dict({"image": pictures, "label": self.labels.tolist()}, features=columns)


def read_images(path: Path, format: str) -> Images:
    """Read a downloaded sample.

    Args:
        path: of the file.
        format: one of READABLE.
    """
    if format == "npz":
        with np.load(path, allow_pickle=False) as arrays:
            return Images(arrays["images"], arrays["labels"], tuple(map(str, arrays["classes"])))
    with zipfile.ZipFile(path) as archive:
        lines = [json.loads(line) for line in archive.read("metadata.jsonl").splitlines()]
        pictures = [np.asarray(Image.open(io.BytesIO(archive.read(line["file_name"])))) for line in lines]
    labels = np.array([line["label"] for line in lines], dtype=np.int64)
    named = {line["label"]: str(line["class"]) for line in lines}
    classes = tuple(named.get(label, str(label)) for label in range(max(named) + 1))
    return Images(np.stack(pictures), labels, classes)


def require_room(folder: Path) -> None:
    """Make sure that a folder can be made, before anything is drawn or downloaded for it.

    Raises:
        PlaceTaken: There is something, and it is not an empty folder.
    """
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise PlaceTaken(f"{folder} exists and is not an empty folder: choose another place, or remove it first.")


def unpack(archive: Path, folder: Path) -> Path:
    """Unpack a zip into a folder that appears as a whole, or not at all.

    Raises:
        PlaceTaken: There is something already, and it is not an empty folder.
    """
    require_room(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as scratch:
        content = Path(scratch) / "content"
        with zipfile.ZipFile(archive) as file:
            file.extractall(content)  # names that lead out of the folder are brought back into it
        if folder.exists():
            folder.rmdir()
        os.replace(content, folder)
    return folder
