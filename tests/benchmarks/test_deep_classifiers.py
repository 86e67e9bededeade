"""The deep classifiers that judge synthetic images: their sizes, and that they learn."""

import pytest
import torch

from benchmarks.deep_classifiers import SHAPES, Shape, judged, residual_network

CPU = torch.device("cpu")


def stripes(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Pictures of two classes that a network can tell apart: which half is bright."""
    labels = torch.arange(n) % 2
    images = torch.randint(0, 90, (n, 1, 12, 12), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)
    images[labels == 1, :, :6] += 120
    images[labels == 0, :, 6:] += 120
    return images, labels


@pytest.mark.parametrize(
    ("budget", "name", "depth", "weights"),
    [("full", "ResNet-110", 110, 1.73e6), ("full", "WRN-40-4", 40, 8.95e6), ("quick", "ResNet-20", 20, 0.272e6)],
)
def test_networks_have_the_depth_and_the_size_that_their_names_say(budget, name, depth, weights):
    network = residual_network(SHAPES[budget][name], 1, 10)
    deep = [layer for layer in network.modules() if isinstance(layer, torch.nn.Conv2d) and layer.kernel_size == (3, 3)]
    assert len(deep) + 1 == depth - (2 if name.startswith("WRN") else 0)  # WRN counts its shortcuts
    assert sum(weight.numel() for weight in network.parameters()) == pytest.approx(weights, rel=0.01)


def test_a_network_of_groups_gives_as_many_numbers_as_there_are_classes():
    network = residual_network(Shape(1, 16, 4), 3, 7).eval()
    assert network(torch.rand(2, 3, 12, 9)).shape == (2, 7)
    assert max(layer.groups for layer in network.modules() if isinstance(layer, torch.nn.Conv2d)) == 4


def test_a_network_learns_synthetic_images_and_is_tested_on_others():
    sizes = {"classes": 2, "epochs": 10, "seed": 0, "device": CPU}
    learnt = judged(Shape(1, 16), stripes(750, 0), stripes(200, 1), **sizes)  # type: ignore[arg-type]
    assert learnt > 0.95
    images, labels = stripes(200, 1)
    wrong = judged(Shape(1, 16), stripes(750, 0), (images, 1 - labels), **sizes)  # type: ignore[arg-type]
    assert wrong == pytest.approx(1 - learnt)  # equal seeds train equal networks
