"""DICOM files and NIfTI volumes, as scanners and archives write them."""

from __future__ import annotations

import gzip
import io
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
from pydicom.dataset import FileDataset, FileMetaDataset
from pydicom.uid import UID, ExplicitVRLittleEndian, RLELossless, generate_uid

from benchmarks.intake.builders.images import drawn, spread
from benchmarks.intake.inputs import COUNT, SIDE, WORDS, step

PATIENTS = 6
RADIOGRAPH = "1.2.840.10008.5.1.4.1.1.1"
SYNTAXES = {"plain": ExplicitVRLittleEndian, "rle": RLELossless, "deflated": UID("1.2.840.10008.1.2.1.99")}


def radiograph(values: np.ndarray[Any, Any], **tags: Any) -> FileDataset:
    """Return a file of (h, w) numbers, (frames, h, w), or (h, w, 3) with PhotometricInterpretation="RGB"."""
    coloured = tags.get("PhotometricInterpretation") == "RGB"
    meta = FileMetaDataset()
    meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID = RADIOGRAPH, generate_uid()
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    file = FileDataset("", {}, file_meta=meta, preamble=b"\0" * 128)
    file.SOPClassUID, file.SOPInstanceUID = RADIOGRAPH, meta.MediaStorageSOPInstanceUID
    file.PatientName, file.PatientBirthDate, file.Modality = "Doe^Jane", "19620417", "DX"
    file.SamplesPerPixel, file.PhotometricInterpretation = 3 if coloured else 1, "MONOCHROME2"
    if coloured:
        file.PlanarConfiguration = 0
    elif values.ndim == 3:
        file.NumberOfFrames = len(values)
    file.Rows, file.Columns = values.shape[:2] if coloured else values.shape[-2:]
    file.BitsAllocated = 8 * values.dtype.itemsize
    file.BitsStored = 12 if file.BitsAllocated == 16 else 8
    file.PixelRepresentation = int(values.dtype.kind == "i")
    for name, value in tags.items():
        setattr(file, name, value)
    file.HighBit = file.BitsStored - 1
    file.PixelData = values.tobytes()
    return file


def encoded(values: np.ndarray[Any, Any], syntax: str = "plain", **tags: Any) -> bytes:
    file = radiograph(values, **tags)
    if syntax == "rle":
        file.compress(RLELossless)
    file.file_meta.TransferSyntaxUID = SYNTAXES[syntax]
    target = io.BytesIO()
    file.save_as(target, enforce_file_format=True)
    return target.getvalue()


@step
def dicom(
    folder: Path,
    rng: np.random.Generator,
    path: str = "{word}/IM{number:04d}.dcm",
    draw: Any = "twelve",
    count: int = COUNT,
    patients: int = PATIENTS,
    syntax: str = "plain",
    frames: int = 0,
    colour: str = "",
    keep: int | None = None,
    until: str = "",
    zeros: int = 0,
    **tags: Any,
) -> None:
    """Write files, whose `path` and tags may name {word}, {patient} and {number}.

    With `colour` ("pixels" or "planes") the values stand three times, side by side or one after the other. Of each file
    so many bytes are kept, or those before a tag (`until`, in hexadecimal digits), and zeros are appended.
    """
    for number in range(count):
        known = {"word": WORDS[number % 2], "patient": f"P{number % patients}", "number": number}
        filled = {name: value.format(**known) if isinstance(value, str) else value for name, value in tags.items()}
        values = drawn(draw)(rng)
        if frames:
            values = np.stack([values, *(drawn(draw)(rng) for _ in range(frames - 1))])
        elif colour:
            values = np.stack([values] * 3, 2 if colour == "pixels" else 0).reshape(SIDE, SIDE, 3)
        content = encoded(values, syntax, **({"PatientID": known["patient"]} | filled))
        content = content[: content.index(bytes.fromhex(until)) if until else keep]
        place = folder / path.format(**known)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content + bytes(zeros))


@step
def nifti(
    folder: Path,
    rng: np.random.Generator,
    path: str = "{word}/sub-{number:02d}.nii.gz",
    kind: str = "u1",
    window: bool = False,
) -> None:
    """Write volumes that brighten from left to right, perhaps with a window in their headers."""
    for number in range(COUNT):
        values = spread(0, 255, kind)(rng)[5][::-1]
        volume = np.tile(values[:, None, None], (1, SIDE, 11)).copy()
        image = nibabel.Nifti1Image(volume, np.eye(4))
        if window:
            image.header["cal_min"], image.header["cal_max"] = 0, 255
        place = folder / path.format(word=WORDS[number % 2], number=number)
        place.parent.mkdir(parents=True, exist_ok=True)
        content = bytes(image.to_bytes())
        place.write_bytes(gzip.compress(content) if place.suffix == ".gz" else content)
