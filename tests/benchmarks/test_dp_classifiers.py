"""What the benchmark of classifiers makes of its runs, and the public pictures that GEP's anchors are."""

import numpy as np
import pytest
from PIL import Image

from benchmarks.dp_classifiers import summary
from benchmarks.openclipart import load_clipart


def test_a_row_is_the_mean_and_spread_of_its_runs_at_one_epsilon():
    runs = [{"row": "gep", "seed": seed, "accuracy": 0.8 + 0.01 * seed, "epsilon": 3.0} for seed in range(3)]
    (row,) = summary([*runs, {"row": "gep", "seed": 0, "accuracy": 0.1, "epsilon": 1.0}], 3.0)
    assert (row["name"], row["estimator"], row["seeds"]) == ("gep", "gep", 3)
    assert row["mean"] == pytest.approx(0.81)
    assert row["sd"] == pytest.approx(0.01)


def test_clip_art_stands_whole_and_in_the_middle_light_on_black(tmp_path, monkeypatch):
    monkeypatch.setenv("OBSCURA_OPENCLIPART", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="openclipart-png"):
        load_clipart(2, 8)
    transparent = Image.new("RGBA", (40, 20), (0, 0, 0, 0))
    transparent.paste((0, 0, 0, 255), (20, 0, 40, 20))  # the right half is ink
    (tmp_path / "sub").mkdir()
    transparent.save(tmp_path / "sub" / "one.png")
    Image.new("L", (16, 16), 255).save(tmp_path / "white.png")
    (tmp_path / "poster.png").write_bytes(b"0" * 200_000)  # too large to be looked at
    found = load_clipart(5, 8)
    assert found.shape == (2, 8, 8)
    assert found.dtype == np.uint8
    assert np.array_equal(found, load_clipart(5, 8))
    ink = next(picture for picture in found if picture.any())
    assert (ink[2:6, 4:] == 255).all()
    assert ink.sum() == 255 * 16
    assert load_clipart(1, 8).shape == (1, 8, 8)
