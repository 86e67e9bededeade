"""Networks that learn or judge: the DP-SGD family, scattering, classifiers; looking between layers."""

import json

import pytest
import torch
from torch import nn

from models.classifiers import CLASSIFIER_KINDS, between_layers, build_classifier, logits_in_batches, mixed_precision
from models.portable.layers import groups_of
from models.portable.unet import UNet
from models.private_classifier import ClassifierConfig, PrivateClassifier, load_classifier
from models.scattering import MAPS, Scattering
from privacy.gradients.per_sample import check_model
from privacy.plans.dp_classifier import ARCHITECTURES
from tests.models.small_extractors import extractor


def config(architecture: str = "cnn", channels: int = 1, height: int = 28, width: int = 28) -> ClassifierConfig:
    return ClassifierConfig(architecture, ("a", "b", "c"), channels, height, width)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize(("channels", "height", "width"), [(1, 28, 28), (3, 10, 17)])
def test_every_architecture_takes_every_size_and_falls_apart_by_record(architecture, channels, height, width):
    shape = config(architecture, channels, height, width)
    classifier = PrivateClassifier(shape, extractor=extractor() if architecture == "pretrained_linear" else None)
    check_model(classifier.head)
    images = torch.rand(3, channels, height, width)
    logits = classifier(images)
    assert logits.shape == (3, 3)
    alone = torch.cat([classifier(image[None]) for image in images])
    torch.testing.assert_close(logits, alone, rtol=1e-4, atol=1e-4)


def test_known_sizes():
    def size(architecture: str) -> int:
        return sum(parameter.numel() for parameter in PrivateClassifier(config(architecture)).head.parameters())

    assert size("resnet20") == pytest.approx(0.27e6, rel=0.05)
    assert size("wrn28_4") == pytest.approx(5.85e6, rel=0.02)
    assert size("scatter_linear") == 81 * 49 * 3 + 3


def test_initial_weights_follow_from_the_seed_alone():
    torch.manual_seed(1)
    first = PrivateClassifier(config(), seed=5)
    torch.manual_seed(2)
    same, other = PrivateClassifier(config(), seed=5), PrivateClassifier(config(), seed=6)
    weights = [next(classifier.head.parameters()) for classifier in (first, same, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_groups_divide_the_channels():
    assert [groups_of(channels) for channels in (1, 2, 16, 64, 256)] == [1, 1, 8, 16, 16]
    assert groups_of(81, 27) == 27


# --- scattering -----------------------------------------------------------------------------------------------------


def test_scattering_has_81_maps_and_its_zeroth_order_is_a_local_mean():
    images = torch.full((2, 1, 28, 28), 0.3)
    maps = Scattering(28, 28)(images)
    assert maps.shape == (2, MAPS, 7, 7) == (2, 81, 7, 7)
    torch.testing.assert_close(maps[:, 0], torch.full((2, 7, 7), 0.3), rtol=1e-3, atol=1e-3)
    assert maps[:, 1:].abs().max() < 1e-3, "wavelets see no constant"


def test_scattering_answers_waves_of_its_orientation_and_barely_moves_with_a_shift():
    x = torch.arange(32, dtype=torch.float32)
    along_rows = (0.5 + 0.5 * torch.cos(3 * torch.pi / 4 * x))[:, None].expand(32, 32)
    transform = Scattering(32, 32)

    def first_order(image: torch.Tensor) -> torch.Tensor:
        return transform(image[None, None])[0, 1:9, 2:-2, 2:-2].mean(dim=(1, 2))

    rows, columns = first_order(along_rows), first_order(along_rows.T)
    assert rows.argmax() != columns.argmax()
    assert rows.max() > 5 * rows.median()
    torch.testing.assert_close(rows.sort().values, columns.sort().values, rtol=1e-3, atol=1e-4)
    assert (first_order(along_rows.roll(1, 0)) - rows).abs().max() < 0.1 * rows.max()


def test_scattering_is_not_expansive():
    transform, stream = Scattering(28, 28), torch.Generator().manual_seed(1)
    one, two = torch.rand(4, 1, 28, 28, generator=stream), torch.rand(4, 1, 28, 28, generator=stream)
    apart = (transform(one) - transform(two)).flatten(1).norm(dim=1) * 4  # each map stands for every fourth pixel
    assert bool((apart <= 1.5 * (one - two).flatten(1).norm(dim=1)).all())


# --- the released files ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("architecture", ["cnn", "scatter_linear"])
def test_a_classifier_comes_back_as_it_was_saved(architecture, tmp_path):
    classifier = PrivateClassifier(config(architecture), seed=3)
    classifier.save(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"classifier.safetensors", "classifier.json"}
    images = torch.randint(0, 256, (20, 1, 28, 28), dtype=torch.uint8)
    back = load_classifier(tmp_path)
    assert back.config == classifier.config
    assert torch.equal(back.predict(images), classifier.predict(images))
    first = (tmp_path / "classifier.safetensors").read_bytes()
    back.save(tmp_path)
    assert (tmp_path / "classifier.safetensors").read_bytes() == first


def test_damaged_files_are_refused(tmp_path):
    PrivateClassifier(config()).save(tmp_path)
    described = json.loads((tmp_path / "classifier.json").read_text())
    (tmp_path / "classifier.json").write_text(json.dumps({**described, "format": 9}))
    with pytest.raises(ValueError, match="format"):
        load_classifier(tmp_path)
    described["config"]["architecture"] = "wrn16_4"
    (tmp_path / "classifier.json").write_text(json.dumps(described))
    with pytest.raises(ValueError, match="do not fit"):
        load_classifier(tmp_path)


# --- the classifiers that judge images --------------------------------------------------------------------------------


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


# --- looking up between layers ----------------------------------------------------------------------------------------


class Enough(Exception):
    pass


def test_every_layer_is_looked_at_once_in_a_pass_and_none_afterwards():
    network = nn.Sequential(nn.Linear(3, 4), nn.Sequential(nn.Tanh(), nn.Linear(4, 2)))
    looks: list[int] = []
    with between_layers(network.modules(), lambda: looks.append(1)):
        network(torch.zeros(5, 3))
        assert len(looks) == 3, "containers compute nothing themselves"
    network(torch.zeros(5, 3))
    assert len(looks) == 3


def test_a_computation_ends_where_it_was_looked_up_from_and_the_network_is_as_before():
    unet = UNet(1, 8, 8, 2, features=4, blocks=1)
    given = torch.rand(2, 1, 8, 8), torch.rand(2), torch.tensor([0, 1])
    whole, computed = unet(*given), list[nn.Module]()
    for module in (unet.stem, unet.out):
        module.register_forward_hook(lambda layer, *_: computed.append(layer))
    looks = 0

    def look() -> None:
        nonlocal looks
        looks += 1
        if looks == 10:
            raise Enough

    with pytest.raises(Enough), between_layers(unet.modules(), look):
        unet(*given)
    assert computed == [unet.stem]
    assert torch.equal(unet(*given), whole)
