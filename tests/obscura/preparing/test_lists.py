"""Lists and tables of ids, classes and new names, in every form in which spreadsheets and editors save them."""

import io
from pathlib import Path
from types import SimpleNamespace

import pytest
from PIL import Image

from obscura.preparing import ChoiceNeeded, Choices, PackingError, prepare
from obscura.preparing.subjects import require_plain_ids
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
        (b"0010,0012\n", "2 columns, and its first line does not name the column"),
        (b"0010;0012\n0013;\n", "2 columns"),
        (b"subject;reason\n;moved\n0010;\n", "Line 2 of list.csv has other cells"),
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
    assert prepare(of_records(tmp_path, head, *cells), Choices(labels="t.csv")).private_notes == ()


def test_the_screen_shows_how_many_subjects_there_are_and_where_their_ids_come_from(tmp_path):
    package = prepare(of_records(tmp_path, "patient", "P7", "P7", "P8", "P9"), Choices(labels="t.csv"), subjects=True)
    lines = [*screen(package, at_most=10, subjects_at_most=5, private=True)]
    assert "Stays here: 3 subjects; their ids come from the column 'patient' of t.csv, such as 'P7'." in lines
    root = images(tmp_path / "folders", "sick, old/anna/1.png", "well/bert/2.png")
    lines = [*screen(prepare(root, subjects=True), at_most=10, subjects_at_most=5, private=True)]
    assert lines[1] == 'Stays here: images by class: "sick, old" 1, "well" 1.'
    assert lines[2].endswith("from the names of the folders inside the class folders, such as 'anna'.")
    assert 'classes "sick, old", "well"; images' in lines[-1]
