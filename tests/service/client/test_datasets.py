"""What the SDK declares of what it was given."""

import pytest

from service.client.datasets import rounded_up


@pytest.mark.parametrize(
    ("count", "declared"),
    [(1, 1), (9, 9), (10, 10), (99, 99), (101, 110), (1797, 1800), (60_000, 60_000), (60_001, 61_000)],
)
def test_counts_are_rounded_up_to_two_digits(count, declared):
    assert rounded_up(count) == declared
