"""The benchmark of diffusion models: a training in two pieces, measured beside the moments that it began with."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks import diffusion_utility
from benchmarks.small_data import SETS, Folder

OPTIONS = {"features": 4, "blocks": 1, "patch": 2, "multiplicity": 1, "expected_batch": 40, "epochs": 0.5}
OPTIONS |= {"moments_share": 0.5, "moments_steps": 3, "start_sigma": 0.5, "sampling_steps": 2}


def small() -> Folder:
    """Bright rows for three classes."""
    labels = np.arange(240) % 3
    images = np.random.default_rng(0).integers(0, 60, (240, 8, 8)).astype(np.uint8)
    images[np.arange(240), 2 * labels + 1] = 250
    return Folder(images, labels.astype(np.int64), images[:60], labels[:60].astype(np.int64), ("a", "b", "c"))


@pytest.mark.slow
def test_a_training_goes_on_where_its_last_piece_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(SETS, "digits", small)  # type: ignore[misc]
    given = ["diffusion_utility", "--folder", str(tmp_path), "--dataset", "digits", "--epsilon", "10"]
    given += [f"--option={name}={value}" for name, value in OPTIONS.items()]
    monkeypatch.setattr(sys, "argv", [*given, "--samples=90", "--minutes=0"])
    diffusion_utility.main()
    assert "run this again" in capsys.readouterr().out
    assert not (tmp_path / "result.json").exists()
    monkeypatch.setattr(sys, "argv", [*given, "--samples=90", "--minutes=60"])
    diffusion_utility.main()
    found = json.loads((tmp_path / "result.json").read_text())
    assert len(found["pieces"]) == 2
    assert sum(piece["steps"] for piece in found["pieces"]) == found["steps"] == 3
    for measured in ("accuracy", "accuracy_of_moments"):
        assert set(found[measured]) == {"logistic_regression", "mlp", "cnn"}
        assert all(0 <= value <= 1 for value in found[measured].values())
    assert found["accuracy_of_moments"]["cnn"] > 0.6  # rows this bright survive their noise
    assert (tmp_path / "grid.png").exists()
