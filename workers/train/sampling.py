"""One attempt at a sample job: images of a released generator as a file, an ImageFolder zip or an `.npz`.

Post-processing of a release: costs nothing, any number of times, and is byte for byte repeatable. The same release,
seed, classes and count give the same bytes, on one kind of processor and with the same versions of torch and Pillow:
every batch has its own random stream derived from the public seed, zip entries carry a fixed date, and the order of the
images is fixed. Memory does not grow with the count.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import re
import tempfile
import unicodedata
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import torch
from numpy.lib import format as npy_format
from PIL import Image

from models.released import ReleasedGenerator, load_released
from privacy.units import UNIT_WORDS
from service import artifacts, jobs
from service.db.dataset_tables import Dataset
from service.db.job_tables import Release, Sample
from service.db.session import transaction
from service.db.words import SampleFormat
from service.errors import NotFound
from service.failpoints import failpoint
from workers.recipes.interface import Piece
from workers.train.drawing import SampleRequest, draw
from workers.train.orders import Context
from workers.train.progress import ReportedProgress

STAGE = "sample"  # of reports
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest date a zip entry can carry
_SPOOL_BYTES = 4 * 2**20  # side files larger than this go to disk while the archive is written
_SUFFIXES = {SampleFormat.IMAGEFOLDER: "zip", SampleFormat.NPZ: "npz"}


def run_sampling(context: Context) -> None:
    """Write the file of a sample job and end the job.

    An attempt that was lost after the file was in place left the same bytes that this one would write: they are kept.

    Raises:
        Cancelled: the attempt was told to stop.
        StaleAttempt: another attempt has taken over.
        NotFound: the release's files are gone.
    """
    data_dir, job_id = context.settings.data_dir, context.attempt.job_id
    with transaction(context.factory, read_only=True) as session:
        sample = jobs.sample_of(session, job_id)
        release = jobs.get_release(session, sample.release_id)
        names = tuple(session.get_one(Dataset, release.dataset_id).classes)
    directory = artifacts.directory_of(data_dir, sample.id)
    path = directory / f"{sample.id}.{_SUFFIXES[sample.format]}"
    if not path.is_file():
        progress = ReportedProgress(context, [Piece(STAGE, sample.count, 1.0)])

        def tell(drawn: int) -> None:
            progress(stage=STAGE, step=drawn, steps=sample.count)

        generator = _load(data_dir, release)
        # On the CPU and on one thread, so that additions keep their order and equal seeds give equal bytes.
        torch.set_num_threads(1)
        with artifacts.staged_directory(data_dir, sample.id) as staging:
            file = SampleFile(sample.format, release.name, release.card)
            write_sample(staging / path.name, generator, _request_of(sample, names), file, tell)
            failpoint("sample.before")
            artifacts.publish_directory(staging, directory)
            failpoint("sample.after")
    with transaction(context.factory) as session:
        jobs.finish_sample(
            session,
            job_id=job_id,
            attempt=context.attempt.number,
            path=path.relative_to(data_dir).as_posix(),
            sha256=artifacts.digest_file(path),
            size_bytes=path.stat().st_size,
            now=datetime.now(UTC),
        )
        failpoint("drawn.before")
    failpoint("drawn.after")


def _request_of(sample: Sample, names: tuple[str, ...]) -> SampleRequest:
    chosen = None if sample.classes is None else tuple(names.index(name) for name in sample.classes)
    return SampleRequest(count=sample.count, seed=sample.seed, names=names, chosen=chosen)


def _load(data_dir: Path, release: Release) -> ReleasedGenerator:
    try:
        return load_released(artifacts.directory_of(data_dir, release.id))
    except (OSError, ValueError):
        raise NotFound("The files of this release cannot be read.", release_id=release.id) from None


@dataclass(frozen=True)
class SampleFile:
    """What the file of a sample is and says besides its images. Each carries a README, the card and `SHA256SUMS`.

    Args:
        format: a zip of class folders with PNG images and `metadata.jsonl`, or an npz of the arrays `images`
            (n, h, w[, c]) uint8, `labels` (n,) int64 and `classes` (text).
        title: name of the release, the heading of the README.
        card: the release's privacy card (JSON-able).
    """

    format: SampleFormat
    title: str
    card: Mapping[str, Any]


def write_sample(
    path: Path,
    generator: ReleasedGenerator,
    request: SampleRequest,
    file: SampleFile,
    on_drawn: Callable[[int], None] = lambda _drawn: None,
) -> None:
    """Write the images of `request` to one file.

    Args:
        path: the file to write; its directory must exist.
        generator: the released generator.
        request: what to draw.
        file: what it is and says.
        on_drawn: as for `draw`; what it raises ends the writing.
    """
    readme = dataset_card(request, file).encode()
    card_json = (json.dumps(file.card, indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED, allowZip64=True) as archive, _Sums(archive) as sums:
        sums.add("README.md", readme)
        sums.add("privacy_card.json", card_json)
        if file.format is SampleFormat.IMAGEFOLDER:
            _write_imagefolder(sums, generator, request, on_drawn)
        else:
            _write_arrays(sums, generator, request, on_drawn)


def _write_imagefolder(
    sums: _Sums, generator: ReleasedGenerator, request: SampleRequest, on_drawn: Callable[[int], None]
) -> None:
    folders = folder_names(request.names)
    drawn = 0
    with tempfile.SpooledTemporaryFile(max_size=_SPOOL_BYTES) as metadata:
        for images, labels in draw(generator, request, on_drawn=on_drawn):
            for pixels, label in zip(images, labels.tolist(), strict=True):
                name = f"{folders[label]}/{drawn:07d}.png"
                sums.add(name, _png(pixels))
                line = {"file_name": name, "label": label, "class": request.names[label]}
                metadata.write((json.dumps(line, ensure_ascii=False) + "\n").encode())
                drawn += 1
        metadata.seek(0)
        sums.add_file("metadata.jsonl", metadata)


def _write_arrays(
    sums: _Sums, generator: ReleasedGenerator, request: SampleRequest, on_drawn: Callable[[int], None]
) -> None:
    drawn_labels = np.resize(np.asarray(request.labels_drawn, dtype=np.int64), request.count)
    batches = draw(generator, request, on_drawn=on_drawn)
    first, _ = next(batches)
    squeeze = first.shape[-1] == 1  # grey images travel as (n, h, w)
    shape = (request.count, *(first.shape[1:-1] if squeeze else first.shape[1:]))
    with sums.open("images.npy") as write:
        write(_npy_header(shape, first.dtype))
        for images in itertools.chain([first], (images for images, _ in batches)):
            write(images.tobytes())
    sums.add("labels.npy", _npy_header(drawn_labels.shape, drawn_labels.dtype) + drawn_labels.tobytes())
    names = np.asarray(request.names)
    sums.add("classes.npy", _npy_header(names.shape, names.dtype) + names.tobytes())


class _Sums:
    """Adds entries to a zip, dates them all alike, and ends it with the SHA-256 of each."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self._archive = archive
        self._lines = tempfile.SpooledTemporaryFile(max_size=_SPOOL_BYTES)  # noqa: SIM115 - closed in __exit__

    def __enter__(self) -> _Sums:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self._lines.seek(0)
            with self._archive.open(_entry("SHA256SUMS"), "w", force_zip64=True) as target:
                while chunk := self._lines.read(2**20):
                    target.write(chunk)
        self._lines.close()

    def add(self, name: str, content: bytes) -> None:
        self._archive.writestr(_entry(name), content)
        self._note(name, hashlib.sha256(content).hexdigest())

    def add_file(self, name: str, source: IO[bytes]) -> None:
        with self.open(name) as write:
            while chunk := source.read(2**20):
                write(chunk)

    @contextmanager
    def open(self, name: str) -> Iterator[Any]:
        digest = hashlib.sha256()
        with self._archive.open(_entry(name), "w", force_zip64=True) as target:

            def write(content: bytes) -> None:
                digest.update(content)
                target.write(content)

            yield write
        self._note(name, digest.hexdigest())

    def _note(self, name: str, digest: str) -> None:
        self._lines.write(f"{digest}  {name}\n".encode())


def folder_names(names: tuple[str, ...]) -> tuple[str, ...]:
    """Turn declared class names into distinct, harmless folder names whose alphabetical order is the label order.

    Names that already do so stay as they are ("0", "1", ...); otherwise every name gets its label in front:
    "T-shirt/top" becomes "0_T-shirt_top". Readers such as torchvision's number the folders alphabetically.
    """
    plain = tuple(_harmless(name) for name in names)
    if plain == tuple(sorted(plain)) and len({name.lower() for name in plain}) == len(plain):
        return plain
    digits = len(str(len(names) - 1))
    return tuple(f"{label:0{digits}d}_{name}" for label, name in enumerate(plain))


def dataset_card(request: SampleRequest, file: SampleFile) -> str:
    """Return the README of a sample in the form of a Hugging Face dataset card: the guarantee first."""
    title, card = file.title, file.card
    front = {
        "pretty_name": title,
        "tags": ["synthetic", "differential-privacy"],
        "task_categories": ["image-classification"],
        "size_categories": [_size_category(request.count)],
    }
    lines = [
        "---",
        *(f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in front.items()),
        "---",
        f"# {_one_line(title)}",
        "",
        f"{request.count:,} synthetic images. None of them is a photograph of anything: a generator drew them that was "
        "trained under differential privacy.",
        "",
        "## Guarantee",
        "",
        f"The generator is ({card.get('epsilon')}, {card.get('delta')})-differentially private: adding or removing "
        f"{UNIT_WORDS[card.get('unit', 'record')]} of the training data changes the probability of every outcome by a "
        f"factor of at most exp({card.get('epsilon')}), except with probability about {card.get('delta')}. "
        "Drawing more images from it costs nothing. `privacy_card.json` holds the full statement: what it was computed "
        "from, what was assumed to be public and what it does not cover.",
        "",
        "## Contents",
        "",
        f"Public seed {request.seed}. "
        + (
            "`<class>/<number>.png`, described line by line in `metadata.jsonl`."
            if file.format is SampleFormat.IMAGEFOLDER
            else "`images` (uint8), `labels` (int64) and `classes`."
        ),
        "",
        "| label | class | images |",
        "|---|---|---|",
    ]
    drawn = request.labels_drawn
    for position, label in enumerate(drawn):
        images = request.count // len(drawn) + (position < request.count % len(drawn))
        lines.append(f"| {label} | {_one_line(request.names[label])} | {images} |")
    return "\n".join(lines) + "\n"


def _harmless(name: str) -> str:
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    return re.sub(r"[^A-Za-z0-9-]+", "_", plain).strip("_-")[:64] or "class"


def _one_line(text: str) -> str:
    printable = "".join(character if character.isprintable() else " " for character in text)
    return re.sub(r"([|<>`\[\]\\])", r"\\\1", " ".join(printable.split()))


def _size_category(count: int) -> str:
    for limit, name in ((10**3, "n<1K"), (10**4, "1K<n<10K"), (10**5, "10K<n<100K"), (10**6, "100K<n<1M")):
        if count < limit:
            return name
    return "1M<n<10M"


def _entry(name: str) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, date_time=_EPOCH)
    entry.external_attr = 0o644 << 16
    entry.create_system = 3  # the same bytes on every platform
    return entry


def _png(pixels: npt.NDArray[np.uint8]) -> bytes:
    image = Image.fromarray(pixels[:, :, 0] if pixels.shape[-1] == 1 else pixels)
    buffer = io.BytesIO()
    image.save(buffer, format="PNG", compress_level=6)
    return buffer.getvalue()


def _npy_header(shape: tuple[int, ...], dtype: np.dtype[Any]) -> bytes:
    buffer = io.BytesIO()
    npy_format.write_array_header_1_0(
        buffer, {"shape": shape, "fortran_order": False, "descr": npy_format.dtype_to_descr(dtype)}
    )
    return buffer.getvalue()
