"""DICOM files as hospitals have them, and tags that must not leave the machine."""

import io
from typing import Any

import numpy as np
from pydicom.dataset import FileDataset, FileMetaDataset
from pydicom.uid import ExplicitVRLittleEndian, generate_uid

RADIOGRAPH = "1.2.840.10008.5.1.4.1.1.1"
CANARIES = {
    "PatientName": "CANARYNAME^ANNA",
    "PatientBirthDate": "19010203",
    "InstitutionName": "CANARY HOSPITAL",
    "ReferringPhysicianName": "CANARYDOCTOR",
    "AccessionNumber": "CANARY7714",
    "StudyDescription": "CANARYSTUDY",
}


def dicom_file(values: np.ndarray, *, preamble: bool = True, **tags: Any) -> bytes:
    """A file of (h, w) numbers, (frames, h, w), or (h, w, 3) with PhotometricInterpretation="RGB"."""
    colour = tags.get("PhotometricInterpretation") == "RGB"
    meta = FileMetaDataset()
    meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID = RADIOGRAPH, generate_uid()
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    file = FileDataset("", {}, file_meta=meta, preamble=b"\0" * 128)
    file.SOPClassUID, file.SOPInstanceUID = RADIOGRAPH, meta.MediaStorageSOPInstanceUID
    file.SamplesPerPixel, file.PhotometricInterpretation = 3 if colour else 1, "MONOCHROME2"
    if colour:
        file.PlanarConfiguration = 0
    elif values.ndim == 3:
        file.NumberOfFrames = len(values)
    file.Rows, file.Columns = values.shape[:2] if colour else values.shape[-2:]
    file.BitsAllocated = file.BitsStored = 8 * values.dtype.itemsize
    file.PixelRepresentation = int(values.dtype.kind == "i")
    for name, value in (CANARIES | tags).items():
        setattr(file, name, value)
    file.HighBit = file.BitsStored - 1
    file.PixelData = values.tobytes()
    target = io.BytesIO()
    if preamble:
        file.save_as(target, enforce_file_format=True)
    else:
        file.preamble = None
        del file.file_meta
        file.save_as(target, implicit_vr=False, little_endian=True)
    return target.getvalue()
