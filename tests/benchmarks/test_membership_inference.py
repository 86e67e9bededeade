"""The benchmark of membership inference, on small stand-ins for its images."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import membership_inference
from benchmarks.membership_inference import row_of


@pytest.fixture
def noise_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """Images and labels without any pattern: whatever is right about them was learned by heart."""

    def load(split: str) -> tuple[np.ndarray, np.ndarray]:
        stream = np.random.default_rng(len(split))
        return stream.integers(0, 256, (200, 28, 28)).astype(np.uint8), stream.integers(0, 10, 200)

    monkeypatch.setattr(membership_inference, "load_split", load)
    monkeypatch.setitem(membership_inference.PRIVATE, "epochs", 2.0)
    monkeypatch.setitem(membership_inference.PRIVATE, "expected_batch", 50)


@pytest.mark.usefixtures("noise_images")
def test_without_privacy_members_are_told_apart_and_with_it_they_are_not() -> None:
    bare = row_of(None, [0, 1], members=120, epochs=60)
    assert bare["accuracy_members"] > bare["accuracy_others"] + 0.4
    assert bare["success_rate"] - 4 * bare["standard_error"] > 0.6
    private = row_of(1.0, [0, 1], members=120, epochs=60)
    assert abs(private["success_rate"] - 0.5) < 4 * max(private["standard_error"], 0.02)
    assert private["accuracy_members"] < 0.3
