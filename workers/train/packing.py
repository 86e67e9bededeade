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
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
from numpy.lib import format as npy_format
from PIL import Image

from obscura.wire import provenance
from obscura.wire.formats import CARD_FILE, PACKINGS
from obscura.wire.wording import show_epsilon
from obscura.wire.words import SampleFormat
from service.cards import TAGS, cite, folder_names, guarantee, one_line, ordered_card, write_card
from workers.evaluation.report import FIRST_IMAGES, strip
from workers.train.drawing import SampleRequest

PARQUET_FILE = "data/train-00000-of-00001.parquet"  # Hugging Face's name for the only part of a split
_ROWS_IN_A_GROUP = 1024
_README, _PREVIEW = "README.md", "preview.png"
_SUMS = "SHA256SUMS"
_ENCODERS = 4  # threads that sign and encode images
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest date of a zip entry
_SPOOL_BYTES = 4 * 2**20  # larger side files are stored on disk while the archive is written
CROISSANT_FILE = "croissant.json"
_SIZES = [(10**3, "n<1K"), (10**4, "1K<n<10K"), (10**5, "10K<n<100K"), (10**6, "100K<n<1M"), (math.inf, "1M<n<10M")]
_WORDS = """
    citeAs column dataBiases dataCollection equivalentProperty extract field fileObject fileProperty fileSet format
    includes isLiveDataset jsonPath key md5 parentField path personalSensitiveInformation recordSet references regex
    repeated replace samplingRate separator source subField transform
"""
_CONTEXT: Mapping[str, Any] = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "conformsTo": "dct:conformsTo",
    "cr": "http://mlcommons.org/croissant/",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "dct": "http://purl.org/dc/terms/",
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "rai": "http://mlcommons.org/croissant/RAI/",
    "sc": "https://schema.org/",
    **{word: f"cr:{word}" for word in _WORDS.split()},
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
        release_id: the release that generates the images.
        sign: signs the provenance of each image (`obscura.wire.provenance`).
    """

    format: SampleFormat
    title: str
    card: Mapping[str, Any]
    release_id: str
    sign: provenance.Sign

    def signed(self, content: Mapping[str, Any]) -> dict[str, str]:
        return provenance.mark(self.release_id, content, self.sign)

    def encode(self, image: Image.Image) -> bytes:
        return provenance.encode_png(image, self.signed(provenance.content_of(image)))


_Drawn = Iterator[tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]]  # as `draw` yields


def pack(path: Path, drawn: _Drawn, request: SampleRequest, file: SampleFile) -> None:
    """Write images that were generated for a request."""
    readme = dataset_card(request, file).encode()
    card = (json.dumps(ordered_card(file.card), indent=2, ensure_ascii=False) + "\n").encode()
    first, labels = next(drawn)
    drawn = itertools.chain([(first, labels)], drawn)
    about = {_README: readme, CARD_FILE: card, _PREVIEW: file.encode(strip(first[:FIRST_IMAGES]))}
    if file.format is SampleFormat.WEBDATASET:
        about["classes.json"] = (json.dumps(request.names, ensure_ascii=False) + "\n").encode()
        _write_webdataset(path, about, _pictures(drawn, file))
        return
    with zip_archive(path) as archive:
        for name, content in about.items():
            archive.add(name, content)
        if file.format is SampleFormat.IMAGEFOLDER:
            _write_imagefolder(archive, request, drawn, file)
        elif file.format is SampleFormat.PARQUET:
            _write_parquet(archive, request, drawn, file)
        else:
            _write_arrays(archive, request, drawn, file)


def _write_imagefolder(archive: Archive, request: SampleRequest, drawn: _Drawn, file: SampleFile) -> None:
    folders = folder_names(request.names)
    with tempfile.SpooledTemporaryFile(_SPOOL_BYTES) as metadata:
        for number, (png, label) in enumerate(_pictures(drawn, file)):
            name = f"{folders[label]}/{number:07d}.png"
            archive.add(name, png)
            line = {"file_name": name, "label": label, "class": request.names[label]}
            metadata.write((json.dumps(line, ensure_ascii=False) + "\n").encode())
        metadata.seek(0)
        with archive.open("metadata.jsonl") as entry:
            shutil.copyfileobj(metadata, entry)
    archive.add(CROISSANT_FILE, describe_folders(file.title, file.card, request.names))


def _write_arrays(archive: Archive, request: SampleRequest, drawn: _Drawn, file: SampleFile) -> None:
    first, _ = next(drawn)
    squeeze = first.shape[-1] == 1  # grey images are stored as (n, h, w)
    shape = (request.count, *(first.shape[1:-1] if squeeze else first.shape[1:]))
    with archive.open("images.npy") as entry:
        header = {"shape": shape, "fortran_order": False, "descr": npy_format.dtype_to_descr(first.dtype)}
        npy_format.write_array_header_1_0(entry, header)
        for images in itertools.chain([first], (images for images, _ in drawn)):
            entry.write(images.tobytes())
    digests = {"images.npy": entry.digest.hexdigest()}
    for name, array in (("labels.npy", request.labels), ("classes.npy", np.asarray(request.names))):
        with archive.open(name) as entry:
            npy_format.write_array(entry, array, version=(1, 0))
        digests[name] = entry.digest.hexdigest()
    document = {"digital_source_type": provenance.SOURCE_TYPE, **file.signed({"files": digests})}
    archive.add(provenance.PROVENANCE_FILE, (json.dumps(document, indent=2) + "\n").encode())


def _write_parquet(archive: Archive, request: SampleRequest, drawn: _Drawn, file: SampleFile) -> None:
    import pyarrow  # imported here, because it is slow and trainings do not need it
    from pyarrow import parquet

    label = {"names": list(request.names), "_type": "ClassLabel"}
    features = {"image": {"_type": "Image"}, "label": label}
    image = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])
    schema = pyarrow.schema(
        [("image", image), ("label", pyarrow.int64())],
        metadata={
            "huggingface": json.dumps({"info": {"features": features}}),  # from which `datasets` reads the types
            "digital_source_type": provenance.SOURCE_TYPE,
            provenance.SIGNATURE_KEYWORD: json.dumps(provenance.mark(file.release_id)),  # images are signed one by one
        },
    )
    pictures = enumerate(_pictures(drawn, file))
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
    packing = PACKINGS[file.format.value]
    front: dict[str, Any] = {
        "pretty_name": file.title,
        "license": "other",
        "tags": list(TAGS),
        "task_categories": ["image-classification"],
        "size_categories": [next(name for limit, name in _SIZES if request.count < limit)],
    }
    if packing.viewed:
        files = {"split": "train", "path": list(packing.viewed)}
        front["configs"] = [{"config_name": "default", "data_files": [files]}]
    if file.format is SampleFormat.PARQUET:
        names = {str(label): name for label, name in enumerate(request.names)}
        columns = {"image": "image", "label": {"class_label": {"names": names}}}
        front["dataset_info"] = {"features": [{"name": name, "dtype": kind} for name, kind in columns.items()]}
    proportions = []
    if request.proportions is not None:
        stated = zip(request.labels_drawn, request.proportions, strict=True)
        named = ", ".join(f"{one_line(request.names[label])} {weight:g}" for label, weight in stated)
        sentence = f"The proportions of the classes were requested, not derived from the data: {named}."
        proportions = [sentence, ""]
    lines = [
        f"{request.count:,} synthetic images, generated by a model that was trained under differential privacy. None "
        "of them is a private image.",
        "",
        f"![The first images]({_PREVIEW})",
        "",
        "```python",
        packing.code,
        "```",
        "",
        *guarantee(file.card),
        "## Provenance",
        "",
        "Each image is marked as synthetic (IPTC `DigitalSourceType`), and its pixels and the release's id are signed. "
        "To verify a file offline: `obscura detect FILE`.",
        "",
        "## License and citation",
        "",
        "The publisher has not stated a license. To state one, replace `license: other` above and this sentence.",
        "",
        *cite(file.title, file.release_id, file.card),
        "## Contents",
        "",
        f"Public seed {request.seed}. {packing.contents}",
        "",
        *proportions,
        "| label | class | images |",
        "|---|---|---|",
    ]
    images = np.bincount(request.labels, minlength=len(request.names))
    lines += [f"| {label} | {one_line(request.names[label])} | {images[label]} |" for label in request.labels_drawn]
    return write_card(front, file.title, lines)


def _pictures(drawn: _Drawn, file: SampleFile) -> Iterator[tuple[bytes, int]]:
    def encode(batch: npt.NDArray[np.uint8]) -> list[bytes]:
        images = [Image.fromarray(pixels[:, :, 0] if pixels.shape[-1] == 1 else pixels) for pixels in batch]
        return [file.encode(image) for image in images]

    with ThreadPoolExecutor(_ENCODERS) as pool:
        for images, labels in drawn:
            parts = pool.map(encode, np.array_split(images, _ENCODERS))
            yield from zip(itertools.chain.from_iterable(parts), labels.tolist(), strict=True)


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
        f"(epsilon {show_epsilon(card['epsilon'], up=True)}, delta {card['delta']:g}); privacy_card.json has the full "
        "statement.",
        "personalSensitiveInformation": "No image is a private record; privacy_card.json states the guarantee.",
        "distribution": [files],
        "recordSet": [classes, images],
    }
    return (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode()


def _field(identifier: str, kind: str, source: Mapping[str, Any] | None = None, references: str = "") -> dict[str, Any]:
    field: dict[str, Any] = {"@type": "cr:Field", "@id": identifier, "name": identifier, "dataType": kind}
    field |= {} if source is None else {"source": source}
    return field | ({"references": {"field": {"@id": references}}} if references else {})


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
    """A new zip without compression, because images are compressed already. `sums` has a checksum line per entry."""

    file: zipfile.ZipFile
    sums: IO[bytes]

    @contextmanager
    def open(self, name: str, size: int | None = None) -> Iterator[Hashing]:
        """Open an entry for writing, of a size if it is known. Its `digest` is complete afterwards."""
        info = zipfile.ZipInfo(name, date_time=_EPOCH)
        info.external_attr = 0o644 << 16
        info.create_system = 3  # the same bytes on every platform
        info.file_size = size or 0
        with self.file.open(info, "w", force_zip64=size is None) as target:
            entry = Hashing(target)
            yield entry
        self.sums.write(f"{entry.digest.hexdigest()}  {name}\n".encode())

    def add(self, name: str, content: bytes) -> None:
        with self.open(name, len(content)) as entry:
            entry.write(content)


@contextmanager
def zip_archive(path: Path) -> Iterator[Archive]:
    with zipfile.ZipFile(path, "w") as file, tempfile.SpooledTemporaryFile(_SPOOL_BYTES) as sums:
        archive = Archive(file, sums)
        yield archive
        sums.seek(0)
        with archive.open(_SUMS) as target:
            shutil.copyfileobj(sums, target)


def _write_webdataset(path: Path, about: Mapping[str, bytes], pictures: Iterator[tuple[bytes, int]]) -> None:
    """Write a tar in WebDataset's convention: files other than images are named `__<name>__`, which readers skip."""
    with path.open("wb") as file, tempfile.SpooledTemporaryFile(_SPOOL_BYTES) as sums:

        def add(name: str, content: IO[bytes]) -> None:
            entry = tarfile.TarInfo(name)  # dated 1970, mode 644, without an owner
            entry.size = content.seek(0, io.SEEK_END)
            content.seek(0)
            file.write(entry.tobuf(tarfile.USTAR_FORMAT))
            shutil.copyfileobj(content, file)
            file.write(bytes(-entry.size % tarfile.BLOCKSIZE))

        texts = ((f"__{name}__", content) for name, content in about.items())
        images = (
            pair
            for number, (png, label) in enumerate(pictures)
            for pair in ((f"{number:07d}.png", png), (f"{number:07d}.cls", str(label).encode()))
        )
        for name, content in itertools.chain(texts, images):
            add(name, io.BytesIO(content))
            sums.write(f"{hashlib.sha256(content).hexdigest()}  {name}\n".encode())
        add(f"__{_SUMS}__", sums)
        file.write(bytes(2 * tarfile.BLOCKSIZE))  # the end of a tar
