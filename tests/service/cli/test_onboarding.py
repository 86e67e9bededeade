"""What the owner of pictures is told of rare classes, on their machine alone."""

import pytest

from obscura.cli.quickstart import drowned_here


def test_a_class_with_too_few_pictures_is_told_with_the_number_that_it_needs():
    (said,) = drowned_here({"normal": 2000, "sick": 20}, 130)
    assert said.startswith("Stays here: of sick (20), expect static")
    assert "from about 130 images" in said
    assert "normal" not in said


@pytest.mark.parametrize(
    ("counts", "shown_from"), [({"a": 500, "b": 130}, 130), ({"a": 1}, None), ({}, 130), ({"a": 5}, 0)]
)
def test_nothing_is_told_where_every_class_shows_or_nothing_is_known(counts, shown_from):
    assert list(drowned_here(counts, shown_from)) == []


def test_many_rare_classes_are_counted_and_the_rarest_named():
    (said,) = drowned_here({f"c{number}": number for number in range(20)}, 100)
    assert "of c0 (0), c1 (1), c2 (2), c3 (3), c4 (4), c5 (5) and 14 more" in said
