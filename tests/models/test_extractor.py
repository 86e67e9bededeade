"""Extractors: a fixed function of each image, and files that are refused when they are not what they should be."""

import hashlib
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load, save
from torch.nn import functional

from models.extractor import ExtractorUnusable, read_extractor
from models.private_classifier import ClassifierConfig, PrivateClassifier, load_classifier
from privacy.gradients.per_sample import check_model
from tests.models.small_extractors import SPEC, extractor, network, weights, write_extractor

PRETRAINED = ClassifierConfig("pretrained_linear", ("a", "b", "c"), 1, 8, 8)


def images(count: int, channels: int = 1) -> torch.Tensor:
    return torch.rand(count, channels, 8, 8, generator=torch.Generator().manual_seed(1))


def test_features_are_those_of_the_network_before_its_last_layer():
    found = extractor()(images(5, 3))
    resized = functional.interpolate(images(5, 3), (32, 32), mode="bilinear", antialias=True)
    mean, std = (torch.tensor(SPEC[name])[:, None, None] for name in ("mean", "std"))
    whole = network()
    with torch.no_grad():
        logits = whole((resized - mean) / std)
        assert isinstance(whole.fc, torch.nn.Linear)
        torch.testing.assert_close(whole.fc(found), logits, rtol=1e-4, atol=1e-5)
    assert found.shape == (5, 1024)
    assert found.std() > 0.01


def test_features_of_an_image_depend_on_no_other_image_and_on_no_mode():
    """Batch normalisation that used the batch, or learned from it, would break the privacy proof."""
    tested = extractor()
    together = tested(images(6))
    before = {name: value.clone() for name, value in tested.state_dict().items()}
    tested.train()
    assert not any(layer.training for layer in tested.modules())
    others = images(6)
    others[1:] = 1 - others[1:]
    assert torch.equal(tested(others)[0], together[0])
    assert torch.equal(tested(images(6)[:1])[0], together[0]), "not even the last bits tell how many others there are"
    assert torch.equal(tested(images(6).roll(1, 0))[1], together[0]), "nor where it stands"
    assert not torch.allclose(tested(others)[1], together[1], rtol=1e-2)
    assert all(torch.equal(value, before[name]) for name, value in tested.state_dict().items())
    # The control: in training mode the same network mixes the images of a batch, and this test would see it.
    for layer in tested.network.modules():
        layer.training = True
    assert not torch.allclose(tested(others)[0], together[0], rtol=1e-2)


def test_grey_images_are_seen_as_colour_ones_and_none_at_all_give_no_features():
    assert torch.equal(extractor()(images(2)), extractor()(images(2).expand(-1, 3, -1, -1)))
    assert extractor()(images(0)).shape == (0, 1024)


def test_more_images_than_a_block_are_like_each_block():
    many = images(40)
    assert torch.equal(extractor()(many)[32:], extractor()(many[32:]))


def test_building_one_leaves_torchs_own_generator_alone():
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    extractor()
    assert torch.equal(torch.rand(1), expected)


def test_nothing_of_it_learns_and_the_head_falls_apart_by_record():
    classifier = PrivateClassifier(PRETRAINED, extractor=extractor())
    learning = [name for name, parameter in classifier.named_parameters() if parameter.requires_grad]
    assert learning == ["head.1.weight", "head.1.bias"]
    check_model(classifier.head)


def test_an_operators_files_are_read_as_they_are(tmp_path):
    write_extractor(tmp_path)
    found = read_extractor(tmp_path, "tiny")
    assert found.sha256 == hashlib.sha256(weights()).hexdigest()
    assert found.config == extractor().config
    assert torch.equal(found(images(3)), extractor()(images(3)))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"network": "vgg11"}, "the network of an extractor must be one of"),
        ({"network": "resnet18"}, "not those of a resnet18"),
        ({"input_size": 8}, "between 16 and 1024"),
        ({"input_size": 32.0}, "between 16 and 1024"),
        ({"mean": [0.5]}, "list of 3 finite"),
        ({"mean": [0.5, 0.5, float("nan")]}, "list of 3 finite"),
        ({"std": [0.2, 0.2, 0.0]}, "above 0"),
        ({"trained_on": " "}, "which public data"),
        ({"licence": "MIT"}, "must have exactly the fields"),
        ({"name": "other"}, "without a name"),
    ],
)
def test_a_description_that_is_none_is_refused(tmp_path, changes, reason):
    write_extractor(tmp_path, **changes)
    with pytest.raises(ExtractorUnusable, match=reason):
        read_extractor(tmp_path, "tiny")


def test_files_that_are_missing_or_damaged_are_refused(tmp_path):
    def assert_refused(reason: str, folder: Path = tmp_path) -> None:
        with pytest.raises(ExtractorUnusable, match=reason):
            read_extractor(folder, "tiny")

    assert_refused("needs both", tmp_path / "nowhere")
    write_extractor(tmp_path)
    tensors = load(weights())
    infinite = save({**tensors, "conv1.0.weight": tensors["conv1.0.weight"] / 0})
    del tensors["conv1.1.running_var"]
    for content, reason in (
        (weights()[:-10], "not a safetensors file"),
        (infinite, "not finite"),
        (save(tensors), "not those of a shufflenet"),
    ):
        (tmp_path / "tiny.safetensors").write_bytes(content)
        assert_refused(reason)
    (tmp_path / "tiny.json").write_text("{")
    assert_refused("not valid JSON")


def test_an_architecture_has_an_extractor_exactly_when_it_needs_one():
    with pytest.raises(ExtractorUnusable):
        PrivateClassifier(PRETRAINED)
    with pytest.raises(ExtractorUnusable):
        PrivateClassifier(ClassifierConfig("cnn", ("a", "b"), 1, 8, 8), extractor=extractor())


def test_a_release_carries_its_extractor_and_refuses_another(tmp_path):
    classifier = PrivateClassifier(PRETRAINED, seed=3, extractor=extractor()).eval()
    classifier.save(tmp_path)
    files = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert set(files) == {"classifier.safetensors", "classifier.json", "extractor.safetensors"}
    assert set(load(files["classifier.safetensors"])) == {"1.weight", "1.bias"}
    described = json.loads(files["classifier.json"])["extractor"]
    assert described == {"name": "tiny", **SPEC, "sha256": hashlib.sha256(files["extractor.safetensors"]).hexdigest()}
    back = load_classifier(tmp_path)
    pixels = (images(20) * 255).to(torch.uint8)
    assert torch.equal(back.predict(pixels), classifier.predict(pixels))
    assert len(set(back.predict(pixels).tolist())) > 1
    (tmp_path / "extractor.safetensors").write_bytes(weights(seed=1))
    with pytest.raises(ExtractorUnusable, match="not the one"):
        load_classifier(tmp_path)
    (tmp_path / "extractor.safetensors").unlink()
    with pytest.raises(FileNotFoundError):
        load_classifier(tmp_path)
