"""`client.datasets.push` against the real service: folders as people have them go in, and nothing stays beside them."""

import gzip
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from obscura.client import BrokenImages, PackingError
from tests.service.ingest.conftest import idx_file


@pytest.fixture
def album(tmp_path: Path) -> Path:
    """Mixed sizes, modes, transparency, orientation and rubbish: nine images of two classes."""
    rng = np.random.default_rng()
    root = tmp_path / "album"

    def noise(*shape: int) -> Image.Image:
        return Image.fromarray(rng.integers(0, 255, shape, dtype=np.uint8))

    for name in ("boat", "car", "empty", "__MACOSX"):
        (root / name).mkdir(parents=True)
    lying = Image.Exif()
    lying[0x0112] = 8
    noise(40, 60, 3).save(root / "boat" / "wide.jpg", exif=lying)
    noise(60, 40, 3).save(root / "boat" / "tall.webp")
    noise(50, 50).save(root / "boat" / "grey.png")
    noise(50, 50, 4).save(root / "boat" / "clear.png")
    noise(50, 50, 4).convert("CMYK").save(root / "boat" / "printed.jpg")
    noise(50, 50, 3).convert("P").save(root / "car" / "palette.gif")
    Image.fromarray(rng.integers(0, 65535, (50, 50), dtype=np.uint16)).save(root / "car" / "deep.png")
    noise(64, 64, 3).save(root / "car" / "large.bmp")
    noise(64, 64, 3).save(root / "car" / "large.tif")
    (root / "car" / ".DS_Store").write_bytes(b"junk")
    return root


def test_a_folder_goes_in_as_it_is_and_is_declared_as_stated(served, client, album, tmp_path, monkeypatch):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    account_id = served.account()["id"]
    before = sorted(album.rglob("*"))
    said: list[str] = []
    dataset = client.datasets.push(album, account_id=account_id, at_most=2000, depth=16, say=said.append)
    assert (dataset.state, dataset.name, dataset.visibility) == ("ready", "album", "private")
    assert (dataset.height, dataset.width, dataset.channels, dataset.classes) == (32, 32, 3, ["boat", "car"])
    assert said[0].startswith("9 images: 2 cropped to 32 x 32, 7 scaled to 32 x 32, 1 laid on white, ")
    assert said[1] == 'Stays here: images by class: "boat" 5, "car" 4.'
    assert said[-1].startswith('Declaring, and thereby making public: classes "boat", "car";')
    assert said[-1].endswith("at most 2000 records, each protected by itself.")
    assert [found.id for found in client.datasets()] == [dataset.id]
    assert sorted(album.rglob("*")) == before
    assert list(scratch.iterdir()) == []


@pytest.mark.parametrize("size", ["8", "128", "8x128", "37x61"])
def test_sizes_of_any_aspect(served, client, album, size):
    dataset = client.datasets.push(album, public=True, size=size, grey=True, depth=16)
    width, _, height = size.partition("x")
    assert (dataset.state, dataset.width, dataset.height) == ("ready", int(width), int(height or width))
    assert dataset.channels == 1


def test_broken_images_are_named_to_their_owner_and_to_nobody_else(served, client, album):
    (album / "car" / "CANARY.jpg").write_bytes((album / "boat" / "wide.jpg").read_bytes()[:300])
    choices: dict[str, Any] = {"size": 32, "depth": 16}
    with pytest.raises(BrokenImages, match=r"car/CANARY\.jpg") as error:
        client.datasets.push(album, public=True, **choices)
    assert (error.value.count, error.value.flags) == (1, ("--skip-broken",))
    assert client.datasets.push(album, public=True, **choices, skip_broken=True).state == "ready"
    stored = [file.read_bytes() for file in served.data_dir.rglob("*") if file.is_file()]
    assert not any(b"CANARY" in content for content in stored)


def test_an_official_layout(served, client, tmp_path):
    images = np.random.default_rng().integers(0, 255, (30, 28, 28), dtype=np.uint8)
    for split, count in (("train", 30), ("t10k", 10)):
        labels = np.arange(count, dtype=np.uint8) % 10
        for name, values, magic in (("images-idx3", images[:count], 0x803), ("labels-idx1", labels, 0x801)):
            (tmp_path / f"{split}-{name}-ubyte.gz").write_bytes(gzip.compress(idx_file(values, magic)))
    said: list[str] = []
    as_it_is = client.datasets.push(tmp_path, public=True, say=said.append)
    assert (as_it_is.state, as_it_is.format, as_it_is.records_declared) == ("ready", "idx", 30)
    assert said[0] == "IDX files, train (not t10k; --split chooses): 30 images, as they are."
    larger = client.datasets.push(tmp_path, public=True, split="t10k", size=32)
    assert (larger.state, larger.format, larger.height, larger.channels) == ("ready", "zip", 32, 1)
    assert larger.classes == list("0123456789")


def test_private_or_public_and_not_both(served, client, album):
    with pytest.raises(PackingError, match="not both"):
        client.datasets.push(album)
    with pytest.raises(PackingError, match="not both"):
        client.datasets.push(album, account_id=served.account()["id"], public=True)
    with pytest.raises(PackingError, match="unit is the subject"):
        client.datasets.push(album, public=True, subjects_at_most=3)
