"""DataLens' Tables 3, 8 to 10 and 12: scores of known images, and rows whose noise is what their names say."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from benchmarks.classifier_runs import plan_of
from benchmarks.reproductions import datalens, scores, topagg_steps
from benchmarks.reproductions.__main__ import main
from benchmarks.reproductions.datalens import DEFAULT, PAPER
from benchmarks.small_data import Folder, channels_first
from privacy.gradients.integers import squares
from privacy.gradients.topagg import norm_top_k
from tests.benchmarks.reproductions.test_orders import pictures as drawings


def test_the_inception_score_counts_the_classes_that_are_told_apart() -> None:
    assert scores.inception_score(torch.eye(4).repeat(3, 1).double()) == pytest.approx(4)
    assert scores.inception_score(torch.full((5, 4), 0.25).double()) == pytest.approx(1)
    assert scores.inception_score(torch.eye(4)[:1].repeat(9, 1).double()) == pytest.approx(1)


def test_the_frechet_distance_of_gaussians_is_that_of_their_formula() -> None:
    points = torch.randn(500, 3, generator=torch.Generator().manual_seed(0)).double()
    assert scores.frechet_distance(points, points) == pytest.approx(0, abs=1e-9)
    assert scores.frechet_distance(points, points + torch.tensor([3.0, 4.0, 0.0])) == pytest.approx(25)
    doubled = points.mean(dim=0) + 2 * (points - points.mean(dim=0))  # (2 s - s)^2 in each direction
    assert scores.frechet_distance(points, doubled) == pytest.approx(float(points.var(dim=0).sum()))


def test_precision_falls_where_images_are_elsewhere_and_recall_where_they_are_all_alike() -> None:
    stream = torch.Generator().manual_seed(0)
    real, same = torch.randn(2, 200, 2, generator=stream).double()
    precision, recall = scores.precision_and_recall(real, same)
    assert precision > 0.8
    assert recall > 0.8
    assert scores.precision_and_recall(real, same + 100) == (0, 0)
    precision, recall = scores.precision_and_recall(real, real[:5].repeat(40, 1) + 1e-6 * same)
    assert precision > 0.9
    assert recall < 0.1


def test_scores_have_a_row_for_every_method_and_measure_beside_the_published_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(scores.FOLDERS, "fashion-mnist", _larger)
    monkeypatch.setattr(scores, "METHODS", (PAPER,))
    monkeypatch.setattr(scores, "_BATCH", 5)
    asked: list[tuple[str, float]] = []

    def real_ones(method: str, folder: Folder, epsilon: float, *_: Any) -> tuple[torch.Tensor, torch.Tensor]:
        asked.append((method, epsilon))
        return channels_first(folder.images), torch.from_numpy(folder.labels)

    monkeypatch.setattr(scores, "drawn", real_ones)
    rows = scores.scores("12", "fashion-mnist", "quick")
    assert asked == [(PAPER, 1.0), (PAPER, 10.0)]
    names = {"IS", "FID", "precision", "recall"}
    measured = names | {f"accuracy, {kind}" for kind in ("logistic regression", "mlp", "cnn")}
    by = {(row["method"], row["measure"], row["epsilon"]): row for row in rows}
    assert {key for key, row in by.items() if row["ours"] is not None} == {
        (method, measure, epsilon)
        for method, epsilon in ((scores.REAL, None), (PAPER, 1.0), (PAPER, 10.0))
        for measure in measured
    }
    assert 1.5 < by[scores.REAL, "IS", None]["ours"] <= 2
    assert by[scores.REAL, "FID", None]["published"] == 1.54
    assert by[PAPER, "FID", 1.0]["published"] == 194.98
    assert by[PAPER, "IS", 10.0]["published"] == 4.58
    assert by["GS-WGAN", "FID", 10.0]["published"] == 135.47
    assert {row["measure"] for row in scores.scores("3", "fashion-mnist", "quick")} == {"IS"}


class LikeInception(torch.nn.Module):
    """Called as the usual Inception network is; its classes are dark and bright."""

    def forward(
        self, images: torch.Tensor, return_features: bool = False, no_output_bias: bool = False
    ) -> torch.Tensor:
        assert images.dtype == torch.uint8
        assert images.shape[1] == 3
        mean = images.float().mean(dim=(1, 2, 3)) / 255
        if return_features:
            return torch.stack([mean, mean.square()], dim=1)
        assert no_output_bias
        return torch.stack([(mean < 0.5).float(), (mean >= 0.5).float()], dim=1)


@pytest.mark.filterwarnings("ignore:.*torch.jit:FutureWarning")  # the usual file is of this kind
def test_an_operators_network_takes_the_extractors_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "inception.pt"
    torch.jit.script(LikeInception()).save(str(file))
    given = scores.ScriptedExtractor(file)
    images = torch.tensor([0, 51, 255], dtype=torch.uint8).view(3, 1, 1, 1).expand(3, 1, 8, 8)
    torch.testing.assert_close(given.features(images)[:, 0], torch.tensor([0, 0.2, 1]).double())
    assert scores.inception_score(given.probabilities(images[[0, 2]])) == pytest.approx(2)
    monkeypatch.setitem(scores.FOLDERS, "fashion-mnist", _larger)
    monkeypatch.setattr(scores, "METHODS", ())
    row = scores.scores("3", "fashion-mnist", "quick", extractor=str(file))[0]
    assert row["setting"].endswith("seen by inception.pt")
    monkeypatch.setattr("sys.argv", ["paper", "--paper", "gep", "--table", "4", "--extractor", str(file)])
    with pytest.raises(SystemExit):
        main()


def test_figure_4_has_a_block_of_each_method_and_epsilon(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(datalens.FOLDERS, "fashion-mnist", _larger)
    monkeypatch.setattr(datalens, "_PLACE", tmp_path / "new")

    def one_grey(method: str, folder: Folder, epsilon: float, _seed: int, _budget: str, n: int) -> tuple[Any, Any]:
        grey = int(epsilon) + (100 if method == DEFAULT else 0)
        return torch.full((n, 1, 8, 8), grey, dtype=torch.uint8), torch.arange(n) % len(folder.classes)

    monkeypatch.setattr(datalens, "drawn", one_grey)
    rows = datalens.figure_4("fashion-mnist", "quick")
    assert [(row["method"], row["epsilon"]) for row in rows] == [
        (method, epsilon) for method in (PAPER, DEFAULT) for epsilon in (1.0, 10.0)
    ]
    assert {row["table"] for row in rows} == {"figure 4"}
    assert rows[1]["setting"].startswith("columns 7 to 12 of ")
    with Image.open(tmp_path / "new" / "datalens_figure_4_fashion-mnist.png") as picture:
        assert picture.size == (4 * 6 * 8 + 3 * 8, 8 * len(_larger().classes))
        assert [picture.getpixel((56 * block, 0)) for block in range(4)] == [1, 10, 101, 110]


def _larger() -> Folder:
    few = drawings(False)
    return dataclasses.replace(few, test_images=few.images[:60], test_labels=few.labels[:60])


def test_the_cells_of_table_10_have_the_noise_of_their_names() -> None:
    folder = drawings(False)
    deviations = {}
    for name, way in topagg_steps.CELLS.items():
        plan = plan_of(folder, way.options(50, 1.0), 0.5, 0, 6)
        (stage,) = way.noisy(plan).stages
        deviations[name] = stage.event.noise_multiplier * math.sqrt(way.keep)  # over C
    assert deviations["TopK-GM-DP"] == pytest.approx(deviations["GM-DP"])
    assert deviations["TopAgg"] == pytest.approx(deviations["GM-DP"] * math.sqrt(0.8))
    assert max(deviations["TopK-SGD"], deviations["clipped SGD"]) < 1e-5


def test_rows_of_tables_8_and_9_stand_beside_what_was_published(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(topagg_steps.FOLDERS, "mnist", lambda: drawings(False))
    monkeypatch.setattr(topagg_steps, "_HELD_OUT", 20)
    tiny = {"batch": 20, "steps": 2, "seeds": (0, 1), "tries": (0.5,)}
    monkeypatch.setattr(topagg_steps, "_SIZES", {"quick": tiny})
    monkeypatch.setattr(topagg_steps, "_QUICK_EPSILONS", (0.05, math.inf))
    monkeypatch.setattr(topagg_steps, "_BY_COORDINATES", {0.05: topagg_steps._BY_COORDINATES[0.05]})
    rows = {(row["method"], row["epsilon"]): row for row in topagg_steps.table_8("mnist", "quick")}
    assert rows["TopAgg, k = 0.8", 0.05]["published"] == 77.15
    assert rows["GM-DP", None]["published"] == 99.08
    assert all(0 <= row["ours"] <= 100 and row["seeds"] == 2 for row in rows.values())
    nine = topagg_steps.table_9("mnist", "quick")
    assert [row["published"] for row in nine if row["ours"] is None][:3] == [74.25, 78.45, 73.55]


def test_what_keeps_a_share_of_the_coordinates_may_keep_all_of_a_gradient() -> None:
    gradient = torch.zeros(1, 100)
    gradient[0, :20] = 20**-0.5
    by_coordinates = gradient * (gradient.abs() >= gradient.abs().topk(20).values.min())
    assert float(by_coordinates.norm()) == pytest.approx(1)
    moved = gradient + 1e-4 * torch.arange(100)
    assert float(norm_top_k(moved, 0.2, squares(moved)).norm()) <= 1.01 * math.sqrt(0.2)


@pytest.mark.parametrize("dataset", ["celeba-gender", "celeba-hair", "places365", "svhn"])
def test_a_set_that_is_in_no_package_says_so(
    dataset: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["paper", "--paper", "datalens", "--table", "1", "--dataset", dataset])
    with pytest.raises(SystemExit):
        main()
    assert "is in no package" in capsys.readouterr().err
