"""Tables: their cells and columns, and which image a cell means; labels are integers or texts in every format."""

import numpy as np
import pytest

from obscura.preparing import ChoiceNeeded, Choices, PackingError
from obscura.preparing.columns import COMBINATIONS_MAX, read_columns
from obscura.preparing.labelled import Finder
from obscura.preparing.labels import class_numbers, read_labels
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
    with pytest.raises(PackingError, match="`table_encoding` is a name"):
        parse_table("t.csv", data, "klingon")


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("t.csv", b"", "holds no rows"),
        ("t.csv", b"file,label\n", "holds no rows"),
        ("t.csv", b"file,label,file\n1.png,a,2.png\n", "two columns 'file'"),
        ("t.jsonl", b'{"file": 1}\n{"file":\n', "Not every line of"),
        ("t.jsonl", b'{"file": 1}\n[1]\n', "JSON objects"),
        ("t.json", b'{"images": [], "annotations": [{}]}', "COCO annotations"),
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


@pytest.mark.parametrize(("cell", "said"), [("view1.png", "several"), ("view1", "several"), ("../7.png", "outside")])
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


# --- labels -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "read"),
    [
        ([0, 2, 1], ("0", "2", "1")),
        (np.array([[0], [1]], np.uint8), ("0", "1")),
        (np.array(["a ", "b"]), ("a", "b")),
        (np.array([b"a", "\u00e4".encode()]), ("a", "\u00e4")),
        (np.array(["a", "bc"], dtype=object), ("a", "bc")),
        (["1", "1.0"], ("1", "1.0")),
        (["a\u0308"], ("\u00e4",)),
        (["unknown", "other"], ("unknown", "other")),
    ],
)
def test_labels_stay_what_they_are(values, read):
    assert read_labels(values, len(values), "x", Choices())[0] == read


@pytest.mark.parametrize("values", [[0.0, 1.0], [0.2, 0.9], [True, False], [1j, 0], np.array([1, "a"], dtype=object)])
def test_what_is_neither_integer_nor_text_is_refused(values):
    with pytest.raises(PackingError, match="integers or names"):
        read_labels(values, 2, "x", Choices())


def test_a_word_that_is_stated_is_a_class():
    assert read_labels(["none", "mass"], 2, "x", Choices(classes=("mass", "none"))) == (("none", "mass"), None)


@pytest.mark.parametrize(
    ("used", "stated", "used_only", "known", "numbers"),
    [
        ([0, 1, 1], None, False, 0, (0, 1)),
        ([1, 3], None, True, 0, (1, 3)),
        ([1, 3], ("a", "b", "c", "d"), False, 0, (0, 1, 2, 3)),
        ([1, 3], ("a", "b"), True, 0, (1, 3)),
        ([0, 1], None, True, 3, (0, 1)),
        ([], None, False, 0, ()),
    ],
)
def test_numbers_that_are_classes(used, stated, used_only, known, numbers):
    assert class_numbers(used, stated, used_only=used_only, known=known) == numbers


@pytest.mark.parametrize(
    ("used", "known", "gap"), [([1, 2], 0, 0), ([0, 2], 0, 1), ([0, 1], 3, 2), ([0, 10**12], 0, 1)]
)
def test_a_number_without_images_is_asked_about(used, known, gap):
    with pytest.raises(ChoiceNeeded, match=f"No image has the label {gap},") as asked:
        class_numbers(used, None, used_only=False, known=known)
    assert asked.value.flags == ("--used-classes",)


def test_fewer_names_than_classes_are_refused():
    for used, used_only in (([0, 5], False), ([0, 5, 7], True)):
        with pytest.raises(PackingError, match="classes, but there are more"):
            class_numbers(used, ("a", "b"), used_only=used_only)
    with pytest.raises(PackingError, match="x names 2 classes"):
        read_labels([0, 2], 2, "x", Choices(), ("a", "b"))


def test_classes_are_called_as_the_file_says():
    skip = Choices(skip_unlabelled=True)
    assert read_labels([1, 0, -1], 3, "x", skip, ("a", "b")) == (("b", "a", None), ("a", "b"))
    assert read_labels(["b", "a", "nan"], 3, "x", skip) == (("b", "a", None), None)
