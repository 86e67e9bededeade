"""Samples as files: the same bytes for the same seed, harmless names, and what a reader finds inside."""

import hashlib
import io
import itertools
import json
import threading
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from models.portable.drawing import IMAGES_PER_BATCH, batches
from models.portable.edm import EdmConfig, EdmDenoiser
from models.portable.generator import Generator
from models.released import ReleasedGenerator
from obscura.wire.words import SampleFormat
from tests.workers.small_trainings import KEY, PRIVACY_CARD, random_generator, write_drawing
from workers.train.drawing import SampleRequest, draw
from workers.train.packing import SampleFile, pack

NAMES = ("T-shirt/top", "../../etc/passwd", "Ankle boot")


@pytest.fixture
def generator() -> Generator:
    return random_generator()


def draw_arrays(generator: ReleasedGenerator, request: SampleRequest, **more: Any) -> tuple[Any, Any]:
    """All of `draw` at once: `(count, h, w, c)` uint8 and `(count,)` int64."""
    images, labels = zip(*draw(generator, request, **more), strict=True)
    return np.concatenate(images), np.concatenate(labels)


def write(path: Path, generator: Generator, *, sample_format: str = "imagefolder", **changes: Any) -> bytes:
    return write_drawing(path, generator, sample_format, **{"count": 300, "names": NAMES, **changes}).read_bytes()


@pytest.fixture
def together():
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("sample_format", list(SampleFormat))
def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(tmp_path, generator, sample_format, together):
    torch.set_num_threads(1)
    first = write(tmp_path / "a", generator, sample_format=sample_format)
    torch.set_num_threads(3)
    torch.manual_seed(99)
    assert write(tmp_path / "b", generator, sample_format=sample_format) == first
    assert write(tmp_path / "c", generator, sample_format=sample_format, seed=6) != first


def test_more_images_begin_with_the_same_images(generator):
    few, _ = draw_arrays(generator, SampleRequest(count=IMAGES_PER_BATCH, seed=0, names=NAMES))
    many, _ = draw_arrays(generator, SampleRequest(count=IMAGES_PER_BATCH + 9, seed=0, names=NAMES))
    assert np.array_equal(many[: len(few)], few)
    assert not np.array_equal(many[-9:], few[:9])


@pytest.mark.parametrize("sample_format", list(SampleFormat))
def test_it_tells_how_many_images_there_are_and_stops_when_it_is_told(tmp_path, generator, sample_format):
    request, told = SampleRequest(count=300, seed=5, names=NAMES), list[int]()
    file = SampleFile(sample_format, "A", PRIVACY_CARD, "rel_small", KEY.sign)

    def tell(*, step: int, **_: object) -> None:
        told.append(step)

    pack(tmp_path / "a", draw(generator, request, tell), request, file)
    assert told == [IMAGES_PER_BATCH, 300]

    denoiser = EdmDenoiser(EdmConfig(3, 1, 6, 5, 4, 1, sampling_steps=4, churn=0.0, guidance=0.0))
    expected, _ = draw_arrays(denoiser, request)
    told.clear()
    assert np.array_equal(draw_arrays(denoiser, request, progress=tell)[0], expected)
    assert told.count(0) > 100
    assert told == sorted(told)
    assert told[-1] == 300

    def stop(*, step: int, **_: object) -> None:
        told.append(step)
        if told.count(IMAGES_PER_BATCH) == 10:
            raise InterruptedError

    told.clear()
    with pytest.raises(InterruptedError):
        pack(tmp_path / "b", draw(denoiser, request, stop), request, file)
    assert told[-1] == IMAGES_PER_BATCH, "in the middle of the second batch"


def test_classes_take_turns(generator):
    _, labels = draw_arrays(generator, SampleRequest(count=7, seed=0, names=NAMES, chosen=(2, 0)))
    assert labels.tolist() == [2, 0, 2, 0, 2, 0, 2]


PROPORTIONS = [(2000.0, 20.0, 5.0), (0.1, 0.2, 0.7), (1.0, 1.0, 1.0), (1e-9, 1e12, 1.0), (1 / 3, 1 / 7, 1e-3)]


@pytest.mark.parametrize("proportions", PROPORTIONS)
@pytest.mark.parametrize("count", [1, 2, 7, 300, 2023])
def test_every_beginning_of_a_drawing_has_the_proportions(proportions, count):
    labels = SampleRequest(count, 0, NAMES, proportions=proportions).labels
    assert len(labels) == count
    exact = np.arange(1, count + 1)[:, None] * np.array(proportions) / sum(proportions)
    drawn = np.stack([np.cumsum(labels == label) for label in range(3)], axis=1)
    assert np.abs(drawn - exact).max() < 1.5, "by less than two images off, whatever the count"
    fewer = SampleRequest(max(1, count - 1), 0, NAMES, proportions=proportions).labels
    assert np.array_equal(labels[: len(fewer)], fewer)


def test_the_order_of_a_drawing_in_proportions_never_changes():
    labels = SampleRequest(24, 0, NAMES, proportions=(0.5, 0.3, 0.2)).labels
    assert "".join(map(str, labels)) == "012001021001200102100120"


def test_equal_proportions_are_turns(generator):
    requests = (SampleRequest(300, 5, NAMES, proportions=each) for each in ((7.0, 7.0, 7.0), None))
    even, turns = (draw_arrays(generator, request) for request in requests)
    assert all(np.array_equal(*arrays) for arrays in zip(even, turns, strict=True))


@pytest.mark.parametrize("sample_format", list(SampleFormat))
def test_a_drawing_in_proportions_is_byte_for_byte_repeatable_and_says_them(tmp_path, generator, sample_format):
    asked = {"sample_format": sample_format, "chosen": (2, 0), "proportions": (3.0, 1.0)}
    first = write(tmp_path / "a", generator, **asked)
    assert write(tmp_path / "b", generator, **asked) == first
    if sample_format is SampleFormat.WEBDATASET:
        return
    with zipfile.ZipFile(tmp_path / "a") as archive:
        readme = archive.read("README.md").decode()
        assert "Ankle boot 3, T-shirt/top 1" in readme
        assert "| 2 | Ankle boot | 225 |" in readme
        if sample_format is SampleFormat.NPZ:
            labels = np.load(io.BytesIO(archive.read("labels.npy")))
            assert np.bincount(labels).tolist() == [75, 0, 225]


def test_an_image_folder_holds_what_it_says(tmp_path, generator):
    write(tmp_path / "sample.zip", generator, count=10)
    with zipfile.ZipFile(tmp_path / "sample.zip") as archive:
        assert archive.testzip() is None
        names = archive.namelist()
        assert {entry.date_time for entry in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
        assert not [name for name in names if ".." in name or name.startswith("/")]
        sums = dict(reversed(line.split("  ")) for line in archive.read("SHA256SUMS").decode().splitlines())
        assert {name: hashlib.sha256(archive.read(name)).hexdigest() for name in names[:-1]} == sums
        lines = [json.loads(line) for line in archive.read("metadata.jsonl").splitlines()]
        assert [line["label"] for line in lines] == [0, 1, 2, 0, 1, 2, 0, 1, 2, 0]
        assert lines[0] == {"file_name": "0_T-shirt_top/0000000.png", "label": 0, "class": "T-shirt/top"}
        expected, _ = draw_arrays(generator, SampleRequest(count=10, seed=5, names=NAMES))
        shown = [np.asarray(Image.open(io.BytesIO(archive.read(line["file_name"])))) for line in lines]
        assert np.array_equal(np.stack(shown), expected[..., 0])
        assert json.loads(archive.read("privacy_card.json")) == PRIVACY_CARD
        readme = archive.read("README.md").decode()
    assert "(1.0, 1e-05)-differentially private" in readme
    assert "A \\| title" in readme
    assert "proportions" not in readme, "none were asked for"


@pytest.mark.parametrize("channels", [1, 3])
def test_an_npz_opens_without_pickle(tmp_path, channels):
    generator = random_generator(channels)
    write(tmp_path / "sample.npz", generator, sample_format="npz")
    expected, labels = draw_arrays(generator, SampleRequest(count=300, seed=5, names=NAMES))
    with np.load(tmp_path / "sample.npz", allow_pickle=False) as arrays:
        assert np.array_equal(arrays["images"], expected[..., 0] if channels == 1 else expected)
        assert np.array_equal(arrays["labels"], labels)
        assert arrays["classes"].tolist() == list(NAMES)


@pytest.mark.parametrize("sample_format", ["npz", "parquet", "webdataset"])
def test_memory_does_not_grow_with_the_count(generator, tmp_path, sample_format):
    write(tmp_path / "sample", generator, sample_format=sample_format)  # what is imported stays
    peaks = []
    for count in (500, 3_000):
        tracemalloc.start()
        write_drawing(tmp_path / "sample", generator, sample_format, count=count, names=NAMES)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    # Sums grow until they go to a file, and are read by the MiB; images (100 bytes and more in a zip) do not pile up.
    assert peaks[1] < peaks[0] + 2 * 85 * 2_500 + 2**21


def test_batches_are_drawn_side_by_side_and_no_further_ahead_than_that(generator, monkeypatch, together):
    sample, asked, turn, meeting = generator.sample, [], threading.Lock(), threading.Barrier(3)

    def watched(labels, stream):
        with turn:
            asked.append(labels)
            number = len(asked)
        if number in (2, 3, 4):  # the first one is drawn alone: it tells how large images are
            meeting.wait(timeout=60)
        return sample(labels, stream)

    monkeypatch.setattr(generator, "sample", watched)
    drawn = draw(generator, SampleRequest(count=12 * IMAGES_PER_BATCH, seed=0, names=NAMES))
    next(drawn), next(drawn)
    drawn.close()
    assert len(asked) <= 5  # the first, three, and one that waits to be taken


def test_drawing_that_is_given_up_ends_at_the_next_layer(generator, monkeypatch, together):
    sample, layer, waited_for = generator.sample, torch.nn.Identity(), threading.Event()
    generator.add_module("layer", layer)
    request = SampleRequest(count=12 * IMAGES_PER_BATCH, seed=0, names=NAMES)
    drawn_first = itertools.islice(batches(request.count, request.seed, request.labels_drawn), 2)
    first_two = [of.initial_seed() for _, of in drawn_first]

    def endless_later(labels, stream):
        while stream.initial_seed() not in first_two:
            waited_for.set()
            layer(labels)
        return sample(labels, stream)

    monkeypatch.setattr(generator, "sample", endless_later)
    drawn = draw(generator, request)
    next(drawn), next(drawn)
    assert waited_for.wait(timeout=60)
    drawn.close()
