"""DICOM files and NIfTI volumes, as scanners and archives hand them out. What reads them is needed here."""

from __future__ import annotations

import gzip
import io
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
from pydicom.dataset import FileDataset, FileMetaDataset
from pydicom.uid import DeflatedExplicitVRLittleEndian, ExplicitVRLittleEndian, RLELossless, generate_uid

from benchmarks.intake.inputs import Asked, Build, ImageInput, Input, Outcome, Read, Refused, grey
from benchmarks.intake.kinds.pixels import SIDE, SIXTEEN, TWELVE, WORDS, brightens, darkens, spread

COUNT, PATIENTS = 12, 6
RADIOGRAPH = "1.2.840.10008.5.1.4.1.1.1"
OWNED = Read(WORDS, COUNT, PATIENTS)


def dicom(values: np.ndarray[Any, Any], syntax: str = ExplicitVRLittleEndian, **tags: Any) -> bytes:
    file = radiograph(values, **tags)
    if syntax == RLELossless:
        file.compress(RLELossless)
    file.file_meta.TransferSyntaxUID = syntax
    target = io.BytesIO()
    file.save_as(target, enforce_file_format=True)
    return target.getvalue()


def radiograph(values: np.ndarray[Any, Any], **tags: Any) -> FileDataset:
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


def files(
    path: str = "{word}/IM{number:04d}.dcm",
    draw: Callable[[np.random.Generator], np.ndarray[Any, Any]] = TWELVE,
    patients: int = PATIENTS,
    **tags: Any,
) -> Build:
    def build(folder: Path, rng: np.random.Generator) -> None:
        for number in range(COUNT):
            said = {"word": WORDS[number % 2], "patient": f"P{number % patients}", "number": number}
            filled = {name: value.format(**said) if isinstance(value, str) else value for name, value in tags.items()}
            place = folder / path.format(**said)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(dicom(draw(rng), **({"PatientID": said["patient"]} | filled)))

    return build


def with_more(build: Build, more: Callable[[Path, np.random.Generator], None]) -> Build:
    def both(folder: Path, rng: np.random.Generator) -> None:
        build(folder, rng)
        more(folder, rng)

    return both


def zipped(build: Build) -> Build:
    def zip_it(folder: Path, rng: np.random.Generator) -> None:
        build(folder / "in", rng)
        with zipfile.ZipFile(folder / "a.zip", "w") as archive:
            for path in sorted((folder / "in").rglob("*")):
                archive.write(path, path.relative_to(folder / "in"))

    return zip_it


def report(folder: Path, rng: np.random.Generator) -> None:
    whole = dicom(TWELVE(rng), PatientID="P0")
    (folder / "sick" / "report.dcm").write_bytes(whole[: whole.index(b"\x28\x00\x02\x00")])


def objects(folder: Path, rng: np.random.Generator) -> None:
    for name, stored, modality in (("seg", "66.4", "SEG"), ("dose", "481.2", "RTDOSE")):
        content = dicom(frames(rng), PatientID="P0", Modality=modality, SOPClassUID=f"1.2.840.10008.5.1.4.1.1.{stored}")
        (folder / "sick" / f"{name}.dcm").write_bytes(content)


def write(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def image(folder: Path, rng: np.random.Generator) -> None:
    from PIL import Image

    Image.fromarray(grey(rng, SIDE, SIDE)).save(folder / "sick" / "x.png")


def frames(rng: np.random.Generator) -> np.ndarray[Any, Any]:
    return np.stack([TWELVE(rng) for _ in range(5)])


def volumes(path: str = "{word}/sub-{number:02d}.nii.gz", kind: str = "u1", window: bool = False) -> Build:
    def build(folder: Path, rng: np.random.Generator) -> None:
        for number in range(COUNT):
            values = spread(0, 255, kind)(rng)[5][::-1]
            volume = np.tile(values[:, None, None], (1, SIDE, 11)).copy()
            image = nibabel.Nifti1Image(volume, np.eye(4))
            if window:
                image.header["cal_min"], image.header["cal_max"] = 0, 255
            place = folder / path.format(word=WORDS[number % 2], number=number)
            place.parent.mkdir(parents=True, exist_ok=True)
            data = bytes(image.to_bytes())
            place.write_bytes(gzip.compress(data) if place.suffix == ".gz" else data)

    return build


def as_decathlon(folder: Path, _: np.random.Generator) -> None:
    for word, name in zip(WORDS, ("imagesTr", "labelsTr"), strict=True):
        (folder / word).rename(folder / name)


def segmented(folder: Path, _: np.random.Generator) -> None:
    volume = folder / "sick" / "BRATS_001_flair.nii.gz"
    volume.with_name("BRATS_001_seg.nii.gz").write_bytes(volume.read_bytes())


def of(name: str, build: Build, expected: Outcome, unit: Any = "subject", path: str = "", **options: Any) -> Input:
    return Input(name, build, expected, path, unit, options)


def looking(looks: Callable[[ImageInput], str], subjects: int | None = PATIENTS, records: int = COUNT) -> Read:
    return Read(WORDS, records, subjects, looks=looks)


ALONE = {"patients": COUNT}
INPUTS = (
    of("dicom_in_class_folders", files(), looking(brightens)),
    of("dicom_without_suffixes", files("{word}/{patient}/1.2.3/{number}.4.5"), looking(brightens)),
    of("dicom_of_a_record_account", files(**ALONE), looking(brightens, None), "record"),
    of("dicom_of_a_record_account_with_patients", files(), Refused("unit is the subject"), "record"),
    of("dicom_whose_ids_say_nothing", files(PatientID="removed"), Read(WORDS, COUNT), "record", subject_tag="none"),
    of("dicom_without_ids", files(PatientID=""), Asked("--skip-broken", "no PatientID")),
    of("dicom_by_another_tag", files(PatientID="", StudyInstanceUID="1.2.{number}"), Read(WORDS, COUNT, COUNT),
        subject_tag="StudyInstanceUID"),
    of("dicom_classes_of_a_tag", files("{patient}/{number}.dcm", StudyDescription="{word}"), OWNED,
        label_tag="StudyDescription"),
    of("dicom_classes_of_no_tag", files(), Refused("not a DICOM tag"), label_tag="Diagnosis"),
    of("dicom_in_a_zip", zipped(files()), OWNED, path="a.zip"),
    of(
        "dicom_by_its_directory",
        with_more(
            files("{word}/{patient}/IM{number}"),
            lambda folder, _: write(folder / "DICOMDIR", b"\0" * 128 + b"DICM"),
        ),
        OWNED,
        path="DICOMDIR",
    ),
    of("dicom_inverted", files(PhotometricInterpretation="MONOCHROME1"), looking(darkens)),
    of("dicom_windowed_by_its_tags", files(draw=spread(0, 1000, "u2"), WindowCenter=500, WindowWidth=1000),
        looking(brightens)),
    of("dicom_rescaled", files(RescaleSlope=1, RescaleIntercept=-1024, WindowCenter=1023.5, WindowWidth=4096),
        looking(brightens)),
    of("dicom_of_16_bits_that_uses_10", files(draw=spread(0, 1000, "u2"), BitsStored=16),
        Asked("--depth", "far below")),
    of("dicom_of_16_bits_windowed", files(draw=spread(0, 1000, "u2"), BitsStored=16), looking(brightens),
        window="0,1000"),
    of("dicom_signed", files(draw=spread(-1000, 1000, "i2"), BitsStored=16), Asked("--window", "far below")),
    of("dicom_signed_windowed", files(draw=spread(-1000, 1000, "i2"), BitsStored=16), looking(brightens),
        window="-1000,1000"),
    of("dicom_rle", files(syntax=str(RLELossless)), looking(brightens)),
    of("dicom_deflated", files(syntax=str(DeflatedExplicitVRLittleEndian)), looking(brightens)),
    of("dicom_in_colour",
        files(draw=lambda rng: np.repeat(spread(0, 255, "u1")(rng)[..., None], 3, 2), PhotometricInterpretation="RGB"),
        looking(brightens)),
    of("dicom_of_several_frames", files(draw=frames), Read(WORDS, COUNT, PATIENTS, said="12 are the first frame")),
    of("dicom_all_frames", files(draw=frames), Read(WORDS, 5 * COUNT, PATIENTS), frames="all"),
    of("dicom_all_frames_of_a_record_account", files(draw=frames, **ALONE), Refused("show one person"), "record",
        frames="all"),
    of("dicom_with_burnt_in_text", files(BurnedInAnnotation="YES"),
        Read(WORDS, COUNT, PATIENTS, said="12 may show text")),
    of("dicom_and_reports", with_more(files(), report),
        Read(WORDS, COUNT, PATIENTS, said="1 DICOM file without pixels")),
    of("dicom_and_segmentations", with_more(files(), objects),
        Read(WORDS, COUNT, PATIENTS, said="2 DICOM objects without an image")),
    of("dicom_and_images", with_more(files(**ALONE), image), Asked("--depth", "more bits than others"), "record"),
    of("dicom_and_images_of_subjects", with_more(files(), image), Refused("nothing says whose")),
    of(
        "dicom_cut_short",
        with_more(
            files(),
            lambda folder, rng: (
                (folder / "sick" / "z.dcm").write_bytes(dicom(SIXTEEN(rng), PatientID="P1")[:-99]) and None
            ),
        ),
        Asked("--skip-broken", "z.dcm"),
    ),
    of("nifti_without_an_axis", volumes(), Asked("--slices")),
    of("nifti_middle_slices", volumes(), looking(brightens, COUNT), slices="axial"),
    of("nifti_every_fifth", volumes(), Read(WORDS, 3 * COUNT, COUNT), slices="axial", every=5),
    of("nifti_of_a_record_account", volumes(), looking(brightens, None), "record", slices="axial"),
    of("nifti_every_fifth_of_a_record_account", volumes(), Refused("--every"), "record", slices="axial", every=5),
    of("nifti_of_sessions", volumes("{word}/sub-7/ses-{number}.nii"), Read(WORDS, COUNT, 1), slices="axial"),
    of("nifti_of_unknown_units", volumes(kind="i2"), Asked("--window", "signed or measured"), slices="axial"),
    of("nifti_windowed", volumes(kind="i2"), looking(brightens, COUNT), slices="axial", window="0,255"),
    of("nifti_windowed_by_its_header", volumes(kind="f4", window=True), looking(brightens, COUNT), slices="axial"),
    of("nifti_of_decathlon", with_more(volumes("{word}/BRATS_{number:03d}.nii.gz"), as_decathlon),
        Asked("--classes", "labelsTr"), slices="axial"),
    of("nifti_with_masks", with_more(volumes("{word}/BRATS_{number:03d}_flair.nii.gz"), segmented),
        Asked("--labels", "BRATS_001_seg"), slices="axial"),
    of("slices_of_images", files(), Refused("NIfTI"), slices="axial"),
)  # fmt: skip
