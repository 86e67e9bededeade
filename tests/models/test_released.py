"""Released generators of every network: they come back as they were saved, and nothing else is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from models.dcgan import DcganConfig, DcganGenerator
from models.edm import EdmConfig, EdmDenoiser
from models.generator import Generator, GeneratorConfig, load_generator
from models.released import load_released
from models.released_files import CONFIG_FILE, WEIGHTS_FILE


def affine() -> Generator:
    return Generator(GeneratorConfig(classes=2, channels=1, height=8, width=8, components=3, features=2))


def dcgan() -> DcganGenerator:
    return DcganGenerator(DcganConfig(classes=2, channels=1, height=8, width=8, latent=3, features=4), seed=3)


def edm() -> EdmDenoiser:
    shape = {"classes": 2, "channels": 1, "height": 8, "width": 8, "features": 4, "blocks": 1}
    return EdmDenoiser(EdmConfig(**shape, sampling_steps=3, churn=1.0, guidance=0.5), seed=3)


EVERY: list[Any] = [affine, dcgan, edm]
DEEP: list[Any] = [dcgan, edm]


@pytest.mark.parametrize("make", EVERY)
def test_a_generator_comes_back_as_it_was_saved(make: Any, tmp_path: Path) -> None:
    made = make()
    with torch.no_grad():
        for value in made.state_dict().values():
            value += 0.1 * torch.randn(value.shape, generator=torch.Generator().manual_seed(value.numel()))
    made.save(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {WEIGHTS_FILE, CONFIG_FILE}
    back = load_released(tmp_path)
    assert type(back) is type(made)
    assert back.config == made.config
    labels = torch.tensor([0, 1, 1])
    first, second = (each.sample(labels, torch.Generator().manual_seed(1)) for each in (made, back))
    assert torch.equal(first, second)
    before = (tmp_path / WEIGHTS_FILE).read_bytes()
    back.save(tmp_path)
    assert (tmp_path / WEIGHTS_FILE).read_bytes() == before


def test_a_description_without_a_network_is_the_affine_generators(tmp_path: Path) -> None:
    affine().save(tmp_path)
    assert "network" not in json.loads((tmp_path / CONFIG_FILE).read_text())
    warm = load_released(tmp_path, which="warm_start")
    assert isinstance(warm, Generator)
    assert not warm.bend.any()


@pytest.mark.parametrize("make", DEEP)
def test_other_networks_have_no_warm_start_and_are_no_affine_generator(make: Any, tmp_path: Path) -> None:
    make().save(tmp_path)
    with pytest.raises(ValueError, match="warm start"):
        load_released(tmp_path, which="warm_start")
    with pytest.raises(ValueError, match="load_released"):
        load_generator(tmp_path)


@pytest.mark.parametrize("make", EVERY)
def test_damaged_files_are_refused(make: Any, tmp_path: Path) -> None:
    made = make()
    made.save(tmp_path)
    described = json.loads((tmp_path / CONFIG_FILE).read_text())

    def load_with(**changes: Any) -> None:
        (tmp_path / CONFIG_FILE).write_text(json.dumps({**described, **changes}))
        load_released(tmp_path)

    load_with()
    with pytest.raises(ValueError, match="format"):
        load_with(format=2)
    with pytest.raises(ValueError, match="this program reads"):
        load_with(network="stylegan")
    with pytest.raises(ValueError, match="no configuration"):
        load_with(config=[])
    with pytest.raises(ValueError, match="do not fit"):
        load_with(config={**described["config"], "classes": 3})
    with pytest.raises(ValueError, match="do not fit"):
        load_with(config={**described["config"], "colour": "red"})
    (tmp_path / CONFIG_FILE).write_text(json.dumps(described))
    tensors = load_file(tmp_path / WEIGHTS_FILE)
    tensors.pop(sorted(tensors)[0])
    save_file(tensors, tmp_path / WEIGHTS_FILE)
    with pytest.raises(ValueError, match="do not fit"):
        load_released(tmp_path)
    (tmp_path / WEIGHTS_FILE).write_bytes(b"nothing")
    with pytest.raises(ValueError, match="do not fit"):
        load_released(tmp_path)
    (tmp_path / WEIGHTS_FILE).unlink()
    with pytest.raises(FileNotFoundError):
        load_released(tmp_path)
