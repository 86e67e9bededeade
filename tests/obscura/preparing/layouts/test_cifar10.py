"""CIFAR-10 on a small copy of its batches, byte for byte as Python 2 pickled them; pickles that do more are refused."""

import pickle
import struct
from pathlib import Path

import numpy as np
import pytest

from obscura.preparing import Choices, PackingError, prepare, read_choices
from tests.obscura.preparing.layouts.received import received

LABELS = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def batch(images: np.ndarray, labels: list[int]) -> bytes:
    """A batch as the makers of CIFAR-10 wrote it: protocol 2, strings of Python 2, rows of red, green, blue planes."""
    rows = images.transpose(0, 3, 1, 2).reshape(len(images), -1)
    dtype = b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    body = b"\x80\x02}(U\x04datacnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R(K\x01"
    body += b"J" + struct.pack("<i", len(rows)) + b"M\x00\x0c\x86" + dtype + b"\x89"
    body += b"T" + struct.pack("<i", rows.size) + rows.tobytes() + b"tb"
    body += b"U\x06labels](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    return body + b"U\x0bbatch_labelU\x15training batch 1 of 5u."


@pytest.fixture
def made(tmp_path: Path) -> tuple[Path, np.ndarray]:
    """Five batches of four and a test batch of three, below the folder that the archive unpacks to."""
    at = tmp_path / "cifar" / "cifar-10-batches-py"
    at.mkdir(parents=True)
    images = np.random.default_rng(5).integers(0, 255, (23, 32, 32, 3), dtype=np.uint8)
    for number in range(5):
        rows = slice(4 * number, 4 * number + 4)
        (at / f"data_batch_{number + 1}").write_bytes(batch(images[rows], [number, 9, 3, 0]))
    (at / "test_batch").write_bytes(batch(images[20:], [1, 2, 3]))
    (at / "readme.html").write_text("")
    return tmp_path / "cifar", images


def test_both_parts(made):
    root, images = made
    package = prepare(root)
    assert (package.classes, package.height, package.width, package.channels) == (LABELS, 32, 32, 3)
    assert package.summary == "CIFAR-10, train (not test; --split chooses): 20 pictures: as they are."
    found = received(package)
    assert [label for label, _ in found][:4] == ["airplane", "truck", "cat", "airplane"]
    assert (np.stack([pixels for _, pixels in found]) == images[:20]).all()
    found = received(prepare(root / "cifar-10-batches-py", Choices(split="test")))
    assert [label for label, _ in found] == ["automobile", "bird", "cat"]
    assert (np.stack([pixels for _, pixels in found]) == images[20:]).all()
    with pytest.raises(PackingError, match="test, train"):
        prepare(root, Choices(split="val"))


def test_other_sizes_and_grey(made):
    package = prepare(made[0], read_choices(size="16", grey=True))
    assert (package.height, package.channels) == (16, 1)
    assert received(package)[0][1].shape == (16, 16)


def test_names_of_the_classes_are_read(made):
    names = [f"thing {number}".encode() for number in range(10)]
    meta = {b"label_names": names, b"num_vis": 3072}
    (made[0] / "cifar-10-batches-py" / "batches.meta").write_bytes(pickle.dumps(meta, protocol=2))
    assert prepare(made[0]).classes[9] == "thing 9"


def test_batches_pickled_anew_are_read_as_well(made):
    root, images = made
    rows = images[:4].transpose(0, 3, 1, 2).reshape(4, -1)
    for protocol in (2, 3, 4):
        content = pickle.dumps({"data": rows, "labels": [1, 2, 3, 4]}, protocol=protocol)
        (root / "cifar-10-batches-py" / "test_batch").write_bytes(content)
        assert (received(prepare(root, Choices(split="test")))[2][1] == images[2]).all()


class _Runs:
    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> object:
        return Path.touch, (self._path,)


def test_a_pickle_that_would_run_something_does_not(made, tmp_path):
    trap = tmp_path / "sprung"
    content = pickle.dumps({"data": _Runs(trap), "labels": []})
    (made[0] / "cifar-10-batches-py" / "data_batch_3").write_bytes(content)
    with pytest.raises(PackingError, match="numbers alone"):
        prepare(made[0])
    assert not trap.exists()
    pickle.loads(content)
    assert trap.exists()  # it would have


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no pickle",
        pickle.dumps([1]),
        pickle.dumps({"data": 1, "labels": []}),
        batch(np.zeros((1, 32, 32, 3), np.uint8), [10]),
    ],
)
def test_damaged_batches(made, content):
    (made[0] / "cifar-10-batches-py" / "data_batch_2").write_bytes(content)
    with pytest.raises(PackingError, match="data_batch_2"):
        prepare(made[0])


def test_accounts_of_subjects(made):
    with pytest.raises(PackingError, match="does not say whose"):
        prepare(made[0], subjects=True)
