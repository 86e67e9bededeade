"""MNIST and Fashion-MNIST, as handed out and as torchvision unpacks them: sent as they are, or in another size."""

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

from benchmarks.intake.ways import images_of
from obscura.preparing import Choices, prepare
from tests.obscura.preparing.conftest import assert_refused
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
    assert package.summary == "IDX files, train (not t10k; --split chooses): 20 images, as they are."
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
    assert_refused(tmp_path, "as many labels")


@pytest.mark.parametrize("header", [(0x803, 2**32 - 1, 28, 28), (0x803, 11, 2**31, 2**31), (0x803, 12, 28, 28)])
def test_headers_that_promise_too_much(tmp_path, header):
    write_pair(tmp_path, "train", np.zeros((11, 28, 28), np.uint8), packed=False)
    (tmp_path / "train-images-idx3-ubyte").write_bytes(struct.pack(">4I", *header))
    if header[1] != 12:
        (tmp_path / "train-labels-idx1-ubyte").write_bytes(struct.pack(">2I", 0x801, header[1]) + bytes(11))
    assert_refused(tmp_path, "more than can be")
