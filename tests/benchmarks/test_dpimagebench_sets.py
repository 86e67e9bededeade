"""CelebA, Camelyon and EuroSAT: read from small copies of DPImageBench's archives, and a row where there are none."""

import io
import json
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from benchmarks import dpimagebench
from benchmarks.dpimagebench_sets import LAYOUTS, read_set


def write_archive(file: Path, labels: list[int], side: int = 32) -> None:
    """Write what the preprocessing writes: numbered PNG files in folders, and a list with labels."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(file, "w") as archive:
        listed = []
        for index, label in enumerate(labels):
            name, picture = f"{index // 1000:05d}/img{index:08d}.png", io.BytesIO()
            Image.fromarray(np.full((side, side, 3), 10 * index + label, np.uint8)).save(picture, "png")
            archive.writestr(name, picture.getvalue())
            listed.append([name, label])
        archive.writestr("dataset.json", json.dumps({"labels": listed}))


@pytest.mark.parametrize(
    ("name", "train"), [("celeba", "train_32_Male"), ("camelyon", "train_32"), ("eurosat", "train_32")]
)
def test_a_set_is_read_in_the_order_of_its_list(name, train, tmp_path):
    place = tmp_path / LAYOUTS[name].folder
    write_archive(place / f"{train}.zip", [1, 0, 1])
    write_archive(place / f"{train.replace('train', 'test')}.zip", [0])
    found = read_set(name, tmp_path)
    assert (found.images.shape, found.test_images.shape) == ((3, 32, 32, 3), (1, 32, 32, 3))
    assert found.labels.tolist() == [1, 0, 1]
    assert found.images[:, 0, 0, 0].tolist() == [1, 10, 21]
    assert found.classes == LAYOUTS[name].classes


def test_a_damaged_archive_is_refused(tmp_path):
    place = tmp_path / "camelyon"
    write_archive(place / "train_32.zip", [0], side=96)
    write_archive(place / "test_32.zip", [0])
    with pytest.raises(ValueError, match="96 x 96 pixels, not 32"):
        read_set("camelyon", tmp_path)
    write_archive(place / "train_32.zip", [2])
    with pytest.raises(ValueError, match="beyond its 2 classes"):
        read_set("camelyon", tmp_path)


def test_the_private_part_is_drawn_and_has_its_own_delta(tmp_path, monkeypatch):
    write_archive(tmp_path / "eurosat" / "train_32.zip", [number % 10 for number in range(24)])
    write_archive(tmp_path / "eurosat" / "test_32.zip", [0, 1])
    monkeypatch.setenv("OBSCURA_DPIMAGEBENCH", str(tmp_path))
    layout = LAYOUTS["eurosat"]
    monkeypatch.setattr(dpimagebench, "LAYOUTS", {"eurosat": type(layout)("eurosat", "", layout.classes, 4)})
    folder, delta = dpimagebench.private_part("eurosat")
    assert (len(folder.labels), delta) == (20, pytest.approx(1 / (20 * np.log(20)), rel=1e-2))
    assert folder.labels.tolist() != [number % 10 for number in range(20)]


def test_where_a_set_cannot_be_had_its_row_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("OBSCURA_DPIMAGEBENCH", str(tmp_path))
    rows = tmp_path / "rows.json"
    for name in ("celeba", "celeba", "camelyon"):  # a second run replaces the row
        monkeypatch.setattr(sys, "argv", ["dpimagebench", "--dataset", name, "--json", str(rows)])
        dpimagebench.main()
    found = json.loads(rows.read_text())
    assert [row["dataset"] for row in found] == ["celeba", "camelyon"]
    assert "celeba/train_32_Male.zip and celeba/test_32_Male.zip" in found[0]["not_run"]
    assert str(tmp_path) not in found[0]["not_run"]
    assert capsys.readouterr().out.count("was not run") == 3
