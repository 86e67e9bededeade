"""MNIST's files, sent as they are or in another size; and volumes, whose slices stand as radiologists see them."""

import gzip
import struct
from pathlib import Path

import nibabel
import numpy as np
import pytest
from PIL import Image

from benchmarks.intake.ways import images_of
from obscura.errors import Unreadable
from obscura.preparing import BrokenImages, Choices, prepare
from obscura.preparing.depth import FORMAT_SCALE, Scale, eight_bits
from obscura.preparing.layouts.nifti import open_volume
from tests.obscura.preparing.conftest import assert_refused, flags_asked
from tests.pictures import idx_file, write_files


def write_pair(folder: Path, split: str, images: np.ndarray, *, packed: bool) -> None:
    labels = np.arange(len(images), dtype=np.uint8) % 10
    files = {
        f"{split}-images-idx3-ubyte": idx_file(images, 0x803),
        f"{split}-labels-idx1-ubyte": idx_file(labels, 0x801),
    }
    write_files(folder, {f"{name}.gz": gzip.compress(body) for name, body in files.items()} if packed else files)


@pytest.mark.parametrize("inside", [".", "raw", "MNIST/raw", "FashionMNIST/raw"])
@pytest.mark.parametrize("packed", [True, False])
def test_where_they_lie(tmp_path, inside, packed):
    images = np.random.default_rng(1).integers(0, 255, (20, 28, 28), dtype=np.uint8)
    write_pair(tmp_path / inside, "train", images, packed=packed)
    write_pair(tmp_path / inside, "t10k", images[:12], packed=packed)
    package = prepare(tmp_path)
    assert (package.format, package.private_records, package.classes) == ("idx", 20, tuple("0123456789"))
    assert package.summary == "IDX files, train (not t10k; choose with --split): 20 images, as they are."
    assert prepare(tmp_path, Choices(split="t10k")).private_records == 12


def test_another_size(tmp_path):
    images = np.zeros((11, 28, 28), np.uint8)
    images[:] = np.arange(11)[:, None, None]
    write_pair(tmp_path, "train", images, packed=True)
    package = prepare(tmp_path, Choices(size="32"))
    assert package.summary == "IDX files, train: 11 images: 11 scaled to 32 x 32."
    found = images_of(package)
    assert [label for label, _ in found] == [*"0123456789", "0"]
    assert all((pixels == number).all() for number, (_, pixels) in enumerate(found))


def test_a_pair_that_is_cut_short(tmp_path):
    write_pair(tmp_path, "train", np.zeros((11, 28, 28), np.uint8), packed=False)
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:-1])
    assert_refused(tmp_path, "before its last image", Choices(size="32"))
    labels = tmp_path / "train-labels-idx1-ubyte"
    labels.write_bytes(labels.read_bytes()[:-1])
    assert_refused(tmp_path, "number of records")
    path.write_bytes(path.read_bytes()[:5])
    assert_refused(tmp_path, "damaged")
    labels.unlink()
    assert_refused(tmp_path, "but no file")


@pytest.mark.parametrize("header", [(0x803, 2**32 - 1, 28, 28), (0x803, 11, 2**31, 2**31), (0x803, 12, 28, 28)])
def test_headers_that_promise_too_much(tmp_path, header):
    write_pair(tmp_path, "train", np.zeros((11, 28, 28), np.uint8), packed=False)
    (tmp_path / "train-images-idx3-ubyte").write_bytes(struct.pack(">4I", *header))
    if header[1] != 12:
        (tmp_path / "train-labels-idx1-ubyte").write_bytes(struct.pack(">2I", 0x801, header[1]) + bytes(11))
    assert_refused(tmp_path, "too large")


# --- NIfTI ------------------------------------------------------------------------------------------------------------


RAS = np.diag([1.0, 1.0, 1.0, 1.0])
LPS = np.diag([-1.0, -1.0, 1.0, 1.0])


def nifti(values: np.ndarray, affine: np.ndarray = RAS, window: tuple[float, float] | None = None) -> bytes:
    image = nibabel.Nifti1Image(values, affine)
    if window is not None:
        image.header["cal_min"], image.header["cal_max"] = window
    return bytes(image.to_bytes())


def body(kind: type = np.uint8) -> np.ndarray:
    """(right, front, head): one bright voxel at the patient's right, front and head."""
    values = np.zeros((10, 12, 14), kind)
    values[9, 11, 13] = 255
    return values


def volumes(root: Path, *names: str, content: bytes | None = None) -> Path:
    return write_files(root, dict.fromkeys(names, content or nifti(body())))


@pytest.mark.parametrize("affine", [RAS, LPS])
@pytest.mark.parametrize(
    ("axis", "number", "shape"), [("axial", 13, (12, 10)), ("coronal", 11, (14, 10)), ("sagittal", 9, (14, 12))]
)
def test_right_is_on_the_left_and_front_or_head_above(axis, number, shape, affine):
    values = body() if affine is RAS else body()[::-1, ::-1].copy()
    volume = open_volume(nifti(values, affine))
    assert volume.values.shape == (10, 12, 14)
    shown = eight_bits(volume.slice(axis, number), FORMAT_SCALE)
    assert shown.shape == shape
    assert np.argwhere(shown == 255).tolist() == [[0, 0]]


def test_units_are_windowed_as_stated_or_as_the_header_says():
    values = np.linspace(-1000, 1000, 10 * 12 * 14).reshape(10, 12, 14).astype(np.int16)
    plain = open_volume(nifti(values)).slice("axial", 7)
    with pytest.raises(Unreadable, match="nothing says which"):
        eight_bits(plain, FORMAT_SCALE)
    own = open_volume(nifti(values, window=(-100, 300))).slice("axial", 7)
    assert (eight_bits(own, FORMAT_SCALE) == eight_bits(plain, Scale(window=(-100, 300)))).all()
    assert len(np.unique(eight_bits(own, FORMAT_SCALE))) > 2


def test_paths_say_whose_they_are(tmp_path):
    sick = ("sick/sub-01_ses-1_T1w.nii", "sick/sub-01/anat/sub-01_T2w.nii")
    root = volumes(tmp_path / "named", *sick, "ok/7/a.nii", "ok/7/b.nii", "ok/8/a.nii")
    package = prepare(root, Choices(slices="coronal"), subjects=True)
    assert (package.private_records, package.private_subjects) == (5, 3)
    alone = prepare(volumes(tmp_path / "alone", "sick/a.nii", "ok/b.nii"), Choices(slices="axial"), subjects=True)
    assert "count as one subject each" in alone.summary
    assert_refused(root, "unit is the subject", Choices(slices="coronal"))


def test_what_is_asked_and_what_is_refused(tmp_path):
    root = volumes(tmp_path, "sick/a.nii", "ok/b.nii")
    write_files(root, {"ok/c.nii": nifti(body(np.int16))})
    assert flags_asked(prepare, root, Choices(slices="axial")) == ("--window 0,1",)
    (root / "ok/c.nii").write_bytes(nifti(body())[:900])
    with pytest.raises(BrokenImages, match=r"c\.nii"):
        prepare(root, Choices(slices="axial"))
    Image.new("L", (9, 9)).save(root / "ok" / "d.png")
    assert_refused(root, "two datasets", Choices(slices="axial"))


def test_of_several_volumes_the_first_is_taken():
    values = np.stack([body(), 255 - body()], axis=3)
    volume = open_volume(nifti(values))
    assert volume.volumes == 2
    assert (volume.values == body()).all()


def test_an_offset_of_unsigned_voxels_is_asked_about(tmp_path):
    voxels = (np.random.default_rng(1).normal(40, 60, (32, 32, 3)) + 32768).astype(np.uint16)
    root = volumes(tmp_path, "sick/a.nii", "ok/b.nii", content=nifti(voxels))
    assert flags_asked(prepare, root, Choices(slices="axial")) == ("--window 32640,33024",)
