"""Folders of DICOM files: whose they are and of which class, and nothing else of what their tags say."""

import logging
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from pydicom import dcmread

from obscura.extras import MissingExtra
from obscura.preparing import BrokenImages, prepare
from obscura.preparing.choices import Choices
from tests.obscura.preparing.conftest import assert_refused
from tests.obscura.preparing.dicom_files import CANARIES, dicom_file
from tests.pictures import write_files

RAMP = np.arange(256, dtype=np.uint16).reshape(16, 16) * 16


def write(root: Path, files: dict[str, dict[str, Any]]) -> Path:
    usual = {"values": RAMP, "BitsStored": 12, "BurnedInAnnotation": "NO"}
    return write_files(root, {name: dicom_file(**(usual | tags)) for name, tags in files.items()})


def two_by_two(root: Path, name: str = "{kind}/{patient}/IM{number}", **tags: Any) -> Path:
    files = {}
    for number, (kind, patient) in enumerate([("normal", "P1"), ("normal", "P2"), ("sick", "P3"), ("sick", "P3")]):
        path = name.format(kind=kind, patient=patient, number=number)
        files[path] = {"PatientID": patient, "StudyDescription": kind, **tags}
    return write(root, files)


def test_public_files_may_be_of_one_person_and_a_class_without_pixels_is_lost(tmp_path):
    root = two_by_two(tmp_path)
    assert prepare(root, subjects=None).private_records == 4
    write(root, {"masks/1.dcm": {"PatientID": "P9", "Modality": "SEG"}})
    with pytest.raises(BrokenImages, match="class masks"):
        prepare(root, subjects=True)
    write_files(root, {"odd/notes.txt": "no image"})
    with pytest.raises(BrokenImages, match=r"2 classes \((odd, masks|masks, odd)\)"):
        prepare(root, subjects=True)


@pytest.mark.parametrize(("value", "warned"), [("NO", False), ("YES", True), (None, True)])
def test_burnt_in_text_is_warned_of(tmp_path, value, warned):
    package = prepare(two_by_two(tmp_path, BurnedInAnnotation=value), subjects=True)
    assert ("4 may show text" in package.summary) == warned


OBJECTS = {
    "segmentation": ("66.4", {"values": np.ones((3, 16, 16), np.uint8), "Modality": "SEG", "BitsStored": 8}),
    "label_map": ("66.7", {"values": np.ones((3, 16, 16), np.uint8), "Modality": "SEG", "BitsStored": 8}),
    "dose": ("481.2", {"values": np.stack([RAMP, RAMP]), "Modality": "RTDOSE"}),
    "structures": ("481.3", {"Modality": "RTSTRUCT"}),
    "plan": ("481.5", {"Modality": "RTPLAN"}),
    "report": ("88.33", {"Modality": "SR"}),
    "key_objects": ("88.59", {"Modality": "KO"}),
    "presentation": ("11.1", {"Modality": "PR"}),
    "document": ("104.1", {"Modality": "DOC", "EncapsulatedDocument": b"%PDF-1.4"}),
    "electrocardiogram": ("9.1.1", {"Modality": "ECG"}),
    "registration": ("66.1", {"Modality": "REG"}),
    "raw_data": ("66", {"Modality": "MR"}),
    "fields_of_another_vendor": ("1.2.3", {"Modality": "PR"}),
}


@pytest.mark.parametrize("kind", OBJECTS)
def test_objects_that_are_no_images_are_left_out_and_counted(tmp_path, kind):
    stored, tags = OBJECTS[kind]
    root = write(two_by_two(tmp_path), {"sick/object": {"PatientID": "P3", **tags}})
    file = dcmread(root / "sick/object")
    file.SOPClassUID = file.file_meta.MediaStorageSOPClassUID = f"1.2.840.10008.5.1.4.1.1.{stored}"
    if "values" not in tags:
        for word in ("PixelData", "Rows", "Columns", "BitsAllocated", "BitsStored", "HighBit"):
            del file[word]
    file.save_as(root / "sick/object")
    package = prepare(root, subjects=True)
    assert package.private_records == 4
    assert ("1 DICOM object without an image" if "values" in tags else "1 DICOM file without pixels") in package.summary
    table = tmp_path / "labels.csv"
    table.write_text("file,label\nnormal/P1/IM0,normal\nsick/P3/IM2,sick\nsick/object,sick\n")
    assert prepare(root, Choices(labels=table), subjects=True).private_records == 2


def test_nothing_but_the_named_tags_is_in_what_is_sent(tmp_path, caplog, capfd):
    canaries = {"PatientID": "CANARYPATIENT"}
    with caplog.at_level(logging.DEBUG):
        package = prepare(two_by_two(tmp_path / "in", **canaries), subjects=True)
        sent = b"".join(package.open())
    said = sent + (package.summary + caplog.text + "".join(capfd.readouterr())).encode()
    for value in [*CANARIES.values(), *canaries.values()]:
        assert value.encode() not in said
    assert str(tmp_path).encode() not in sent


def test_without_the_extra_its_command_is_named(tmp_path, monkeypatch):
    root = two_by_two(tmp_path)
    for module in [name for name in sys.modules if name.split(".")[0] == "pydicom"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "pydicom", None)
    with pytest.raises(MissingExtra, match=r"pip install 'obscura-images\[dicom\]'"):
        prepare(root, subjects=True)


def table_of(root: Path, *columns: str) -> Choices:
    """A table of the four files, which names them by their place alone."""
    rows = ["file,label" + "".join(f",{column}" for column in columns)]
    for number, kind in enumerate(["normal", "normal", "sick", "sick"]):
        rows.append(f"IM{number}.dcm,{kind}" + f",Q{number}" * len(columns))
    (root / "labels.csv").write_text("\n".join(rows))
    return Choices(labels=root / "labels.csv")


def test_a_table_says_the_classes_and_tags_or_a_column_the_subjects(tmp_path):
    root = two_by_two(tmp_path, "all/{patient}/IM{number}.dcm")
    package = prepare(root, table_of(root), subjects=True)
    assert (package.private_records, package.private_subjects, package.classes) == (4, 3, ("normal", "sick"))
    assert prepare(root, table_of(root, "subject"), subjects=True).private_subjects == 4


def test_a_table_does_not_hide_that_images_are_of_one_person(tmp_path):
    root = two_by_two(tmp_path, "all/IM{number}.dcm")
    assert_refused(root, "same PatientID", table_of(root))
    assert_refused(root, "leave --label-tag out", table_of(root).model_copy(update={"label_tag": "Modality"}))
    Image.fromarray((RAMP // 16).astype(np.uint8)).save(root / "all" / "IM3.png")
    (root / "all" / "IM3.dcm").unlink()
    (root / "labels.csv").write_text((root / "labels.csv").read_text().replace("IM3.dcm", "IM3.png"))
    assert_refused(root, r"Nothing says whose all/IM3\.png is", Choices(labels=root / "labels.csv"), subjects=True)


@pytest.mark.parametrize(("study", "remarked"), [("1.2.3", True), ("1.2.3.{n}", False), ("", False)])
def test_slices_of_one_study_without_a_subject_are_remarked_upon(tmp_path, study, remarked):
    tags = {f"{'ab'[n % 2]}/{n}.dcm": {"PatientID": "", "StudyInstanceUID": study.format(n=n)} for n in range(4)}
    root = write(tmp_path / "d", tags)
    assert ("3 have no subject and the StudyInstanceUID of another" in prepare(root).summary) is remarked
    assert "StudyInstanceUID" not in prepare(root, subjects=None).summary
