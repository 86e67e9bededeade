"""What the benchmark of classifiers concludes from its runs, and the public pictures that GEP's anchors are."""

import numpy as np
import pytest
from PIL import Image

from benchmarks.dp_classifiers import ORDERS, orders, summary
from benchmarks.openclipart import load_clipart


def rows_of(**accuracies: list[float]) -> list[dict[str, object]]:
    names = {"bgep": "bgep", "gep": "gep", "dpsgd": "dpsgd", "topagg": "topagg, k=0.8", "freeze": "random freeze"}
    return summary(
        [
            {"row": names[name], "seed": seed, "accuracy": accuracy}
            for name, found in accuracies.items()
            for seed, accuracy in enumerate(found)
        ],
        3.0,
    )


def test_a_difference_of_less_than_two_standard_errors_is_not_better():
    clear, close = [0.80, 0.81, 0.82], [0.811, 0.821, 0.831]
    (found,) = orders(rows_of(gep=close, dpsgd=clear))
    assert found["difference"] == pytest.approx(0.011)
    assert found["standard_error"] == pytest.approx(0.01 * (2 / 3) ** 0.5)
    assert not found["holds"]
    (found,) = orders(rows_of(gep=[0.83, 0.84, 0.85], dpsgd=clear))
    assert found["holds"]


def test_as_good_allows_two_standard_errors_and_a_margin_allows_as_much_more():
    plain = [0.8200, 0.8201, 0.8202]
    for freeze, topagg, expected in ((0.8200, 0.8105, (True, True)), (0.8190, 0.8090, (False, False))):
        found = orders(rows_of(dpsgd=plain, freeze=[freeze, freeze + 1e-4], topagg=[topagg, topagg + 1e-4]))
        assert tuple(order["holds"] for order in found) == expected


def test_every_order_is_of_rows_that_are_run_and_one_seed_tells_nothing():
    assert orders(rows_of(gep=[0.9], dpsgd=[0.8, 0.8])) == []
    assert len({order[:2] for order in ORDERS}) == len(ORDERS) == 6


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
