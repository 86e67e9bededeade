"""Each format is opened by the libraries that it is meant for, which find the images, the labels and the names."""

import io
import json
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image

from models.portable.generator import Generator
from obscura.wire.formats import PACKINGS
from obscura.wire.words import SampleFormat
from tests.workers.small_trainings import PRIVACY_CARD, random_generator, write_drawing
from workers.train.drawing import SampleRequest, draw
from workers.train.packing import PARQUET_FILE

os.environ["HF_HUB_OFFLINE"] = "1"  # read when `datasets` is imported; nothing here is fetched from anywhere
NAMES = ("T-shirt/top", 'éclair: "quoted" #1', "Ankle boot")
CARD = {**PRIVACY_CARD, "unit": "subject"}
COUNT = 30
# What these libraries warn of is theirs to mend.
pytestmark = [pytest.mark.filterwarnings("ignore")]


@pytest.fixture(params=[1, 3], ids=["grey", "colour"])
def generator(request: Any) -> Generator:
    return random_generator(request.param)


@pytest.fixture
def expected(generator: Generator) -> tuple[Any, list[int]]:
    """Pixels (n, h, w) or (n, h, w, 3), and labels."""
    images, labels = zip(*draw(generator, SampleRequest(COUNT, 5, NAMES)), strict=True)
    pixels = np.concatenate(images)
    return (pixels[..., 0] if pixels.shape[-1] == 1 else pixels), np.concatenate(labels).tolist()


def write(path: Path, generator: Generator, sample_format: SampleFormat) -> Path:
    return write_drawing(path, generator, sample_format, title="A: title", card=CARD, count=COUNT, names=NAMES)


def unpacked(tmp_path: Path, generator: Generator, sample_format: SampleFormat) -> Path:
    with zipfile.ZipFile(write(tmp_path / "sample.zip", generator, sample_format)) as archive:
        archive.extractall(tmp_path / "sample")
    return tmp_path / "sample"


@pytest.fixture
def loaded_by_hugging_face(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    return lambda *where, **more: datasets.load_dataset(*where, cache_dir=str(tmp_path / "cache"), **more)


def same(pictures: list[Any], pixels: Any) -> bool:
    return np.array_equal(np.stack([np.asarray(picture) for picture in pictures]), pixels)


def test_torchvision_reads_image_folders(tmp_path, generator, expected):
    from torchvision.datasets import ImageFolder  # here, for it takes seconds that most tests need not spend

    pixels, labels = expected
    images = ImageFolder(unpacked(tmp_path, generator, SampleFormat.IMAGEFOLDER))
    assert images.classes == ["0_T-shirt_top", "1_eclair_quoted_1", "2_Ankle_boot"]
    found = sorted(images.samples, key=lambda sample: Path(sample[0]).name)
    assert [label for _, label in found] == labels
    assert same([Image.open(path) for path, _ in found], pixels)


def test_hugging_face_reads_image_folders(tmp_path, generator, expected, loaded_by_hugging_face):
    pixels, labels = expected
    images = loaded_by_hugging_face(str(unpacked(tmp_path, generator, SampleFormat.IMAGEFOLDER)), split="train")
    assert (list(images["label"]), images[1]["class"]) == (labels, NAMES[1])
    assert same(list(images["image"]), pixels)


def test_hugging_face_reads_parquet_with_class_names(tmp_path, generator, expected, loaded_by_hugging_face):
    pixels, labels = expected
    folder = unpacked(tmp_path, generator, SampleFormat.PARQUET)
    by_folder = loaded_by_hugging_face(str(folder), split="train")
    by_file = loaded_by_hugging_face("parquet", data_files=str(folder / PARQUET_FILE), split="train")
    for images in (by_folder, by_file):
        assert list(images.features) == ["image", "label"]
        assert type(images.features["image"]).__name__ == "Image"
        assert images.features["label"].names == list(NAMES)
        assert list(images["label"]) == labels
        assert same(list(images["image"]), pixels)


def test_the_dataset_card_is_one_and_states_the_guarantee(tmp_path, generator):
    from huggingface_hub import DatasetCard

    card = DatasetCard((unpacked(tmp_path, generator, SampleFormat.PARQUET) / "README.md").read_text("utf-8"))
    header = card.data.to_dict()
    assert header["configs"][0]["data_files"] == [{"split": "train", "path": ["data/train-*"]}]
    label = header["dataset_info"]["features"][1]
    assert label == {"name": "label", "dtype": {"class_label": {"names": dict(zip("012", NAMES, strict=True))}}}
    assert (header["pretty_name"], header["tags"]) == ("A: title", ["synthetic", "differential-privacy"])
    assert "| 1.0 | 1e-05 | subject | add_remove |" in card.text
    assert "all records of one subject" in card.text


def test_parquet_of_many_images_has_groups_of_rows(tmp_path, generator):
    from pyarrow import parquet

    with zipfile.ZipFile(write_drawing(tmp_path / "a.zip", generator, "parquet", count=2_500, names=NAMES)) as archive:
        table = parquet.ParquetFile(io.BytesIO(archive.read(PARQUET_FILE)))
    assert [table.metadata.row_group(group).num_rows for group in range(3)] == [1024, 1024, 452]
    paths = [image["path"] for image in table.read(["image"])["image"].to_pylist()]
    assert paths == [f"{number:07d}.png" for number in range(2_500)]


def test_webdataset_and_hugging_face_read_the_tar(tmp_path, generator, expected, loaded_by_hugging_face):
    webdataset = pytest.importorskip("webdataset")
    pixels, labels = expected
    path = str(write(tmp_path / "sample.tar", generator, SampleFormat.WEBDATASET))
    images = list(webdataset.WebDataset(path, shardshuffle=False).decode("pil").to_tuple("png", "cls"))
    assert [label for _, label in images] == labels
    mode = "L" if pixels.ndim == 3 else "RGB"
    assert same([picture.convert(mode) for picture, _ in images], pixels)
    loaded = loaded_by_hugging_face("webdataset", data_files=path, split="train")
    assert list(loaded["cls"]) == labels
    assert same(list(loaded["png"]), pixels)


def test_the_tar_says_once_what_the_labels_are_called(tmp_path, generator):
    import hashlib

    with tarfile.open(write(tmp_path / "sample.tar", generator, SampleFormat.WEBDATASET)) as archive:
        content = {entry.name: archive.extractfile(entry).read() for entry in archive}  # type: ignore[union-attr]
    assert json.loads(content["__classes.json__"]) == list(NAMES)
    assert json.loads(content["__privacy_card.json__"]) == CARD
    assert b"differentially private" in content["__README.md__"]
    sums = dict(reversed(line.split("  ")) for line in content.pop("__SHA256SUMS__").decode().splitlines())
    assert sums == {name: hashlib.sha256(held).hexdigest() for name, held in content.items()}
    assert len(content) == 2 * COUNT + 4


@pytest.mark.parametrize("sample_format", [SampleFormat.IMAGEFOLDER, SampleFormat.PARQUET])
def test_croissant_is_valid_and_its_records_load(tmp_path, generator, expected, sample_format):
    croissant = pytest.importorskip("mlcroissant")
    pixels, labels = expected
    described = croissant.Dataset(jsonld=unpacked(tmp_path, generator, sample_format) / "croissant.json")
    assert not described.metadata.ctx.issues.errors
    classes = {record["classes/label"]: record for record in described.records("classes")}
    text = [classes[label]["classes/name"] for label in range(3)]
    assert [name.decode() if isinstance(name, bytes) else name for name in text] == list(NAMES)
    records = list(described.records("images"))
    if sample_format is SampleFormat.PARQUET:
        assert [record["images/label"] for record in records] == labels
        assert same([record["images/image"] for record in records], pixels)
        return
    by_folder = {record["classes/folder"].encode(): label for label, record in classes.items()}
    found = [by_folder[record["images/folder"]] for record in records]
    order = np.argsort(labels, kind="stable")  # files come by folder
    assert found == [labels[place] for place in order]
    mode = "L" if pixels.ndim == 3 else "RGB"
    assert same([record["images/image"].convert(mode) for record in records], pixels[order])


@pytest.mark.parametrize("generator", [1], indirect=True)
@pytest.mark.parametrize("sample_format", SampleFormat)
def test_the_readme_has_code_that_loads_the_download_and_an_image(tmp_path, generator, sample_format):
    suffix = PACKINGS[sample_format.value].suffix
    sample = write(tmp_path / f"sample.{suffix}", generator, sample_format)
    if suffix == "tar":
        with tarfile.open(sample) as archive:
            content = {entry.name.strip("_"): archive.extractfile(entry).read() for entry in archive}  # type: ignore[union-attr]
    else:
        with zipfile.ZipFile(sample) as archive:
            content = {name: archive.read(name) for name in archive.namelist()}
            archive.extractall(tmp_path)
    readme = content["README.md"].decode()
    front = yaml.safe_load(readme.split("---")[1])
    assert (front["license"], "configs" in front) == ("other", sample_format is not SampleFormat.NPZ)
    (code,) = re.findall(r"```python\n(.*?)```", readme, flags=re.DOTALL)
    environment = {**os.environ, "HF_HOME": str(tmp_path / "cache")}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout
    (image,) = re.findall(r"!\[.*?\]\((.*?)\)", readme)
    assert Image.open(io.BytesIO(content[image])).format == "PNG"
    (cited,) = re.findall(r"```bibtex\n(.*?)```", readme, flags=re.DOTALL)
    assert "epsilon 1.0, delta 1e-05" in cited
    assert cited.count("{") == cited.count("}")
