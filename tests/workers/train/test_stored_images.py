"""The images that a generator's release stores: those of a sample with seed 0, in class folders, within its digest."""

import io
import json
import zipfile

import numpy as np
import pytest
from PIL import Image

from obscura.wire.provenance import content_of, encode_png, verify
from obscura.wire.words import SampleFormat
from service.audit.signing import open_signing_key
from service.db.job_tables import Sample
from service.errors import NotFound
from service.gallery import open_gallery
from service.jobs import made_by
from service.storage import storage_of
from service.storage.interface import digest_directory, key_of
from tests.workers.conftest import on_either_database
from tests.workers.tiny_runner import TRAINERS as TINY
from workers.evaluation.report import draw_tiles
from workers.supervise.attempts import ExitStatus

COUNT = 100  # 10 of each class; see the fixture


def pictures(archive: zipfile.ZipFile) -> dict[str, bytes]:
    return {name: archive.read(name) for name in archive.namelist() if name.endswith(".png") and "/" in name}


@on_either_database
def test_a_release_stores_the_images_of_its_report(workshop):
    job_id = workshop.train()
    assert workshop.work(job_id, TINY) == ExitStatus.ENDED
    release, storage = workshop.release_of(job_id), storage_of(workshop.settings)
    folder = storage.open(key_of(release.id))
    sampling = workshop.sample(release.id, count=COUNT, seed=0, format=SampleFormat.IMAGEFOLDER.value)
    assert workshop.work(sampling, TINY) == ExitStatus.ENDED
    sample = workshop.do(made_by, Sample, sampling)
    for name in ("grid.png", "tiles.png"):  # every image of a release is signed
        with Image.open(folder / name) as image:
            signature = json.loads(image.info["obscura"])
            own_key = open_signing_key(workshop.settings.ledger_key_path).key_id
            assert verify(signature, content_of(image), own_key) == ("valid", release.id, own_key)
    with (
        zipfile.ZipFile(folder / "images.zip") as stored,
        zipfile.ZipFile(workshop.settings.data_dir / sample.path) as drawn,
    ):
        assert stored.testzip() is None
        expected = pictures(drawn)
        assert len(expected) == COUNT
        assert pictures(stored) == expected
        assert json.loads(stored.read("privacy_card.json")) == release.card
    gallery = open_gallery(storage, release.id)
    assert [gallery.read(number) for number in range(len(gallery.images))] == list(expected.values())
    for number in (-1, COUNT):
        with pytest.raises(NotFound):
            gallery.read(number)
    (folder / "images.zip").write_bytes(b"other images")
    assert digest_directory(folder) != release.artifact_sha256


def test_tiles_are_laid_out_in_rows_with_transparent_gaps():
    images = np.full((9, 14, 28, 3), 200, np.uint8) + np.arange(9, dtype=np.uint8)[:, None, None, None]
    with Image.open(io.BytesIO(draw_tiles(images, encode_png))) as sheet:
        pixels = np.asarray(sheet)
    assert pixels.shape == (3 * 14 + 2, 3 * 28 + 2, 4)
    for number in range(9):
        top, left = (15 * (number // 3), 29 * (number % 3))
        assert (pixels[top : top + 14, left : left + 28] == [*[200 + number] * 3, 255]).all()
    assert (pixels[14, :, 3] == 0).all()
    assert (pixels[:, 28, 3] == 0).all()
    with Image.open(io.BytesIO(draw_tiles(images[..., :1], encode_png))) as grey:
        assert grey.getpixel((0, 0)) == (200, 200, 200, 255)
