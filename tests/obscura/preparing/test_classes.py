"""The names of the classes may be stated, and are then what is declared, whatever the files hold."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from obscura.preparing import Arrays, Choices, PackingError, prepare
from tests.pictures import write_files


@pytest.fixture
def animals(tmp_path: Path) -> Path:
    return write_files(tmp_path / "animals", dict.fromkeys(["cat/a.png", "dog/a.png"], Image.new("RGB", (8, 8))))


def test_stated_classes_of_a_folder_may_be_more_than_it_has_and_not_fewer(animals):
    assert prepare(animals, Choices(classes=["dog", "cat", "eel"])).classes == ("dog", "cat", "eel")
    with pytest.raises(PackingError, match=r"--classes does not name every class that there is: dog\."):
        prepare(animals, Choices(classes=["cat"]))


def test_labels_that_are_numbers_get_the_stated_names_in_order(tmp_path):
    images, labels = np.zeros((3, 8, 8), np.uint8), np.array([0, 1, 1])
    np.savez(tmp_path / "a.npz", images=images, labels=labels)
    stated = Choices(classes=["cat", "dog", "eel"])
    for place in (tmp_path / "a.npz", Arrays(images, labels)):
        assert prepare(place, stated).classes == ("cat", "dog", "eel")
        with pytest.raises(PackingError, match="labels beyond these"):
            prepare(place, Choices(classes=["cat"]))
    resized = prepare(tmp_path / "a.npz", Choices(classes=["cat", "dog", "eel"], size=16))
    body = b"".join(resized.open())
    assert b"cat/0000000.png" in body
    assert b"dog/0000002.png" in body


def test_labels_that_are_names_are_numbered_in_the_stated_order():
    arrays = Arrays(np.zeros((2, 8, 8), np.uint8), ["dog", "cat"])
    assert prepare(arrays, Choices(classes=["eel", "dog", "cat"])).classes == ("eel", "dog", "cat")
    with pytest.raises(PackingError, match="does not name every class"):
        prepare(arrays, Choices(classes=["cat", "eel"]))


@pytest.mark.parametrize("stated", [[], ["cat", "cat"]])
def test_what_is_no_list_of_classes(stated):
    with pytest.raises(PackingError, match="--classes names each class once"):
        Choices(classes=stated)


def test_new_names_are_what_is_declared_and_sent_whatever_the_files_hold(tmp_path, animals):
    table = tmp_path / "new.csv"
    table.write_text("\ufeffold,new\neel,fish\ndog,beast\ncat,beast\n", encoding="utf-8")
    package = prepare(animals, Choices(rename_classes=table))
    assert (package.classes, package.private_counts) == (("fish", "beast"), {"fish": 0, "beast": 2})
    body = b"".join(package.open())
    assert b"beast/0000001.png" in body
    assert b"cat" not in body
    np.savez(tmp_path / "a.npz", images=np.zeros((2, 8, 8), np.uint8), labels=np.array([0, 1]))
    table.write_text("old,new\n0,normal\n1,sick\n")
    assert prepare(tmp_path / "a.npz", Choices(rename_classes=table)).classes == ("normal", "sick")
