"""What a downloaded sample holds: as folders of images, as arrays, for torch, and for Hugging Face's `datasets`."""

from __future__ import annotations

import errno
import io
import json
import os
import shutil
import stat
import tempfile
import unicodedata
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from obscura.errors import DownloadCorrupt, NoRoom, ObscuraClientError
from obscura.extras import extras
from obscura.preparing.package import can_be_folder
from obscura.wire.formats import CARD_FILE, SampleFormat

if TYPE_CHECKING:
    from datasets import Dataset
    from torch.utils.data import TensorDataset


__all__ = ["ClassesDiffer", "Images", "PlaceTaken"]

OTHER_FILES_MAX = 1000  # of a sample, besides its images: descriptions, the privacy card, folders, Parquet files
NAME_CHARACTERS_MAX = 1024
RATIO_MAX = 20  # of the unpacked bytes to the downloaded ones; images are stored without compression
_METADATA = "metadata.jsonl"
PIXELS_MAX = 1024 * 1024  # of an image
LABELS_MAX = 100_000

READABLE: tuple[SampleFormat, ...] = ("npz", "imagefolder")  # formats of a sample that `read_images` reads


class PlaceTaken(ObscuraClientError):
    """Something is already where images should go; nothing was changed."""


class ClassesDiffer(ObscuraClientError):
    """Samples that should be combined do not have the same classes; nothing was written."""


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
        images = [Image.fromarray(pixels) for pixels in self.pixels]
        return datasets.Dataset.from_dict({"image": images, "label": self.labels.tolist()}, features=columns)


def read_images(path: Path, format: str, count: int) -> Images:
    """Read a downloaded sample into memory.

    Args:
        path: Of the file.
        format: One of READABLE.
        count: Number of images that it should hold.

    Raises:
        DownloadCorrupt: It is not such a sample.
    """
    with _opened(path, count) as archive:
        if format == "npz":
            with np.load(path, allow_pickle=False) as arrays:
                images = Images(arrays["images"], arrays["labels"], tuple(map(str, arrays["classes"])))
        else:
            images = _read_folder(archive)
        if len(images.pixels) != count or images.labels.shape != (count,):
            raise DownloadCorrupt(f"The sample holds {len(images.pixels):,} images instead of {count:,}.")
    return images


def _read_folder(archive: zipfile.ZipFile) -> Images:
    lines = [json.loads(line) for line in archive.read(_METADATA).splitlines()]
    labels = np.array([line["label"] for line in lines], dtype=np.int64)
    if labels.size and not 0 <= labels.min() <= labels.max() < LABELS_MAX:
        raise DownloadCorrupt(f"A label of the sample is not between 0 and {LABELS_MAX:,}.")
    named = {int(line["label"]): str(line["class"]) for line in lines}
    classes = tuple(named.get(label, str(label)) for label in range(max(named) + 1))
    return Images(np.stack([_read_image(archive, line["file_name"]) for line in lines]), labels, classes)


def _read_image(archive: zipfile.ZipFile, name: str) -> np.ndarray[Any, np.dtype[np.uint8]]:
    with Image.open(io.BytesIO(archive.read(name)), formats=["PNG"]) as image:
        if image.width * image.height > PIXELS_MAX:
            raise DownloadCorrupt(f"An image of the sample has more than {PIXELS_MAX:,} pixels.")
        return np.asarray(image)


@contextmanager
def _opened(path: Path, count: int) -> Iterator[zipfile.ZipFile]:
    """Open a downloaded zip of `count` images whose entries, names and sizes are within bounds.

    zipfile reads no more of an entry than the size that it states, so the stated sizes bound what is read.

    Raises:
        DownloadCorrupt: They are not, or the block finds that the content is damaged.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
            if len(entries) > count + OTHER_FILES_MAX:
                raise DownloadCorrupt(
                    f"The archive has {len(entries):,} entries; a sample of {count:,} images has at most "
                    f"{count + OTHER_FILES_MAX:,}."
                )
            unpacked, packed = sum(entry.file_size for entry in entries), path.stat().st_size
            if unpacked > RATIO_MAX * packed:
                raise DownloadCorrupt(
                    f"The archive of {packed:,} bytes unpacks to {unpacked:,}, more than {RATIO_MAX} times as many."
                )
            if len({entry.filename for entry in entries}) < len(entries):
                raise DownloadCorrupt("The archive contains a name twice.")
            for entry in entries:
                _require_plain(entry)
            yield archive
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError, TypeError, ValueError, MemoryError) as error:
        raise DownloadCorrupt(f"The sample is damaged ({type(error).__name__}).") from error
    except (NotImplementedError, RuntimeError) as error:  # an unknown compression, or a password
        raise DownloadCorrupt("The archive is packed in a way that samples are not.") from error
    except OSError as error:  # Pillow's for a broken image, and the system's for names that do not fit together
        if error.errno in (None, errno.EEXIST, errno.EISDIR, errno.ENAMETOOLONG, errno.ENOTDIR, errno.EINVAL):
            raise DownloadCorrupt(f"The sample is damaged ({type(error).__name__}).") from error
        raise


def combine(archives: Mapping[str, tuple[Path, int]], out: Path) -> Path:
    """Unpack the image folders of several samples into one folder, or pack them into one zip if `out` ends in `.zip`.

    An image keeps its class folder, and its file name begins with the name of its sample. `metadata.jsonl` lists all
    images; the privacy card of each sample lies beside it. `out` appears as a whole, or not at all.

    Args:
        archives: Zip and number of images of each sample, by name.

    Raises:
        ClassesDiffer: The samples do not have the same classes.
        DownloadCorrupt, NoRoom, PlaceTaken: As for `unpack`.
    """
    require_room(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as temporary:
        scratch, lines = Path(temporary), list[str]()
        parts = {name: unpack(archive, scratch / name, count) for name, (archive, count) in archives.items()}
        _require_same_classes({name: _classes(part) for name, part in parts.items()})
        content = scratch / "content"
        content.mkdir()
        for name, part in parts.items():
            lines += _renamed_lines(part, name)
            os.replace(part / CARD_FILE, content / f"{name}.{CARD_FILE}")
            for image in part.glob("*/*.png"):
                folder = content / image.parent.name
                folder.mkdir(exist_ok=True)
                os.replace(image, folder / f"{name}-{image.name}")
        (content / _METADATA).write_text("".join(lines), encoding="utf-8")
        if out.suffix == ".zip":
            os.replace(shutil.make_archive(str(scratch / "packed"), "zip", content), out)
            return out
        if out.exists():
            out.rmdir()
        os.replace(content, out)
    return out


def _classes(part: Path) -> list[str]:
    try:
        described = json.loads((part / "croissant.json").read_bytes())["recordSet"]
        (classes,) = (records for records in described if records["@id"] == "classes")
        return [str(row["classes/name"]) for row in classes["data"]]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise DownloadCorrupt("The description of a sample, croissant.json, cannot be read.") from error


def _renamed_lines(part: Path, name: str) -> list[str]:
    """Return the lines of a sample's metadata with the file names that its images get in a combination."""
    try:
        lines = [json.loads(line) for line in (part / _METADATA).read_bytes().splitlines()]
        files = [line["file_name"].rpartition("/") for line in lines]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DownloadCorrupt(f"The description of a sample, {_METADATA}, cannot be read.") from error
    renamed = (
        line | {"file_name": f"{folder}/{name}-{file}"} for line, (folder, _, file) in zip(lines, files, strict=True)
    )
    return [json.dumps(line, ensure_ascii=False) + "\n" for line in renamed]


def _require_same_classes(classes: Mapping[str, list[str]]) -> None:
    (first, wanted), *others = classes.items()
    for name, found in others:
        if found != wanted:
            raise ClassesDiffer(
                f"The samples cannot be combined, because their classes differ. {first} has {', '.join(wanted)}; "
                f"{name} has {', '.join(found)}. Download them one by one, or train on datasets that "
                "were declared with the same classes in the same order."
            )


def _require_plain(entry: zipfile.ZipInfo) -> None:
    """Raise unless an entry is a file or folder with a relative name that leads nowhere else."""
    name = entry.orig_filename
    parts = name.removesuffix("/").split("/")
    well_named = len(name) <= NAME_CHARACTERS_MAX and all(part and can_be_folder(part) for part in parts)
    if not well_named or any(unicodedata.category(char) in ("Cc", "Cs") for char in name):
        raise DownloadCorrupt(f"The archive contains an entry with the name {name[:100]!a}, which no sample has.")
    if stat.S_IFMT(entry.external_attr >> 16) not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise DownloadCorrupt(f"The archive contains {name[:100]!a}, which is neither a file nor a folder.")


def require_room(folder: Path) -> None:
    """Make sure that a folder can be made, before anything is drawn or downloaded for it.

    Raises:
        PlaceTaken: There is something, and it is not an empty folder.
    """
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise PlaceTaken(f"{folder} exists and is not an empty folder: choose another place, or remove it first.")


def unpack(archive: Path, folder: Path, count: int) -> Path:
    """Unpack the zip of a sample of `count` images into a folder that appears as a whole, or not at all.

    Raises:
        DownloadCorrupt: It is not such an archive.
        NoRoom: The disk has too little room.
        PlaceTaken: There is something already, and it is not an empty folder.
    """
    require_room(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as scratch:
        content = Path(scratch) / "content"
        with _opened(archive, count) as file:
            unpacked, free = sum(entry.file_size for entry in file.infolist()), shutil.disk_usage(scratch).free
            if unpacked > free:
                raise NoRoom(
                    f"The sample unpacks to {unpacked:,} bytes, and {folder.parent} has room for {free:,}. Free some "
                    "space or choose another place."
                )
            file.extractall(content)
        if folder.exists():
            folder.rmdir()
        os.replace(content, folder)
    return folder
