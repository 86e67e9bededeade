"""What Obscura hands out goes in again, with the names of the classes: a sample in every format, also unpacked."""

import io
import shutil
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from models.portable.generator import Generator
from obscura.client.contents import Images, read_images, unpack
from obscura.preparing import ChoiceNeeded, Choices, Package, prepare
from obscura.wire.formats import PACKINGS
from obscura.wire.words import SampleFormat
from tests.workers.small_trainings import random_generator, write_drawing
from workers.train.drawing import SampleRequest, draw

PLAIN, ODD = ("coat", "boot", "bag"), ("T-shirt/top", "Ankle boot", "C:\\x")
COUNT, SIDE = 30, 16


@pytest.fixture(params=[1, 3], ids=["grey", "colour"])
def generator(request: pytest.FixtureRequest) -> Generator:
    return random_generator(request.param, SIDE, SIDE)


def sample(folder: Path, generator: Generator, kind: SampleFormat, **asked: Any) -> tuple[Path, SampleRequest]:
    path = folder / f"sample.{PACKINGS[kind.value].suffix}"
    return write_drawing(path, generator, kind, count=COUNT, **asked), SampleRequest(count=COUNT, seed=5, **asked)


def sent(package: Package) -> list[tuple[str, bytes]]:
    """Class and pixels of each image that would arrive, as the service reads them."""
    content = io.BytesIO(b"".join(package.open()))
    if package.format == "npz":
        with np.load(content, allow_pickle=False) as arrays:
            return [(package.classes[n], x.tobytes()) for n, x in zip(arrays["labels"], arrays["images"], strict=True)]
    found = []
    with zipfile.ZipFile(content) as archive:
        for name in archive.namelist():
            with Image.open(io.BytesIO(archive.read(name))) as image:
                pixels = image.convert("L" if package.channels == 1 else "RGB")
                found.append((name.rpartition("/")[0], pixels.tobytes()))
    return found


def drawn(generator: Generator, request: SampleRequest) -> list[tuple[str, bytes]]:
    return [
        (request.names[label], pixels.tobytes())
        for images, labels in draw(generator, request)
        for pixels, label in zip(images, labels.tolist(), strict=True)
    ]


@pytest.mark.parametrize("names", [PLAIN, ODD], ids=["plain", "odd"])
@pytest.mark.parametrize("kind", list(SampleFormat))
def test_a_sample_goes_in_as_it_was_downloaded(tmp_path, generator, kind, names):
    path, request = sample(tmp_path, generator, kind, names=names)
    channels = generator.config.channels
    package = prepare(path, Choices(size=SIDE, grey=channels == 1))
    assert (package.classes, package.private_records, package.channels) == (names, COUNT, channels)
    assert sorted(sent(package)) == sorted(drawn(generator, request))


@pytest.mark.parametrize("kind", [SampleFormat.IMAGEFOLDER, SampleFormat.PARQUET])
def test_a_sample_goes_in_unpacked(tmp_path, generator, kind):
    path, request = sample(tmp_path, generator, kind, names=ODD)
    package = prepare(unpack(path, tmp_path / "here", COUNT), Choices(size=SIDE, grey=generator.config.channels == 1))
    assert package.classes == ODD
    assert sorted(sent(package)) == sorted(drawn(generator, request))


def test_a_part_of_the_classes_is_what_the_names_say(tmp_path, generator):
    folder, _ = sample(tmp_path, generator, SampleFormat.IMAGEFOLDER, names=ODD, chosen=(2, 0))
    assert prepare(folder).classes == ("T-shirt/top", "C:\\x")
    for kind in (SampleFormat.NPZ, SampleFormat.PARQUET, SampleFormat.WEBDATASET):
        path, _ = sample(tmp_path, generator, kind, names=ODD, chosen=(2, 0))
        with pytest.raises(ChoiceNeeded, match="label 1"):
            prepare(path)
        assert prepare(path, Choices(used_classes=True)).classes == ("T-shirt/top", "C:\\x")


def test_what_to_hf_makes_goes_in_as_it_is_saved(tmp_path, generator):
    path, request = sample(tmp_path, generator, SampleFormat.NPZ, names=ODD)
    images: Images = read_images(path, "npz", COUNT)
    dataset = images.to_hf()
    dataset.save_to_disk(tmp_path / "saved")
    dataset.to_parquet(tmp_path / "table.parquet")
    expected = sorted(drawn(generator, request))
    choices = Choices(size=SIDE, grey=generator.config.channels == 1)
    for place in (tmp_path / "saved", tmp_path / "table.parquet"):
        package = prepare(place, choices)
        assert package.classes == ODD
        assert sorted(sent(package)) == expected


def test_webdataset_in_shards_of_parts(tmp_path, generator):
    path, _ = sample(tmp_path, generator, SampleFormat.WEBDATASET, names=PLAIN)
    shards = tmp_path / "shards"
    shards.mkdir()
    for name in ("train-000000", "train-000001", "test-000000"):
        shutil.copy(path, shards / f"{name}.tar")
    package = prepare(shards)
    assert (package.classes, package.private_records) == (PLAIN, 2 * COUNT)
    assert package.summary.startswith("WebDataset, train (not test; choose with --split)")
    assert prepare(shards, Choices(split="test")).private_records == COUNT
