"""DICOM files: the pixels that pydicom gives, or a sentence; whose they are, their classes, and no other tag."""

import io
import logging
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pydicom.data
import pytest
from PIL import Image
from pydicom import dcmread
from pydicom.dataset import Dataset
from pydicom.pixels import apply_color_lut, apply_modality_lut, apply_voi_lut
from pydicom.uid import DeflatedExplicitVRLittleEndian

from obscura.errors import ChoiceNeeded, PackingError, Unreadable
from obscura.extras import MissingExtra
from obscura.preparing import BrokenImages, prepare
from obscura.preparing.choices import Choices
from obscura.preparing.depth import FORMAT_SCALE, Numbers, Scale, eight_bits
from obscura.preparing.dicom import frames_of, has_pixels, open_dicom, read_frame, require_reader, tag_text
from obscura.preparing.images import Target, look, prepare_image
from tests.obscura.preparing.conftest import CANARIES, assert_refused, dicom_file
from tests.pictures import write_files

SHIPPED = sorted(
    path
    for path in Path(pydicom.data.__file__).parent.rglob("*")
    if path.is_file() and (path.suffix == ".dcm" or path.name == "no_meta" or path.read_bytes()[128:132] == b"DICM")
)
RAMP = np.arange(256, dtype=np.uint16).reshape(16, 16) * 16
ramp = partial(dicom_file, RAMP, BitsStored=12)


def shown(content: bytes, number: int = 0, scale: Scale = FORMAT_SCALE) -> np.ndarray:
    pixels = read_frame(open_dicom(content), number)
    return eight_bits(pixels, scale) if isinstance(pixels, Numbers) else pixels


def as_pydicom_shows_it(file: Dataset) -> np.ndarray:
    """The first frame by pydicom's functions alone, from what the stored bits can be to 0 to 255."""
    stored = file.pixel_array
    stored = stored[0] if frames_of(file) > 1 else stored
    if file.PhotometricInterpretation == "PALETTE COLOR":
        colours = apply_color_lut(stored, file)
        return colours if colours.itemsize == 1 else np.rint(colours / 257)
    if stored.ndim == 3:
        return np.rint(stored * (255 / (2.0**file.BitsStored - 1)))
    values = apply_voi_lut(apply_modality_lut(stored, file), file)
    low, high = (0, 2**file.BitsStored - 1)
    if file.PixelRepresentation:
        low, high = -(2 ** (file.BitsStored - 1)), 2 ** (file.BitsStored - 1) - 1
    low, high = (
        end * float(file.get("RescaleSlope", 1)) + float(file.get("RescaleIntercept", 0)) for end in (low, high)
    )
    if "ModalityLUTSequence" in file:
        low, high = 0, 2 ** file.ModalityLUTSequence[0].LUTDescriptor[2] - 1
    if "VOILUTSequence" in file:
        low, high = 0, 2 ** file.VOILUTSequence[0].LUTDescriptor[2] - 1
    bright = np.clip((values - low) / (high - low), 0, 1) * 255
    return np.rint(255 - bright if file.PhotometricInterpretation == "MONOCHROME1" else bright)


def test_dicom_images_are_declared_in_grey_unless_the_owner_states_or_must_choose(tmp_path):
    folder = write_files(
        tmp_path, {f"scans/{name}/{n}.dcm": ramp(PatientID=f"{name}{n}") for name in "ab" for n in (1, 2)}
    )
    assert prepare(folder / "scans", subjects=None).channels == 1
    assert prepare(folder / "scans", Choices(grey=False), subjects=None).channels == 3
    Image.new("L", (16, 16), 9).save(folder / "scans" / "a" / "3.png")  # one image must not change the default
    with pytest.raises(ChoiceNeeded, match="1 of 5 images are in colour, or are not in DICOM files") as asked:
        prepare(folder / "scans", subjects=None)
    assert asked.value.flags == ("--colour",)
    assert prepare(folder / "scans", Choices(grey=True, depth=12), subjects=None).channels == 1


@pytest.mark.filterwarnings("ignore")  # of pydicom, about its damaged files
def test_every_file_that_pydicom_ships_is_read_as_pydicom_does_or_refused_by_a_sentence():
    """Most are read; the others are reports, plans, directories and files that are damaged on purpose."""
    read = 0
    for path in SHIPPED:
        content = path.read_bytes()
        with suppress(Unreadable):  # and no other error
            got = shown(content)
            read += 1
            expected = as_pydicom_shows_it(dcmread(io.BytesIO(content), force=True))
            assert np.abs(got.astype(int) - expected).max() <= 1, path.name
    assert read >= 80


def test_a_deflated_file_is_unpacked_within_a_bound():
    content = ramp()
    deflated = io.BytesIO()
    file = dcmread(io.BytesIO(content))
    file.file_meta.TransferSyntaxUID = DeflatedExplicitVRLittleEndian
    file.PixelData = bytes(4 * 2**20)
    file.Rows = file.Columns = 1024
    file.BitsAllocated, file.BitsStored, file.HighBit = 32, 32, 31
    file.save_as(deflated, enforce_file_format=True)
    assert len(deflated.getvalue()) < 2**15
    assert shown(deflated.getvalue()).shape == (1024, 1024)
    with pytest.raises(Unreadable, match="once it is inflated"):
        open_dicom(deflated.getvalue(), 2**21)
    assert shown(content).shape == RAMP.shape


def test_what_is_white_follows_the_tags():
    plain = shown(ramp())
    assert np.abs(plain - RAMP / 4095 * 255).max() <= 0.5
    assert (shown(ramp(PhotometricInterpretation="MONOCHROME1")) == 255 - plain).all()
    windowed = shown(ramp(WindowCenter=2000, WindowWidth=1000)).astype(int)
    assert (windowed[RAMP <= 1500] == 0).all()
    assert (windowed[RAMP >= 2500] == 255).all()
    rescaled = ramp(RescaleSlope=2, RescaleIntercept=-1024, WindowCenter=0, WindowWidth=1000)
    assert np.abs(shown(rescaled)[RAMP == 512] - 128).max() <= 1
    assert (shown(rescaled, scale=Scale(window=(0, 1))) == np.where(RAMP > 512, 255, 0)).all()


def test_a_negative_slope_turns_the_image_around():
    content = ramp(RescaleSlope=-1, RescaleIntercept=0)
    assert np.abs(shown(content) - (255 - RAMP / 4095 * 255)).max() <= 1
    windowed = ramp(RescaleSlope=-1, RescaleIntercept=0, WindowCenter=-2048, WindowWidth=4095)
    assert np.abs(shown(windowed).astype(int) - shown(content)).max() <= 1


def test_enhanced_files_window_each_frame_by_its_own_group():
    def group(centre: float, intercept: float) -> Dataset:
        own, window, rescale = Dataset(), Dataset(), Dataset()
        window.WindowCenter, window.WindowWidth = centre, 100
        rescale.RescaleSlope, rescale.RescaleIntercept = 1, intercept
        own.FrameVOILUTSequence, own.PixelValueTransformationSequence = [window], [rescale]
        return own

    content = dicom_file(
        np.stack([RAMP, RAMP]), BitsStored=12, PerFrameFunctionalGroupsSequence=[group(1000, 0), group(1000, -1000)]
    )
    first, second = shown(content, 0), shown(content, 1)
    assert (first[RAMP > 1050] == 255).all()
    assert (second[RAMP < 1950] == 0).all()
    assert (second[RAMP > 2050] == 255).all()


def test_a_file_is_an_image_like_any_other():
    content = ramp()
    seen = look(content)
    assert (seen.width, seen.height, seen.grey, seen.depth is None) == (16, 16, True, False)
    suffix, png = prepare_image(content, Target(16, 16, 1))
    assert suffix == ".png"
    assert (np.asarray(Image.open(io.BytesIO(png))) == shown(content)).all()
    assert b"CANARY" not in png


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no dicom at all",
        dicom_file(RAMP)[:200],
        dicom_file(RAMP)[:-40],
        dicom_file(RAMP, Rows=60_000, Columns=60_000),
    ],
)
def test_damaged_files_are_named_with_a_reason_and_quote_no_tag(content, caplog, capfd):
    with caplog.at_level(logging.DEBUG), pytest.raises(Unreadable) as refused:
        read_frame(open_dicom(content))
    said = str(refused.value) + caplog.text + "".join(capfd.readouterr())
    assert "CANARY" not in said
    assert "19010203" not in said


def test_tags_are_named_by_keyword_or_number():
    dataset = open_dicom(dicom_file(RAMP, PatientID=" P7 ", ImageType=["ORIGINAL", "PRIMARY"]))
    assert tag_text(dataset, "PatientID") == tag_text(dataset, "(0010,0020)") == tag_text(dataset, "00100020") == "P7"
    assert tag_text(dataset, "ImageType") == "ORIGINAL\\PRIMARY"
    assert tag_text(dataset, "StudyID") == ""
    assert has_pixels(dataset)
    require_reader("PatientID", "0010,0020", None, "none")
    for none in ("PatientIdentity", "", "0010", "zzzz,0020"):
        with pytest.raises(PackingError, match="not a DICOM tag"):
            require_reader(none)


# --- folders ----------------------------------------------------------------------------------------------------------


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
    assert ("4 of the images may show text" in package.summary) == warned


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
    assert_refused(root, "leave `label_tag` out", table_of(root).model_copy(update={"label_tag": "Modality"}))
    Image.fromarray((RAMP // 16).astype(np.uint8)).save(root / "all" / "IM3.png")
    (root / "all" / "IM3.dcm").unlink()
    (root / "labels.csv").write_text((root / "labels.csv").read_text().replace("IM3.dcm", "IM3.png"))
    assert_refused(root, r"all/IM3\.png is not a DICOM file", Choices(labels=root / "labels.csv"), subjects=True)


@pytest.mark.parametrize(("study", "remarked"), [("1.2.3", True), ("1.2.3.{n}", False), ("", False)])
def test_slices_of_one_study_without_a_subject_are_remarked_upon(tmp_path, study, remarked):
    tags = {f"{'ab'[n % 2]}/{n}.dcm": {"PatientID": "", "StudyInstanceUID": study.format(n=n)} for n in range(4)}
    root = write(tmp_path / "d", tags)
    assert ("3 of the images have no subject, but share a StudyInstanceUID" in prepare(root).summary) is remarked
    assert "StudyInstanceUID" not in prepare(root, subjects=None).summary
