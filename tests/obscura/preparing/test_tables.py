"""How tables are cut into cells, which columns are which, and which image a cell means."""

import pytest

from obscura.preparing import ChoiceNeeded, Choices, PackingError
from obscura.preparing.columns import COMBINATIONS_MAX, read_columns
from obscura.preparing.labelled import Finder
from obscura.preparing.tables import Table, parse_table, read_table

IMAGES = ["train/p1/view1.png", "train/p2/view1.png", "x/Scan.JPG", "a.b.png", "7.png"]


@pytest.mark.parametrize(
    ("text", "columns", "row"),
    [
        ("file;label;weight\n1.png;a;3,5\n", ("file", "label", "weight"), ("1.png", "a", "3,5")),
        ('file,label\n1.png,"a\nb"\n', ("file", "label"), ("1.png", "a\nb")),
        ('file,label\n1.png,"say ""a"", b"\n', ("file", "label"), ("1.png", 'say "a", b')),
        ("file,label\r\n1.png,a\r\n", ("file", "label"), ("1.png", "a")),
        ("file,label,note\n1.png,a\n", ("file", "label", "note"), ("1.png", "a", "")),
        ("file,label\n1.png,a,,\n", ("file", "label"), ("1.png", "a")),
        ("\n\nfile,label\n\n1.png,a\n", ("file", "label"), ("1.png", "a")),
        (
            '{"file_name": "1.png", "label": 3, "more": ["a", "b"]}\n',
            ("file_name", "label", "more"),
            ("1.png", "3", "a|b"),
        ),
        ("file,labels\n1.png,\"['a', 'b']\"\n", ("file", "labels"), ("1.png", "a|b")),
        ("file,label\n1.png,[a\n", ("file", "label"), ("1.png", "[a")),
        ('{"file_name": "1.png"}\n{"label": null}\n', ("file_name", "label"), ("1.png", "")),
    ],
)
def test_a_table_is_cut_into_cells(text, columns, row):
    table = parse_table("t.csv", text.encode())
    assert (table.columns, table.rows[0]) == (columns, row)


def test_an_encoding_that_is_stated_is_kept_to():
    data = "file,label\n1.png,große Läsion\n".encode("cp1252")
    with pytest.raises(PackingError, match="not encoded in utf-8"):
        parse_table("t.csv", data, "utf-8")
    with pytest.raises(PackingError, match="--table-encoding is a name"):
        parse_table("t.csv", data, "klingon")


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("t.csv", b"", "holds no rows"),
        ("t.csv", b"file,label\n", "holds no rows"),
        ("t.csv", b"file,label,file\n1.png,a,2.png\n", "two columns 'file'"),
        ("t.jsonl", b'{"file": 1}\n{"file":\n', "not made of lines of JSON"),
        ("t.jsonl", b'{"file": 1}\n[1]\n', "JSON objects"),
        ("t.json", b'{"images": [], "annotations": [{}]}', "annotations as COCO writes them"),
        ("t.json", b"[", "is not JSON"),
    ],
)
def test_what_is_no_table_is_told(name, data, said):
    with pytest.raises(PackingError, match=said):
        parse_table(name, data)


def test_a_table_that_is_not_there(tmp_path):
    with pytest.raises(PackingError, match=r"no\.csv cannot be read: No such file"):
        read_table(tmp_path / "no.csv")


@pytest.mark.parametrize(
    ("cell", "path"),
    [
        ("train/p1/view1.png", "train/p1/view1.png"),
        ("p2/view1.png", "train/p2/view1.png"),
        ("CheXpert-v1.0/train/p1/view1.png", "train/p1/view1.png"),
        ("C:\\data\\train\\p1\\view1.png", "train/p1/view1.png"),
        ("/home/x/7.png", "7.png"),
        ("./7.png", "7.png"),
        ("7", "7.png"),
        ("scan", "x/Scan.JPG"),
        ("SCAN.jpg", "x/Scan.JPG"),
        ("a.b", "a.b.png"),
        ("p3/view1.png", None),
        ("8", None),
        ("77", None),
        ("y/scan", None),
    ],
)
def test_a_cell_means_the_image_whose_path_ends_like_it(cell, path):
    assert Finder(IMAGES).find(cell) == path


@pytest.mark.parametrize(("cell", "said"), [("view1.png", "any of"), ("view1", "any of"), ("../7.png", "outside")])
def test_a_cell_that_may_mean_several_is_refused(cell, said):
    with pytest.raises(PackingError, match=said):
        Finder(IMAGES).find(cell)


def said_of(table: Table, choices: Choices | None = None) -> list[str | None]:
    return [row.label for row in read_columns(table, choices or Choices(), lambda _: True, subjects=False).rows]


def test_numbers_and_names_of_classes_beside_each_other_give_names_in_the_order_of_the_numbers():
    rows = [("1", "10", "ten"), ("2", "9", "nine"), ("3", "10", "ten")]
    found = read_columns(Table("t", ("file", "label", "class"), rows), Choices(), lambda _: True, subjects=False)
    assert found.classes == ("nine", "ten")
    assert [row.label for row in found.rows] == ["ten", "nine", "ten"]
    with pytest.raises(ChoiceNeeded, match="label, class"):
        said_of(Table("t", ("file", "label", "class"), [*rows, ("4", "10", "nine")]))


def test_of_several_attributes_an_image_has_just_one():
    rows = [("1", "1", "0"), ("2", "0", "1.0"), ("3", "1", "1"), ("4", "0", "0"), ("5", "-1", "1"), ("6", "", "1")]
    table = Table("t", ("file", "A", "B"), rows)
    assert said_of(table, Choices(attribute="A,B")) == ["A", "B", None, None, "", ""]
    assert said_of(table, Choices(attribute="A")) == ["A", "not A", "A", "not A", "", ""]
    with pytest.raises(PackingError, match="no column 'C'"):
        said_of(table, Choices(attribute="C"))


def test_combinations_are_few():
    rows = [(str(n), *(str(n >> bit & 1) for bit in range(6))) for n in range(2**6)]
    table = Table("t", ("file", *"ABCDEF"), rows)
    with pytest.raises(PackingError, match=f"64 combinations of labels, more than {COMBINATIONS_MAX}"):
        said_of(table, Choices(combinations=True))
    few = Table("t", ("file", *"ABCDEF"), rows[:4])
    assert said_of(few, Choices(combinations=True)) == ["none", "A", "B", "A|B"]


def test_of_several_columns_that_may_name_images_the_one_that_does_is_taken():
    table = Table("t", ("id", "image", "label"), [("1", "a", "x"), ("2", "b", "y")])
    found = read_columns(table, Choices(), lambda cell: cell in "ab", subjects=False)
    assert [row.file for row in found.rows] == ["a", "b"]
    with pytest.raises(ChoiceNeeded, match="Several columns"):
        read_columns(table, Choices(), lambda _: False, subjects=False)
    unusual = Table("t", ("number", "what it shows", "label"), [("1", "a", "x"), ("2", "b", "y")])
    found = read_columns(unusual, Choices(), lambda cell: cell in "ab", subjects=False)
    assert [row.file for row in found.rows] == ["a", "b"]
    with pytest.raises(ChoiceNeeded, match="contains the image names"):
        read_columns(unusual, Choices(), lambda _: True, subjects=False)
