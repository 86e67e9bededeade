"""Download samples resumably, check their SHA-256, and read them as folders, arrays, torch or Hugging Face datasets."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import shutil
import stat
import tempfile
import unicodedata
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import numpy as np
from PIL import Image

from obscura.client.display import grid
from obscura.client.transport import RETRIES_MAX, RETRY_STATUSES, Transport, backoff_seconds
from obscura.errors import ApiError, ConnectionFailed, DownloadCorrupt, NoRoom, ObscuraClientError
from obscura.extras import extras
from obscura.preparing.package import can_be_folder
from obscura.stopping import go_on
from obscura.wire.formats import CARD_FILE, SampleFormat

if TYPE_CHECKING:
    from datasets import Dataset
    from torch.utils.data import TensorDataset


__all__ = ["ClassesDiffer", "Images", "PlaceTaken"]

DOWNLOAD_BYTES_MAX = 8 * 2**30  # of a file whose size was not announced
OTHER_FILES_MAX = 1000  # entries of a sample besides images: descriptions, the privacy card, folders, Parquet files
NAME_CHARACTERS_MAX = 1024
RATIO_MAX = 20  # ratio of unpacked to downloaded bytes; images are stored without compression
_METADATA = "metadata.jsonl"
PIXELS_MAX = 1024 * 1024  # per image
LABELS_MAX = 100_000

READABLE: tuple[SampleFormat, ...] = ("npz", "imagefolder")  # formats of a sample that `read_images` reads


def download(
    transport: Transport,
    url: str,
    target: Path,
    sha256: str | None,
    total_bytes: int | None,
    on_bytes: Callable[[int, int], None] | None = None,
) -> Path:
    """Download `url` to `target`, resuming from `<target>.part`, and verify its SHA-256.

    Raises:
        ApiError: The service rejected the request.
        ConnectionFailed: The connection broke repeatedly without progress.
        DownloadCorrupt: The bytes do not match, or exceed the announced size; the partial file is removed.
        NoRoom: The disk is too full.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    free_bytes = shutil.disk_usage(target.parent).free
    if total_bytes is not None and total_bytes > free_bytes:
        raise NoRoom(
            f"{target.name} needs {total_bytes:,} bytes, but {target.parent} has room for only {free_bytes:,}. Free "
            "some space or choose another place."
        )
    part = target.with_name(target.name + ".part")
    bytes_max = DOWNLOAD_BYTES_MAX if total_bytes is None else total_bytes
    failures = 0
    while (before := part.stat().st_size if part.exists() else 0) != total_bytes:
        headers = {"Accept": "*/*", "Accept-Encoding": "identity"}
        if before and sha256 is not None:
            headers |= {"Range": f"bytes={before}-", "If-Range": f'"{sha256}"'}
        try:
            with transport.stream(url, headers) as response:
                resumed = response.status_code == 206
                done = before if resumed else 0
                with part.open("ab" if resumed else "wb") as file:
                    for chunk in response.iter_bytes():
                        go_on()
                        done += len(chunk)
                        if done > bytes_max:
                            raise DownloadCorrupt(f"{target.name} has more bytes than the {bytes_max:,} expected.")
                        file.write(chunk)
                        if on_bytes is not None:
                            on_bytes(done, total_bytes or done)
            break
        except httpx.RequestError as error:
            failures = 0 if part.exists() and part.stat().st_size > before else failures + 1
            if failures >= RETRIES_MAX:
                raise ConnectionFailed(
                    transport.base_url, f"The download from {transport.route} broke: {error}"
                ) from error
            transport.sleep(backoff_seconds(failures))
        except DownloadCorrupt:
            part.unlink()
            raise
        except ApiError as error:
            if error.status == 416 and before > 0:
                part.unlink()  # longer than the content: left from another download
                continue
            failures += 1
            if error.status not in RETRY_STATUSES or failures >= RETRIES_MAX:
                raise
            transport.sleep(backoff_seconds(failures))
    with part.open("rb") as file:
        actual = hashlib.file_digest(file, "sha256").hexdigest()
    if sha256 is not None and actual != sha256:
        part.unlink()
        raise DownloadCorrupt(f"{target.name} has SHA-256 {actual}, not {sha256} as announced. Download it again.")
    os.replace(part, target)
    return target


class PlaceTaken(ObscuraClientError):
    """The target already exists. Nothing was changed."""


class ClassesDiffer(ObscuraClientError):
    """The samples to combine have different classes. Nothing was written."""


@dataclass(frozen=True)
class Images:
    """Synthetic images in memory.

    Attributes:
        pixels: uint8, (n, h, w) for grey images, else (n, h, w, 3).
        labels: int64, (n,).
        classes: Name of each label; the label's number as text if it has no name.
    """

    pixels: np.ndarray[Any, np.dtype[np.uint8]]
    labels: np.ndarray[Any, np.dtype[np.int64]]
    classes: tuple[str, ...]

    def __getitem__(self, name: str) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Return the images of one class: `release.images()["cat"]`."""
        found: np.ndarray[Any, np.dtype[np.uint8]] = self.pixels[self.labels == self.classes.index(name)]
        return found

    def show(self, per_class: int = 10) -> Image.Image:
        """Return a grid with a row of up to `per_class` images for each class; notebooks display it."""
        return grid(self.pixels, self.labels, per_class)

    def to_torch(self) -> TensorDataset:
        """Return a `torch.utils.data.TensorDataset` of images, (c, h, w) float32 in [0, 1], and int64 labels."""
        with extras():
            import torch
            from torch.utils.data import TensorDataset

        pixels = self.pixels[:, :, :, None] if self.pixels.ndim == 3 else self.pixels
        scaled = torch.from_numpy(np.ascontiguousarray(pixels.transpose(0, 3, 1, 2))).float() / 255
        return TensorDataset(scaled, torch.from_numpy(self.labels))

    def to_hf(self) -> Dataset:
        """Return a `datasets.Dataset` with the columns `image` and `label`."""
        with extras():
            import datasets

        columns = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=list(self.classes))})
        images = [Image.fromarray(pixels) for pixels in self.pixels]
        return datasets.Dataset.from_dict({"image": images, "label": self.labels.tolist()}, features=columns)


def read_images(path: Path, format: str, count: int) -> Images:
    """Read a downloaded sample of `count` images into memory; raise DownloadCorrupt if it is not such a sample."""
    with _opened(path, count) as archive:
        if format == "npz":
            with np.load(path, allow_pickle=False) as arrays:
                images = Images(arrays["images"], arrays["labels"], tuple(map(str, arrays["classes"])))
        else:
            lines = [json.loads(line) for line in archive.read(_METADATA).splitlines()]
            labels = np.array([line["label"] for line in lines], dtype=np.int64)
            if labels.size and not 0 <= labels.min() <= labels.max() < LABELS_MAX:
                raise DownloadCorrupt(f"A label of the sample is not between 0 and {LABELS_MAX:,}.")
            named = {int(line["label"]): str(line["class"]) for line in lines}
            classes = tuple(named.get(label, str(label)) for label in range(max(named) + 1))
            pixels = []
            for line in lines:
                with Image.open(io.BytesIO(archive.read(line["file_name"])), formats=["PNG"]) as image:
                    if image.width * image.height > PIXELS_MAX:
                        raise DownloadCorrupt(f"An image of the sample has more than {PIXELS_MAX:,} pixels.")
                    pixels.append(np.asarray(image))
            images = Images(np.stack(pixels), labels, classes)
        if len(images.pixels) != count or images.labels.shape != (count,):
            raise DownloadCorrupt(f"The sample has {len(images.pixels):,} images, not {count:,}. Download it again.")
    return images


@contextmanager
def _opened(path: Path, count: int) -> Iterator[zipfile.ZipFile]:
    """Open a downloaded zip of `count` images after checking the bounds on entries, names and sizes.

    zipfile reads at most the stated size of an entry, so checking the stated sizes bounds memory. Damage found inside
    the block also raises DownloadCorrupt.
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
                    f"The archive of {packed:,} bytes unpacks to {unpacked:,} bytes, over {RATIO_MAX} times as many."
                )
            if len({entry.filename for entry in entries}) < len(entries):
                raise DownloadCorrupt("The archive contains two entries of the same name. Download it again.")
            for entry in entries:
                name, kind = entry.orig_filename, stat.S_IFMT(entry.external_attr >> 16)
                steps = name.removesuffix("/").split("/")
                plain = len(name) <= NAME_CHARACTERS_MAX and all(step and can_be_folder(step) for step in steps)
                if not plain or any(unicodedata.category(char) in ("Cc", "Cs") for char in name):
                    raise DownloadCorrupt(f"The archive contains an invalid name: {name[:100]!a}. Download it again.")
                if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                    raise DownloadCorrupt(
                        f"The archive contains {name[:100]!a}, which is neither a file nor a folder. Download it again."
                    )
            yield archive
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError, TypeError, ValueError, MemoryError) as error:
        raise DownloadCorrupt(f"The sample is damaged ({type(error).__name__}). Download it again.") from error
    except (NotImplementedError, RuntimeError) as error:  # an unknown compression, or a password
        raise DownloadCorrupt("The archive is encrypted or uses an unknown compression. Download it again.") from error
    except OSError as error:  # Pillow's error for a broken image, and the system's for conflicting names
        if error.errno in (None, errno.EEXIST, errno.EISDIR, errno.ENAMETOOLONG, errno.ENOTDIR, errno.EINVAL):
            raise DownloadCorrupt(f"The sample is damaged ({type(error).__name__}). Download it again.") from error
        raise


def combine(archives: Mapping[str, tuple[Path, int]], out: Path) -> Path:
    """Merge the image folders of several samples into one folder, or into one ZIP if `out` ends in `.zip`.

    Images keep their class folder; their file names start with the name of the sample. `metadata.jsonl` lists all
    images, and each sample's privacy card is included. Atomic: `out` is complete or absent. Raises ClassesDiffer and
    the errors of `unpack`.

    Args:
        archives: ZIP and number of images of each sample, by name.
    """
    require_room(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as temporary:
        scratch, lines, first = Path(temporary), list[str](), ""
        wanted: list[str] = []
        content = scratch / "content"
        content.mkdir()
        for name, (archive, count) in archives.items():
            part = unpack(archive, scratch / name, count)
            classes, records = _described(part, name)
            first, wanted = first or name, wanted or classes
            if classes != wanted:
                raise ClassesDiffer(
                    f"The samples cannot be combined, because their classes differ. {first} has {', '.join(wanted)}; "
                    f"{name} has {', '.join(classes)}. Download them one by one, or train on datasets that "
                    "were declared with the same classes in the same order."
                )
            lines += [json.dumps(record, ensure_ascii=False) + "\n" for record in records]
            os.replace(part / CARD_FILE, content / f"{name}.{CARD_FILE}")
            for image in part.glob("*/*.png"):
                target = content / image.parent.name
                target.mkdir(exist_ok=True)
                os.replace(image, target / f"{name}-{image.name}")
        (content / _METADATA).write_text("".join(lines), encoding="utf-8")
        if out.suffix == ".zip":
            os.replace(shutil.make_archive(str(scratch / "packed"), "zip", content), out)
            return out
        if out.exists():
            out.rmdir()
        os.replace(content, out)
    return out


def _described(part: Path, name: str) -> tuple[list[str], list[dict[str, Any]]]:
    """Return an unpacked sample's classes and one record per image. Paths in records begin with the sample's name."""
    try:
        described = json.loads((part / "croissant.json").read_bytes())["recordSet"]
        (classes,) = (records for records in described if records["@id"] == "classes")
        records = [json.loads(line) for line in (part / _METADATA).read_bytes().splitlines()]
        for record in records:
            folder, _, file = record["file_name"].rpartition("/")
            record["file_name"] = f"{folder}/{name}-{file}"
        return [str(row["classes/name"]) for row in classes["data"]], records
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DownloadCorrupt(f"The description of a sample (croissant.json, {_METADATA}) cannot be read.") from error


def require_room(folder: Path | str) -> None:
    """Raise PlaceTaken unless a folder is absent or empty."""
    folder = Path(folder)
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise PlaceTaken(f"{folder} exists and is not an empty folder: choose another place, or remove it first.")


def unpack(archive: Path, folder: Path, count: int) -> Path:
    """Extract a sample's ZIP of `count` images. Atomic: the folder is complete or absent.

    Raises DownloadCorrupt, NoRoom, and PlaceTaken if the folder exists and is not empty.
    """
    require_room(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as scratch:
        content = Path(scratch) / "content"
        with _opened(archive, count) as file:
            unpacked, free = sum(entry.file_size for entry in file.infolist()), shutil.disk_usage(scratch).free
            if unpacked > free:
                raise NoRoom(
                    f"The sample unpacks to {unpacked:,} bytes, but {folder.parent} has room for only {free:,}. Free "
                    "some space or choose another place."
                )
            file.extractall(content)
        if folder.exists():
            folder.rmdir()
        os.replace(content, folder)
    return folder
