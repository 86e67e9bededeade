"""DICOM files as hospitals have them, and tags that must not leave the machine."""

import io
from typing import Any

import numpy as np

from benchmarks.intake.builders.volumes import radiograph

CANARIES = {
    "PatientName": "CANARYNAME^ANNA",
    "PatientBirthDate": "19010203",
    "InstitutionName": "CANARY HOSPITAL",
    "ReferringPhysicianName": "CANARYDOCTOR",
    "AccessionNumber": "CANARY7714",
    "StudyDescription": "CANARYSTUDY",
}


def dicom_file(values: np.ndarray, **tags: Any) -> bytes:
    """A file of (h, w) numbers, (frames, h, w), or (h, w, 3) with PhotometricInterpretation="RGB"."""
    file = radiograph(values, **{"BitsStored": 8 * values.dtype.itemsize, **CANARIES, **tags})
    target = io.BytesIO()
    file.save_as(target, enforce_file_format=True)
    return target.getvalue()
