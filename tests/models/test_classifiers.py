"""The classifiers that judge images: shapes for every image size, and evaluation in batches."""

import pytest
import torch

from models.classifiers import CLASSIFIER_KINDS, build_classifier, logits_in_batches, mixed_precision


@pytest.mark.parametrize("kind", CLASSIFIER_KINDS)
@pytest.mark.parametrize(("channels", "height", "width"), [(1, 28, 28), (3, 8, 8), (1, 9, 5), (3, 32, 30), (1, 4, 4)])
def test_images_become_logits(kind, channels, height, width):
    model = build_classifier(kind, channels=channels, height=height, width=width, classes=7)
    assert model(torch.rand(2, channels, height, width)).shape == (2, 7)


@pytest.mark.parametrize("kind", CLASSIFIER_KINDS)
def test_every_parameter_learns(kind):
    model = build_classifier(kind, channels=1, height=8, width=8, classes=3)
    loss = torch.nn.functional.cross_entropy(model(torch.rand(30, 1, 8, 8)), torch.arange(30) % 3)
    loss.backward()  # type: ignore[no-untyped-call]
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in model.parameters())


def test_an_unknown_kind_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="logistic_regression, mlp, cnn"):
        build_classifier("forest", channels=1, height=8, width=8, classes=3)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", CLASSIFIER_KINDS)
def test_batches_do_not_change_logits(kind):
    model = build_classifier(kind, channels=1, height=8, width=8, classes=3)
    images = torch.rand(23, 1, 8, 8)
    whole = logits_in_batches(model, images)
    assert whole.shape == (23, 3)
    assert not whole.requires_grad
    assert not model.training  # dropout is off
    torch.testing.assert_close(logits_in_batches(model, images, batch=5), whole)


NEEDS_CUDA = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=NEEDS_CUDA)])
def test_precision_is_lower_within_the_block_alone(device):
    ones = torch.ones(4, 4, device=device)
    with mixed_precision(device):
        product, lower = ones @ ones, torch.is_autocast_enabled(device)
    assert product.dtype == (torch.bfloat16 if lower else torch.float32)
    assert (ones @ ones).dtype == torch.float32
    assert torch.equal(product.float(), torch.full_like(ones, 4.0))
