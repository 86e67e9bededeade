"""The classifiers that judge images: shapes for every image size, and evaluation in batches."""

import pytest
import torch

from models.classifiers import CLASSIFIER_KINDS, build_classifier, logits_in_batches


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
