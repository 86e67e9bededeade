"""Similarity: known distances, known coverage, blocks that change nothing, and which extractor a report names."""

import pytest
import torch
from torch import Tensor

from models.extractor import ExtractorUnusable
from tests.models.small_extractors import write_extractor
from workers.evaluation import similarity


def pictures(n: int, seed: int, *, channels: int = 1, side: int = 16, classes: int = 4) -> Tensor:
    """Images (n, c, side, side) uint8 of bright squares in one of four corners, with noise."""
    stream = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 60, (n, channels, side, side), generator=stream)
    for index in range(n):
        corner, half = index % classes, side // 2
        images[index, :, corner // 2 * half :, corner % 2 * half :][:, :half, :half] += 150
    return images.byte()


def compared(synthetic: Tensor, real: Tensor) -> similarity.SimilarityFacts:
    extractor = similarity.NamedExtractor(similarity.BUILT_IN, similarity.texture_and_colour)
    return similarity.measure_similarity(synthetic, real, extractor, seed=0)


def test_the_distance_of_known_gaussians():
    points = torch.randn(4000, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert similarity.frechet_distance(points, points) == pytest.approx(0, abs=1e-9)
    assert similarity.frechet_distance(points, points + torch.tensor([3.0, 4.0, 0.0])) == pytest.approx(25)
    assert similarity.frechet_distance(points, 2 * points - points.mean(0)) == pytest.approx(float(points.var(0).sum()))


def test_a_missing_kind_lowers_recall_and_static_lowers_precision():
    real = pictures(400, 1)
    alike, one_kind = compared(pictures(400, 2), real), compared(pictures(400, 2, classes=1), real)
    static = compared(torch.randint(0, 256, (400, 1, 16, 16), generator=torch.Generator().manual_seed(3)).byte(), real)
    assert alike.precision > 0.7
    assert alike.recall > 0.7
    assert one_kind.precision > 0.7
    assert one_kind.recall < 0.35  # a quarter of the kinds
    assert (static.precision, static.recall) == (0, 0)
    assert 10 * alike.frechet_distance < one_kind.frechet_distance < static.frechet_distance


def test_blocks_change_nothing():
    stream = torch.Generator().manual_seed(0)
    real, fake = (torch.randn(90, 4, generator=stream, dtype=torch.float64) for _ in range(2))
    whole = similarity.covered(fake, real)
    assert similarity.covered(fake, real, block=7) == whole
    inside = torch.cdist(fake, real) <= torch.cdist(real, real).sort(dim=1).values[:, 3]
    assert whole == pytest.approx(float(inside.any(dim=1).double().mean()))


def test_as_many_of_each_side_are_compared_and_too_few_are_not(monkeypatch):
    monkeypatch.setattr(similarity, "IMAGES_MAX", 50)
    seen = list[int]()

    def rows(images: Tensor) -> Tensor:
        seen.append(len(images))
        return images.double().mean(3).flatten(1)

    counting = similarity.NamedExtractor("counting", rows)
    steps = list[tuple[int, int]]()
    found = similarity.measure_similarity(
        pictures(300, 1), pictures(80, 2), counting, seed=0, look=lambda *step: steps.append(step)
    )
    assert (found.images, seen, found.extractor) == (50, [50, 50], "counting")  # type: ignore[union-attr]
    assert steps == [(0, 2), (1, 2)]
    assert similarity.measure_similarity(pictures(300, 1), pictures(19, 2), counting, seed=0) is None


@pytest.mark.parametrize(("channels", "side", "numbers"), [(1, 28, 80), (3, 30, 112), (3, 3, 112)])
def test_what_is_built_in_describes_each_image_by_itself(channels, side, numbers):
    images = torch.randint(0, 256, (6, channels, side, side), generator=torch.Generator().manual_seed(0)).byte()
    described = similarity.texture_and_colour(images)
    assert described.shape == (6, numbers)
    assert torch.allclose(described[2:3], similarity.texture_and_colour(images[2:3]), atol=1e-5)


class Halves(torch.nn.Module):
    """Called as the usual Inception network is."""

    def forward(self, images: Tensor, return_features: bool = False) -> Tensor:
        return images.float().flatten(1)[:, :5] if return_features else images.float().mean((1, 2, 3))


@pytest.mark.filterwarnings("ignore:.*torch.jit:FutureWarning")  # the usual file is of this kind
def test_an_operators_inception_network_is_used_and_named(tmp_path):
    assert similarity.find_extractor(tmp_path / "nowhere").name == similarity.BUILT_IN
    torch.jit.script(Halves()).save(str(tmp_path / similarity.INCEPTION))  # type: ignore[no-untyped-call]
    found = similarity.find_extractor(tmp_path)
    assert found.name == f"Inception ({similarity.INCEPTION})"
    assert found.features(pictures(4, 0)).shape == (4, 5)
    (tmp_path / similarity.INCEPTION).write_bytes(b"no network")
    with pytest.raises(ExtractorUnusable, match="not a TorchScript file"):
        similarity.find_extractor(tmp_path)


def test_without_it_the_operators_network_for_reports_is_used_and_named_by_its_weights(tmp_path):
    write_extractor(tmp_path, "reports")
    found = similarity.find_extractor(tmp_path)
    assert found.name.startswith("shufflenet_v2_x0_5 (sha256 ")
    assert "weights from a seed" in found.name
    assert found.features(pictures(4, 0)).shape == (4, 1024)
    (tmp_path / "reports.json").unlink()
    with pytest.raises(ExtractorUnusable, match="needs both"):
        similarity.find_extractor(tmp_path)
