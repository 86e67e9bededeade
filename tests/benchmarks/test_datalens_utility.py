"""The benchmark of DataLens' utility runs from end to end, on small stand-ins for its images."""

import dataclasses
import gzip
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.datalens_utility import DELTA, VARIANTS, main, row_of
from benchmarks.small_data import SETS
from privacy.accounting.filter import open_filter
from privacy.plans.plan import PublicFacts
from privacy.plans.registry import build_plan
from workers.evaluation.utility import TRAINING

FACTS = PublicFacts(tuple("abcdefghij"), 28, 28, 1, 60_000, "record")


@pytest.fixture
def stand_ins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """400 training and 100 test images, a bright row for each class, where Fashion-MNIST is looked for."""
    for prefix, n in (("train", 400), ("t10k", 100)):
        images = np.random.default_rng(n).integers(0, 60, (n, 28, 28)).astype(np.uint8)
        labels = (np.arange(n) % 10).astype(np.uint8)
        images[np.arange(n), 2 * labels + 3] = 250
        for name, header, content in (("images-idx3", 16, images), ("labels-idx1", 8, labels)):
            path = tmp_path / f"{prefix}-{name}-ubyte.gz"
            path.write_bytes(gzip.compress(bytes(header) + content.tobytes()))
    monkeypatch.setenv("OBSCURA_FASHION_MNIST", str(tmp_path))
    for kind, training in TRAINING.items():
        monkeypatch.setitem(TRAINING, kind, dataclasses.replace(training, images_seen=500))
    tiny: dict[str, Any] = {"components": 20, "frequencies": 8}
    votes: dict[str, Any] = {"teachers": 20, "images": 30, "top_k": 5}
    for variant, (recipe, options) in VARIANTS.items():
        small = votes if recipe == "datalens" else tiny
        monkeypatch.setitem(VARIANTS, variant, (recipe, options | small))


@pytest.mark.parametrize("epsilon", [1.0, 10.0])
@pytest.mark.parametrize("variant", list(VARIANTS))
def test_every_variant_can_be_planned_as_it_is_published(variant, epsilon):
    account = open_filter(epsilon, DELTA)
    made = build_plan(*VARIANTS[variant], account, account.capacity_nano, FACTS)
    assert made.price_nano > 0


@pytest.mark.usefixtures("stand_ins")
def test_a_row_says_what_was_measured():
    row = row_of(SETS["fashion"](), "moments", 50.0, [0, 1], 100, torch.device("cpu"))
    assert not row["teacher_stage"]
    assert [run["seed"] for run in row["runs"]] == row["seeds"] == [0, 1]
    for kind, accuracy in row["accuracy"].items():
        assert 0 <= accuracy <= 1
        low, high = sorted(run["accuracy"][kind] for run in row["runs"])
        assert accuracy == pytest.approx((low + high) / 2)
    json.dumps(row)


@pytest.mark.usefixtures("stand_ins")
def test_a_run_that_was_cut_off_goes_on(tmp_path, monkeypatch, capsys):
    file = tmp_path / "utility.json"
    command = ["datalens_utility", "--json", str(file), "--epsilons", "50", "--seeds", "0", "--samples", "100"]
    monkeypatch.setattr(sys, "argv", [*command, "--variants", "moments"])
    main()
    first = json.loads(file.read_text())["rows"]
    monkeypatch.setattr(sys, "argv", [*command, "--variants", "moments", "datalens"])
    main()
    rows = json.loads(file.read_text())["rows"]
    assert rows[:1] == first  # kept, not measured again
    assert [row["variant"] for row in rows] == ["moments", "datalens"]
    assert rows[1]["images_aggregated"] == 30
    assert "datalens" in capsys.readouterr().out.splitlines()[-1]
