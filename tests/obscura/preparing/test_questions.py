"""What folders and labels are called, and what is asked about it: plain functions over names and counts."""

import pytest

from obscura.preparing import ChoiceNeeded
from obscura.preparing.questions import ask_about_classes, classes_flag, look_alike
from obscura.wire.meanings import is_part, owner_in, persons_in_file_names, why_personal

PEOPLE = [
    "SURNAME_GIVEN_19610423", "Meier 23.04.1961", "1961-04-23", "04231961_x", "12MAR1980", "A-1980-Mar-12",
    "DOE^JANE", "sub-01", "subject 4",
    "Meier, Hans", "Meier, H.", "jane@example.org", "Mr Smith", "Frau Meier", "patient12", "Patient_007", "pat-3",
    "case_17", "MRN0045", "ID123", "P0", "S01", "person1", "proband 9", "00012345", "x_998877_y", "john smith",
    "Anna", "MariaLopez", "1.2.840.113619.2.1", "3f2504e0-4f89-41d3-9a0c-0305e82c3301", "TCGA-02-0006", "Müller Jürgen",
]  # fmt: skip
THINGS = [
    "normal", "NORMAL", "PNEUMONIA", "cat", "T-shirt/top", "Grade 3", "grade_3", "BIRADS 4", "T1", "M0", "S1", "0", "9",
    "n01440764", "outdoor-man-made", "Golden_Retriever", "No Finding", "with mask", "melanocytic nevi", "stage IIIb",
    "covid-19", "COVID", "H&E", "ward 12", "3:4", "1/2", "b747", "sunflower", "plane12", "patient", "control", "日本",
    "12 leads", "mass, right", "2x2", "H1N1", "8-bit",
]  # fmt: skip
PARTS = [
    "train", "Test", "testing", "val2017", "train_images", "validation", "images", "masks", "annotations", "fold1",
    "split_2", "raw", "2019", "batch-3", "series 4", "study1", "view2", "PNG", "augmented", "test-set", "dev",
]  # fmt: skip


@pytest.mark.parametrize("name", PEOPLE)
def test_names_of_people_are_told(name):
    assert why_personal(name) is not None


@pytest.mark.parametrize("name", THINGS)
def test_words_for_things_are_not_held_up(name):
    assert why_personal(name) is None
    assert not is_part(name)


@pytest.mark.parametrize("name", PARTS)
def test_parts_of_a_collection_are_told(name):
    assert is_part(name)


def flags(counts: dict[str, int], *, folders: bool = True) -> tuple[str, ...]:
    with pytest.raises(ChoiceNeeded) as error:
        ask_about_classes(counts, folders=folders)
    return error.value.flags


@pytest.mark.parametrize("name", PEOPLE[:6])
def test_people_are_asked_about_before_they_are_classes(name):
    assert flags({name: 30, "other": 40}) == ("--rename-classes classes.csv",)
    assert flags({name: 30, "other": 40}, folders=False) == ("--rename-classes classes.csv",)


@pytest.mark.parametrize(
    ("counts", "stated"),
    [
        ({"train": 40, "test": 9}, "test,train"),
        ({"Normal": 40, "normal": 3, "sick": 9}, "Normal,normal,sick"),
        ({"1": 40, "1.0": 3, "2": 9}, "1,1.0,2"),
        ({f"site {letter}": 3 for letter in "ABCDEFGHIJ"}, ",".join(f"site {letter}" for letter in "ABCDEFGHIJ")),
    ],
)
def test_what_may_be_no_class_is_asked_with_the_names_to_state(counts, stated):
    assert flags(counts) == (f"--classes {stated}",)


def test_labels_that_somebody_wrote_down_may_be_called_like_parts():
    ask_about_classes({"train": 30, "car": 40}, folders=False)
    ask_about_classes({"train": 30}, folders=False)


def test_a_long_list_goes_into_a_file():
    assert classes_flag([f"kind {number}" for number in range(40)]) == "--classes classes.txt"
    assert classes_flag(["a, b", "c"]) == "--classes classes.txt"


@pytest.mark.parametrize(
    "group",
    [["1", "1.0"], ["P1", "p1"], ["P1", " P1"], ["Zoë", "Zoe\u0308"], ["７", "7"], ["007", "7"], ["a  b", "A b"]],
)
def test_texts_that_people_read_as_one(group):
    assert look_alike(["other", *group]) == [group]
    assert look_alike(["P1", "P10", "1", "10", "1.5", "15"]) == []


def test_whose_an_image_is_stands_in_its_path():
    assert owner_in("train/patient00001/study1/view1_frontal.jpg") == "patient00001"
    assert owner_in("sub-01/ses-02/anat.png") == "sub-01"
    assert owner_in("train/normal/patient1.jpg") is None


@pytest.mark.parametrize(
    ("form", "many"),
    [
        ("a/{side}_{p:04}.jpeg", 2),
        ("a/P{p}{letter}.png", 2),
        ("a/{p}_{side}_cc.png", 2),
        ("a/x{p}_T1.png a/x{p}_FLAIR.png", 1),
        ("{side}/{p}.png", 2),
        ("{p}/{side}.png", 2),
        ("a/brain_slice_{n:03}.png", 3),
        ("a/frame{n:05}.png", 3),
        ("a/{p:08}_{n:03}.png", 3),
    ],
)
def test_files_that_are_named_after_persons_with_several_images(form, many):
    names = [
        name
        for n in range(12)
        for name in form.format(p=n // many, n=n, side=("left", "right")[n % 2], letter="LR"[n % 2]).split(" ")
    ]
    pair = persons_in_file_names(names)
    assert pair[0] != pair[1]
    assert {*pair} <= {*names}


@pytest.mark.parametrize(
    "form", ["person{n}", "{n:03}", "img_{n:03}", "left_{n}", "ISIC_{n:07}", "grade{c}_{n:03}", "x{n}_1"]
)
def test_files_that_are_only_numbered_say_nothing_of_persons(form):
    assert persons_in_file_names([f"a/{form.format(n=n, c=n % 2)}.png" for n in range(12)], classes=2) is None
