"""Released generators of every network: they come back as they were saved, with and without our libraries."""

import io
import json
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save, save_file

from models.portable.conditional_dcgan import ConditionalDcganConfig, ConditionalDcganGenerator
from models.portable.dcgan import DcganConfig, DcganGenerator
from models.portable.drawing import draw, png, read_tensors
from models.portable.edm import EdmConfig, EdmDenoiser
from models.portable.generator import Generator, GeneratorConfig
from models.portable.guided import GuidedConfig, GuidedGenerator
from models.portable.selected import SelectedConfig, SelectedPictures
from models.portable.textured import RATE, TexturedConfig, TexturedGenerator
from models.released import CONFIG_FILE, WEIGHTS_FILE, load_released, save_released
from tests.models.checks import filled, stream

COLOUR = {"classes": 2, "channels": 3, "height": 8, "width": 12}


def affine() -> Generator:
    return Generator(GeneratorConfig(classes=2, channels=1, height=8, width=8, components=3))


def textured() -> TexturedGenerator:
    return TexturedGenerator(TexturedConfig(**COLOUR, components=3, steps=4, rate=RATE))


def guided() -> GuidedGenerator:
    return GuidedGenerator(GuidedConfig(**COLOUR, components=3, steps=4, rate=RATE, textured=True, guide_steps=2))


def selected() -> SelectedPictures:
    return SelectedPictures(SelectedConfig(**COLOUR, choices=4, shift=0.25, tint=0.3, mirror=True))


def dcgan() -> DcganGenerator:
    return DcganGenerator(DcganConfig(classes=2, channels=1, height=8, width=8, latent=3, features=4), seed=3)


def conditional_dcgan() -> ConditionalDcganGenerator:
    return ConditionalDcganGenerator(ConditionalDcganConfig(2, 1, 8, 8, latent=3, features=4, dense=8), seed=3).eval()


def edm(**changes: float) -> EdmDenoiser:
    shape = {"classes": 2, "channels": 1, "height": 8, "width": 8, "features": 4, "blocks": 1} | changes
    return EdmDenoiser(EdmConfig(**shape, sampling_steps=3, churn=1.0, guidance=0.5), seed=3)  # type: ignore[arg-type]


def edm_of_patches() -> EdmDenoiser:
    return edm(height=9, width=7, patch=2)  # neither side is a multiple of the patch's


def started_edm(width: int = 9, **changes: int) -> EdmDenoiser:
    return edm(channels=3, width=width, start_latent=3, start_sigma=3.0, **changes)


def edm_from_texture() -> EdmDenoiser:
    return started_edm(8, start_clusters=2, start_texture=True)


DEEP: list[Any] = [conditional_dcgan, dcgan, edm, edm_of_patches, edm_from_texture, guided, selected, textured]
EVERY: list[Any] = [affine, started_edm, *DEEP]


@pytest.mark.parametrize("make", EVERY)
def test_a_generator_comes_back_as_it_was_saved(make, tmp_path):
    made = filled(make())
    save_released(made, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {WEIGHTS_FILE, CONFIG_FILE}
    assert ("network" in json.loads((tmp_path / CONFIG_FILE).read_text())) == (make is not affine)
    back = load_released(tmp_path)
    assert type(back) is type(made)
    assert back.config == made.config
    labels = torch.tensor([0, 1, 1])
    first, second = (each.sample(labels, stream(1)) for each in (made, back))
    assert torch.equal(first, second)
    before = (tmp_path / WEIGHTS_FILE).read_bytes()
    save_released(back, tmp_path)
    assert (tmp_path / WEIGHTS_FILE).read_bytes() == before
    if make is not guided:
        with pytest.raises(ValueError, match="warm start"):
            load_released(tmp_path, which="warm_start")


BLOCKS = [(affine, 30, 30), (dcgan, 300, 256), (conditional_dcgan, 300, 256), (edm, 70, 64)]


@pytest.mark.parametrize(("make", "count", "block"), BLOCKS)
def test_images_follow_from_seed_and_labels_in_blocks_of_the_formats_size(make, count, block):
    generator, labels, before = filled(make()), torch.arange(count) % 2, torch.get_rng_state()
    images = generator.sample(labels, stream(4))
    config = generator.config
    assert images.shape == (len(labels), config.channels, config.height, config.width)
    assert 0 <= images.min() < images.max() <= 1
    assert torch.equal(images, generator.sample(labels, stream(4)))
    assert not torch.equal(images, generator.sample(labels, stream(5)))
    assert torch.equal(images[:block], generator.sample(labels[:block], stream(4)))
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("make", EVERY)
def test_damaged_files_are_refused(make, tmp_path):
    save_released(make(), tmp_path)
    described = json.loads((tmp_path / CONFIG_FILE).read_text())
    config = described["config"]
    for match, changes in (
        ("format", {"format": 2}),
        ("this program reads", {"network": "stylegan"}),
        ("no configuration", {"config": []}),
        ("do not fit", {"config": {**config, "classes": 3}}),
        ("do not fit", {"config": {**config, "colour": "red"}}),
        ("do not fit", {"config": {**config, "width": None}}),
        ("do not fit", {"config": {**config, "height": "six"}}),
        (r"\S", {"config": {**config, "classes": -1}}),
    ):
        (tmp_path / CONFIG_FILE).write_text(json.dumps({**described, **changes}))
        with pytest.raises(ValueError, match=match):
            load_released(tmp_path)
    for text in (b"", b"{", b"[]", b"null", b'{"format": 1}', b"\xff\xfe"):
        (tmp_path / CONFIG_FILE).write_bytes(text)
        with pytest.raises(ValueError, match=r"\S"):
            load_released(tmp_path)
    (tmp_path / CONFIG_FILE).write_text(json.dumps(described))
    load_released(tmp_path)
    whole, tensors = (tmp_path / WEIGHTS_FILE).read_bytes(), load_file(tmp_path / WEIGHTS_FILE)
    tensors.pop(sorted(tensors)[0])
    for content in (save(tensors), b"nothing", b"", whole[:-1], whole[: len(whole) // 2], b"\xff" * 8 + whole[8:]):
        (tmp_path / WEIGHTS_FILE).write_bytes(content)
        with pytest.raises(ValueError, match="do not fit"):
            load_released(tmp_path)
    for name in (WEIGHTS_FILE, CONFIG_FILE):
        (tmp_path / name).unlink()
        with pytest.raises(FileNotFoundError, match=name):
            load_released(tmp_path)


# --- read and written with torch alone ---


def test_tensors_are_read_as_safetensors_writes_them(tmp_path):
    written = {
        "a": torch.randn(2, 3, generator=stream(1)),
        "b": torch.arange(5),
        "c": torch.randn(4, generator=stream(2), dtype=torch.float64),
        "empty": torch.zeros(3, 0),
        "scalar": torch.tensor(2.5),
    }
    save_file(written, tmp_path / "x.safetensors", metadata={"a": "b"})
    found = read_tensors(tmp_path / "x.safetensors")
    assert found.keys() == written.keys()
    for name, tensor in written.items():
        assert found[name].dtype == tensor.dtype
        assert found[name].shape == tensor.shape
        assert torch.equal(found[name], tensor)


def test_a_type_that_no_release_has_is_refused(tmp_path):
    save_file({"a": torch.zeros(2, dtype=torch.bfloat16)}, tmp_path / "x.safetensors")
    with pytest.raises(ValueError, match="BF16"):
        read_tensors(tmp_path / "x.safetensors")


@pytest.mark.parametrize("channels", [1, 3])
def test_a_picture_is_a_png(channels):
    pixels = torch.randint(0, 256, (5, 7, channels), generator=stream(1), dtype=torch.uint8)
    picture = Image.open(io.BytesIO(png(pixels, {"a": "é", "b": ""})))
    picture.load()
    assert {name: str(text) for name, text in picture.info.items()} == {"a": "é", "b": ""}
    assert picture.mode == ("L" if channels == 1 else "RGB")
    assert np.array_equal(np.asarray(picture).reshape(5, 7, channels), pixels.numpy())


def test_drawing_leaves_the_number_of_threads_as_it_was():
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        drawing = draw(affine().eval(), 4)
        images, _ = next(drawing)
        assert images.shape == (4, 8, 8, 1)
        assert torch.get_num_threads() == 3
        assert not torch.is_inference_mode_enabled()
    finally:
        torch.set_num_threads(threads)
