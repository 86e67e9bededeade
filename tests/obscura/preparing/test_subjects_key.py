"""A secret of the owner's: subjects have the same numbers in every upload, and nobody else can make them."""

import zipfile
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from obscura.preparing import Choices, PackingError, prepare
from obscura.preparing.arrays import Arrays
from obscura.preparing.subjects import keyed_numbers, subject_key
from obscura.preparing.tables import read_ids

SECRET = "0123456789abcdef" * 4


def pushed(subjects: list[Any], key: Path | None, seed: int = 0) -> tuple[list[str], bool]:
    """The folders of the subjects as they are sent, in the order of the images, and what is said of them."""
    images = np.random.default_rng(seed).integers(0, 256, (len(subjects), 16, 16), dtype=np.uint8)
    arrays = Arrays(images, [0] * len(subjects), subjects)
    package = prepare(arrays, Choices(classes="all", subjects_key=key), subjects=True)
    with zipfile.ZipFile(BytesIO(b"".join(package.open()))) as sent:
        if package.format == "npz":
            numbers = np.load(BytesIO(sent.read("subjects.npy"))).tolist()
            return [str(number) for number in numbers], package.recognised
        return [name.split("/")[1] for name in sent.namelist()], package.recognised


@pytest.fixture
def key(tmp_path: Path) -> Path:
    path = tmp_path / "subjects.key"
    path.write_text(SECRET)
    return path


def test_the_same_people_have_the_same_numbers_in_another_upload(key):
    first, recognised = pushed(["anna", "bert", "anna"], key)
    second, _ = pushed(["carl", "anna"], key, seed=1)
    assert recognised
    assert first[0] == first[2] == second[1]
    assert len({*first, *second}) == 3
    assert all(0 <= int(number) < 2**63 for number in first)


SAVED = [SECRET.encode(), f"{SECRET}\n".encode(), *(f"{SECRET}\r\n".encode(how) for how in ("utf-8-sig", "utf-16"))]


@pytest.mark.parametrize(("content", "same"), [*((saved, True) for saved in SAVED), (SECRET[::-1].encode(), False)])
def test_another_secret_gives_other_numbers_and_another_way_to_save_it_does_not(key, tmp_path, content, same):
    (tmp_path / "saved.key").write_bytes(content)
    assert (pushed(["anna"], tmp_path / "saved.key") == pushed(["anna"], key)) is same


def test_without_a_secret_numbers_are_those_of_one_upload():
    numbers, recognised = pushed(["anna", "bert"], None)
    assert not recognised
    assert sorted(numbers) == ["0", "1"]


@pytest.mark.parametrize("content", [None, "", "short"])
def test_a_secret_that_is_missing_or_can_be_guessed_is_refused(content, tmp_path):
    path = tmp_path / "subjects.key"
    if content is not None:
        path.write_text(content)
    with pytest.raises(PackingError, match="at least 32 bytes"):
        Choices(subjects_key=path)
    assert path.exists() is (content is not None)  # none is made: another one would let known subjects pass for new


@pytest.mark.parametrize("subjects", [np.array([3, 4, 3]), np.array(["a", "b", "a"]), np.array([b"a", b"b", b"a"])])
def test_ids_of_numpy_are_ids(subjects):
    numbers, _ = pushed(subjects, None)
    assert numbers[0] == numbers[2] != numbers[1]


@pytest.mark.parametrize("subjects", [np.array([3.0, 4.0]), [None, "b"], [float("nan"), "b"]])
def test_numbers_with_decimals_and_nothing_are_not_ids(subjects):
    with pytest.raises(PackingError, match="an integer or a text, not"):
        pushed(subjects, None)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_a_list_of_who_withdraws_names_the_subjects_of_the_upload(key, tmp_path, encoding):
    listed = tmp_path / "left.txt"
    listed.write_bytes("0010\r\n0012\r\n".encode(encoding))
    names = [subject_key(private_id, join=False) for private_id in read_ids(listed)[1]]
    sent = keyed_numbers(names, SECRET.encode()).values()
    assert [str(number) for number in sent] == pushed(["0010", "0012"], key)[0]
