"""Pack generated images into one file of a sample's format, with a README and the privacy card.

The same generator and request give the same bytes, with the same versions of torch, Pillow and pyarrow on one kind of
CPU. Entries of an archive have a fixed order and date; the last entry lists all SHA-256 sums. Memory does not grow with
the count or with the size of an entry. A Croissant description (1.0,
https://docs.mlcommons.org/croissant/docs/croissant-spec.html) is added to zips of PNG files and of Parquet.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import math
import shutil
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
from numpy.lib import format as npy_format
from PIL import Image

from models.released import ReleasedGenerator
from obscura.wire.formats import CARD_FILE, PACKINGS
from obscura.wire.words import SampleFormat
from service.cards import TAGS, folder_names, guarantee, one_line, write_card
from workers.recipes.interface import Progress
from workers.train.drawing import SampleRequest, draw

STAGE = "sample"  # of reports
PARQUET_FILE = "data/train-00000-of-00001.parquet"  # Hugging Face's name for the only part of a split
_ROWS_IN_A_GROUP = 1024
_README = "README.md"
_SUMS = "SHA256SUMS"
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest date of a zip entry
_SPOOL_BYTES = 4 * 2**20  # larger side files are stored on disk while the archive is written
CROISSANT_FILE = "croissant.json"
_SIZES = [(10**3, "n<1K"), (10**4, "1K<n<10K"), (10**5, "10K<n<100K"), (10**6, "100K<n<1M"), (math.inf, "1M<n<10M")]
_WORDS = """
    citeAs column conformsTo cr data dataBiases dataCollection dataType dct equivalentProperty examples extract field
    fileObject fileProperty fileSet format includes isLiveDataset jsonPath key md5 parentField path
    personalSensitiveInformation rai recordSet references regex repeated replace samplingRate sc separator source
    subField transform
"""
_ELSEWHERE: Mapping[str, Any] = {
    "conformsTo": "dct:conformsTo",
    "cr": "http://mlcommons.org/croissant/",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "dct": "http://purl.org/dc/terms/",
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "rai": "http://mlcommons.org/croissant/RAI/",
    "sc": "https://schema.org/",
}
_CONTEXT: Mapping[str, Any] = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    **{word: _ELSEWHERE.get(word, f"cr:{word}") for word in _WORDS.split()},
}


@dataclass(frozen=True)
class SampleFile:
    """The format of a sample's file, and its texts. Each file contains a README, the card and `SHA256SUMS`.

    Args:
        format: a zip of class folders with PNG images and `metadata.jsonl`; an npz of the arrays `images` (n, h, w[,
            c]) uint8, `labels` (n,) int64 and `classes` (text); a zip of a Parquet file with the columns `image` (PNG)
            and `label`; or a WebDataset tar.
        title: name of the release, used as heading of the README.
        card: the release's privacy card (JSON-able).
    """

    format: SampleFormat
    title: str
    card: Mapping[str, Any]


_Drawn = Iterator[tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]]  # as `draw` yields


def write_sample(
    path: Path,
    generator: ReleasedGenerator,
    request: SampleRequest,
    file: SampleFile,
    progress: Progress = lambda **_: None,
) -> None:
    pack(path, draw(generator, request, progress, STAGE), request, file)


def pack(path: Path, drawn: _Drawn, request: SampleRequest, file: SampleFile) -> None:
    """Write images that were generated for a request."""
    readme = dataset_card(request, file).encode()
    card = (json.dumps(file.card, indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode()
    if file.format is SampleFormat.WEBDATASET:
        with tar_archive(path) as tar:
            tar.add(f"__{_README}__", readme)
            tar.add(f"__{CARD_FILE}__", card)
            tar.add("__classes.json__", (json.dumps(request.names, ensure_ascii=False) + "\n").encode())
            for number, (png, label) in enumerate(_pictures(drawn)):
                tar.add(f"{number:07d}.png", png)
                tar.add(f"{number:07d}.cls", str(label).encode())
        return
    with zip_archive(path) as archive:
        archive.add(_README, readme)
        archive.add(CARD_FILE, card)
        if file.format is SampleFormat.IMAGEFOLDER:
            _write_imagefolder(archive, request, drawn, file)
        elif file.format is SampleFormat.PARQUET:
            _write_parquet(archive, request, drawn, file)
        else:
            _write_arrays(archive, request, drawn)


def _write_imagefolder(archive: Archive, request: SampleRequest, drawn: _Drawn, file: SampleFile) -> None:
    folders = folder_names(request.names)
    with side_file() as metadata:
        for number, (png, label) in enumerate(_pictures(drawn)):
            name = f"{folders[label]}/{number:07d}.png"
            archive.add(name, png)
            line = {"file_name": name, "label": label, "class": request.names[label]}
            metadata.write((json.dumps(line, ensure_ascii=False) + "\n").encode())
        metadata.seek(0)
        with archive.open("metadata.jsonl") as entry:
            shutil.copyfileobj(metadata, entry)
    archive.add(CROISSANT_FILE, describe_folders(file.title, file.card, request.names))


def _write_arrays(archive: Archive, request: SampleRequest, drawn: _Drawn) -> None:
    first, _ = next(drawn)
    squeeze = first.shape[-1] == 1  # grey images are stored as (n, h, w)
    shape = (request.count, *(first.shape[1:-1] if squeeze else first.shape[1:]))
    with archive.open("images.npy") as entry:
        header = {"shape": shape, "fortran_order": False, "descr": npy_format.dtype_to_descr(first.dtype)}
        npy_format.write_array_header_1_0(entry, header)
        for images in itertools.chain([first], (images for images, _ in drawn)):
            entry.write(images.tobytes())
    for name, array in (("labels.npy", request.labels), ("classes.npy", np.asarray(request.names))):
        buffer = io.BytesIO()
        npy_format.write_array(buffer, array, version=(1, 0))
        archive.add(name, buffer.getvalue())


def _write_parquet(archive: Archive, request: SampleRequest, drawn: _Drawn, file: SampleFile) -> None:
    import pyarrow  # imported here, because it is slow and trainings do not need it
    from pyarrow import parquet

    label = {"names": list(request.names), "_type": "ClassLabel"}
    features = {"image": {"_type": "Image"}, "label": label}
    image = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])
    schema = pyarrow.schema(
        [("image", image), ("label", pyarrow.int64())],
        metadata={"huggingface": json.dumps({"info": {"features": features}})},  # from which `datasets` reads the types
    )
    pictures = enumerate(_pictures(drawn))
    with archive.open(PARQUET_FILE) as entry, parquet.ParquetWriter(entry, schema, use_dictionary=["label"]) as table:
        while rows := list(itertools.islice(pictures, _ROWS_IN_A_GROUP)):
            images = [{"bytes": png, "path": f"{number:07d}.png"} for number, (png, _) in rows]
            table.write_batch(
                pyarrow.record_batch([pyarrow.array(images, image), [label for _, (_, label) in rows]], schema=schema)
            )
    files = {
        "@type": "cr:FileObject",
        "@id": "table",
        "contentUrl": PARQUET_FILE,
        "encodingFormat": "application/x-parquet",
        "sha256": entry.digest.hexdigest(),
    }
    column = {"fileObject": {"@id": "table"}, "extract": {"column": "image"}, "transform": {"jsonPath": "bytes"}}
    fields = [_field("images/image", "sc:ImageObject", column)]
    column = {"fileObject": {"@id": "table"}, "extract": {"column": "label"}}
    fields.append(_field("images/label", "sc:Integer", column, references="classes/label"))
    archive.add(CROISSANT_FILE, _croissant(file.title, file.card, request.names, files, fields))


def dataset_card(request: SampleRequest, file: SampleFile) -> str:
    """Return the README of a sample in the form of a Hugging Face dataset card: the guarantee first."""
    front: dict[str, Any] = {
        "pretty_name": file.title,
        "tags": list(TAGS),
        "task_categories": ["image-classification"],
        "size_categories": [next(name for limit, name in _SIZES if request.count < limit)],
    }
    if file.format is SampleFormat.PARQUET:
        names = {str(label): name for label, name in enumerate(request.names)}
        columns = {"image": "image", "label": {"class_label": {"names": names}}}
        front["configs"] = [{"config_name": "default", "data_files": [{"split": "train", "path": "data/train-*"}]}]
        front["dataset_info"] = {
            "features": [{"name": name, "dtype": kind} for name, kind in columns.items()],
            "splits": [{"name": "train", "num_examples": request.count}],
        }
    proportions = []
    if request.proportions is not None:
        stated = zip(request.labels_drawn, request.proportions, strict=True)
        named = ", ".join(f"{one_line(request.names[label])} {weight:g}" for label, weight in stated)
        sentence = f"The proportions of the classes were requested, not derived from the data: {named}."
        proportions = [sentence, ""]
    lines = [
        f"{request.count:,} synthetic images. None of them is one of the private images: they were drawn by a "
        "generator that was trained under differential privacy.",
        "",
        *guarantee(file.card),
        "## Contents",
        "",
        f"Public seed {request.seed}. {PACKINGS[file.format.value].contents}",
        "",
        *proportions,
        "| label | class | images |",
        "|---|---|---|",
    ]
    images = np.bincount(request.labels, minlength=len(request.names))
    lines += [f"| {label} | {one_line(request.names[label])} | {images[label]} |" for label in request.labels_drawn]
    return write_card(front, file.title, lines)


def _pictures(drawn: _Drawn) -> Iterator[tuple[bytes, int]]:
    for images, labels in drawn:
        for pixels, label in zip(images, labels.tolist(), strict=True):
            image, buffer = Image.fromarray(pixels[:, :, 0] if pixels.shape[-1] == 1 else pixels), io.BytesIO()
            image.save(buffer, format="PNG", compress_level=6)
            yield buffer.getvalue(), label


def describe_folders(title: str, card: Mapping[str, Any], names: Sequence[str]) -> bytes:
    """Return a Croissant description of class folders of PNG files. Its records are images and their folders."""
    files = {"@type": "cr:FileSet", "@id": "pictures", "encodingFormat": "image/png", "includes": "*/*.png"}
    content = {"fileSet": {"@id": "pictures"}, "extract": {"fileProperty": "content"}}
    path = content | {"extract": {"fileProperty": "fullpath"}, "transform": {"regex": "^([^/]+)"}}
    image = _field("images/image", "sc:ImageObject", content)
    folder = _field("images/folder", "sc:Text", path, references="classes/folder")
    return _croissant(title, card, names, files, [image, folder])


def _croissant(
    title: str,
    card: Mapping[str, Any],
    names: Sequence[str],
    files: Mapping[str, Any],
    fields: Sequence[Mapping[str, Any]],
) -> bytes:
    rows = [
        {"classes/label": label, "classes/folder": folder, "classes/name": name}
        for label, (folder, name) in enumerate(zip(folder_names(names), names, strict=True))
    ]
    classes = {
        "@type": "cr:RecordSet",
        "@id": "classes",
        "name": "classes",
        "dataType": "sc:Enumeration",
        "key": {"@id": "classes/label"},
        "field": [
            _field("classes/label", "sc:Integer"),
            _field("classes/folder", "sc:Text"),
            _field("classes/name", "sc:Text"),
        ],
        "data": rows,
    }
    images = {"@type": "cr:RecordSet", "@id": "images", "name": "images", "field": fields}
    document = {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": "http://mlcommons.org/croissant/1.0",
        "name": title,
        "description": "Synthetic images, drawn by a generator that was trained under differential privacy "
        f"(epsilon {card.get('epsilon')}, delta {card.get('delta')}); privacy_card.json has the full statement.",
        "personalSensitiveInformation": "No image is a private record; privacy_card.json states the guarantee.",
        "distribution": [files],
        "recordSet": [classes, images],
    }
    return (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode()


def _field(identifier: str, kind: str, source: Mapping[str, Any] | None = None, references: str = "") -> dict[str, Any]:
    field: dict[str, Any] = {"@type": "cr:Field", "@id": identifier, "name": identifier, "dataType": kind}
    field |= {} if source is None else {"source": source}
    return field | ({"references": {"field": {"@id": references}}} if references else {})


def side_file() -> IO[bytes]:
    """Return a temporary file for content that is added after the images. The caller must close it."""
    return tempfile.SpooledTemporaryFile(max_size=_SPOOL_BYTES)


class Hashing(io.RawIOBase):
    """Forwards writes and computes their SHA-256."""

    def __init__(self, target: IO[bytes]) -> None:
        self._target = target
        self.digest = hashlib.sha256()

    def writable(self) -> bool:
        return True

    def write(self, content: Any) -> int:
        self.digest.update(content)
        self._target.write(content)
        return len(content)


@dataclass(frozen=True)
class Archive:
    """A new archive. `begin` opens an entry with a name and a size; `sums` collects one checksum line per entry."""

    begin: Callable[[str, int | None], AbstractContextManager[IO[bytes]]]
    sums: IO[bytes]

    @contextmanager
    def open(self, name: str, size: int | None = None) -> Iterator[Hashing]:
        """Open an entry for writing; its `digest` is complete afterwards. A tar needs the size."""
        with self.begin(name, size) as target:
            entry = Hashing(target)
            yield entry
        self.sums.write(f"{entry.digest.hexdigest()}  {name}\n".encode())

    def add(self, name: str, content: bytes) -> None:
        with self.open(name, len(content)) as entry:
            entry.write(content)


@contextmanager
def zip_archive(path: Path) -> Iterator[Archive]:
    """Create a zip without compression, because images are compressed already."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED, allowZip64=True) as file, side_file() as sums:

        def begin(name: str, size: int | None) -> IO[bytes]:
            entry = zipfile.ZipInfo(name, date_time=_EPOCH)
            entry.external_attr = 0o644 << 16
            entry.create_system = 3  # the same bytes on every platform
            entry.file_size = size or 0
            return file.open(entry, "w", force_zip64=size is None)

        yield Archive(begin, sums)
        sums.seek(0)
        with begin(_SUMS, None) as target:
            shutil.copyfileobj(sums, target)


@contextmanager
def tar_archive(path: Path) -> Iterator[Archive]:
    """Create a tar in WebDataset's convention: files other than images are named `__<name>__`, which readers skip."""
    with path.open("wb") as file, side_file() as sums:

        @contextmanager
        def begin(name: str, size: int | None) -> Iterator[IO[bytes]]:
            entry = tarfile.TarInfo(name)  # dated 1970, mode 644, without an owner
            entry.size = size or 0
            file.write(entry.tobuf(tarfile.USTAR_FORMAT))
            yield file
            file.write(bytes(-entry.size % tarfile.BLOCKSIZE))

        yield Archive(begin, sums)
        size = sums.tell()
        sums.seek(0)
        with begin(f"__{_SUMS}__", size) as target:
            shutil.copyfileobj(sums, target)
        file.write(bytes(2 * tarfile.BLOCKSIZE))  # the end of a tar
