"""Subject ids in every form in which programs save them, and the numbers that an owner's secret makes of them."""

import io
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from obscura.preparing import Arrays, ChoiceNeeded, Choices, PackingError, prepare
from obscura.preparing.subjects import keyed_numbers, require_plain_ids, subject_key
from obscura.preparing.survey import screen
from obscura.preparing.tables import read_ids, read_lines, read_renames
from tests.pictures import write_files

ENCODINGS = ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"]


def written(tmp_path: Path, text: str, encoding: str = "utf-8") -> Path:
    path = tmp_path / "list.csv"
    path.write_bytes(text.encode(encoding))
    return path


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_ids_renames_and_classes_are_read_whatever_the_encoding_and_the_line_ends(tmp_path, encoding, end):
    ids = end.join(["0010", '"0012"', "", ""])
    assert [*read_ids(written(tmp_path, ids, encoding))[1]] == ["0010", "0012"]
    assert {*read_lines(written(tmp_path, ids, encoding))} == {"0010", "0012"}
    for delimiter in (",", ";", "\t"):
        rows = (("old", "new"), ("Größe", '"a ""b"""'), ("x", "y"), ("", ""))
        renames = end.join(delimiter.join(row) for row in rows)
        assert read_renames(written(tmp_path, renames, encoding)) == {"Größe": 'a "b"', "x": "y"}


@pytest.mark.parametrize(
    ("text", "heading", "ids"),
    [
        ("0010\n", "", ["0010"]),
        ("Patient ID\n0010\n", "Patient ID", ["0010"]),
        ("id\n0010\n0012\n", "id", ["0010", "0012"]),
        ("subject;reason\n0010;moved\n0012;\n", "subject", ["0010", "0012"]),
        ("sep=;\nsubject;reason\n0010;moved\n", "subject", ["0010"]),
        ("0010;;\n0012;;\n", "", ["0010", "0012"]),
        ("Doe Jane\nRoe Rick\n", "", ["Doe Jane", "Roe Rick"]),
        ("0010\n0010\n", "", ["0010"]),
    ],
)
def test_a_list_of_ids_may_have_a_heading_and_other_columns(tmp_path, text, heading, ids):
    said, places = read_ids(written(tmp_path, text))
    assert (said, sorted(places)) == (heading, ids)


def test_ids_come_from_standard_input(monkeypatch):
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO("\ufeff0010\r\n".encode())))
    assert read_ids(Path("-"))[1] == {"0010": "line 1 of -"}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "holds no subject ids"),
        (b"subject\n", "holds no subject ids"),
        (b"0010,0012\n", "2 columns, but its first line does not identify the column"),
        (b"0010;0012\n0013;\n", "2 columns"),
        (b"subject;reason\n;moved\n0010;\n", "Line 2 of list.csv has values, but none"),
        ("Müller\n".encode("latin-1"), "Save it as UTF-8"),
        (b"0010\n\0", "NUL"),
        (b"PK\x03\x04", "workbook"),
    ],
)
def test_a_file_that_is_not_a_list_of_ids_is_refused(tmp_path, content, said):
    (tmp_path / "list.csv").write_bytes(content)
    with pytest.raises(PackingError, match=said):
        read_ids(tmp_path / "list.csv")


FAULTS = {
    "byte-order mark": ["\ufeff0010"],
    r"U\+200B": ["00\u200b10"],
    r"U\+0007": ["0010\x07"],
    r"U\+202E": ["\u202e0010"],
    "quotation mark": ['"0010"', "'0010", '="0010"', "\u201e0010\u201c"],
    "separator": ["0010,0012", "0010;0012", "0010\t0012", "0010\n0012", "0010|0012"],
    "scientific": ["1.2E+05", "1,2e+15", "1E+05"],
    "decimals": ["12.0"],
    "leading zeros": ["12"],
}


@pytest.mark.parametrize(("text", "said"), [(text, said) for said, texts in FAULTS.items() for text in texts])
def test_a_suspicious_id_ends_a_withdrawal_and_says_where_it_is(text, said):
    places = {"0010": "line 1 of left.txt", text: "line 2 of left.txt"}
    with pytest.raises(PackingError, match=rf"^Line 2 of left\.txt: subject id .* {said}.*Nothing was sent") as error:
        require_plain_ids(places, join=False, withdrawal=True)
    assert not isinstance(error.value, ChoiceNeeded)
    with pytest.raises(PackingError, match=rf"^The subject id .* {said}"):
        require_plain_ids({"0010": "", text: ""}, join=False, withdrawal=True)


@pytest.mark.parametrize(
    "text", ["O'Neill", "Doe^Jane", "12E5", "1.2", "P 7", "12345", "Zoë", "1.2.840.10008", 10007, b"x"]
)
def test_a_plain_id_passes(text):
    require_plain_ids({"0010": "", text: ""}, join=False, withdrawal=True)


def test_ids_that_were_joined_may_differ_in_zeros_and_decimals():
    require_plain_ids(dict.fromkeys(["0010", "12", "13.0"], ""), join=True, withdrawal=True)


def images(tmp_path: Path, *paths: str) -> Path:
    return write_files(tmp_path / "p", {path: Image.new("L", (16, 16), number) for number, path in enumerate(paths)})


def of_records(tmp_path: Path, head: str, *cells: str) -> Path:
    root = images(tmp_path, *(f"{number}.png" for number in range(len(cells))))
    rows = "".join(f"{number}.png,{'ab'[number % 2]},{cell}\n" for number, cell in enumerate(cells))
    (root / "t.csv").write_text(f"file,label,{head}\n{rows}", encoding="utf-8")
    return root


@pytest.mark.parametrize(
    ("head", "cells"),
    [("lesion_id", "1234"), ("lesion_id", "1111"), ("age", "4455"), ("site", "1122"), ("eye", "LRLR")],
)
def test_other_columns_are_not_remarked_upon(tmp_path, head, cells):
    assert prepare(of_records(tmp_path, head, *cells), Choices(labels="t.csv", grey=True)).private_notes == ()


def test_the_screen_shows_how_many_subjects_there_are_and_where_their_ids_come_from(tmp_path):
    package = prepare(of_records(tmp_path, "patient", "P7", "P7", "P8", "P9"), Choices(labels="t.csv"), subjects=True)
    lines = [*screen(package, at_most=10, subjects_at_most=5, private=True)]
    assert "Stays here: 3 subjects; their ids, such as 'P7', come from the column 'patient' of t.csv." in lines
    root = images(tmp_path / "folders", "sick, old/anna/1.png", "well/bert/2.png")
    lines = [*screen(prepare(root, subjects=True), at_most=10, subjects_at_most=5, private=True)]
    assert lines[1] == 'Stays here: images by class: "sick, old" 1, "well" 1.'
    assert lines[2].endswith("their ids, such as 'anna', come from the names of the folders inside the class folders.")
    assert 'classes "sick, old", "well"; images' in lines[-1]


SECRET = "0123456789abcdef" * 4


def pushed(subjects: list[Any], key: Path | None, seed: int = 0) -> tuple[list[str], bool]:
    """The folders of the subjects as they are sent, in the order of the images, and what is said of them."""
    images = np.random.default_rng(seed).integers(0, 256, (len(subjects), 16, 16), dtype=np.uint8)
    arrays = Arrays(images, [0] * len(subjects), subjects)
    package = prepare(arrays, Choices(classes="all", subjects_key=key), subjects=True)
    with zipfile.ZipFile(io.BytesIO(b"".join(package.open()))) as sent:
        if package.format == "npz":
            numbers = np.load(io.BytesIO(sent.read("subjects.npy"))).tolist()
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
    listed = written(tmp_path, "0010\r\n0012\r\n", encoding)
    names = [subject_key(private_id, join=False) for private_id in read_ids(listed)[1]]
    sent = keyed_numbers(names, SECRET.encode()).values()
    assert [str(number) for number in sent] == pushed(["0010", "0012"], key)[0]
