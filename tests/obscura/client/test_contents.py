"""Both formats of a sample are read alike, and a folder appears as a whole or not at all."""

import io
import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from obscura.client.contents import PlaceTaken, read_images, unpack

LABELS = np.array([2, 0, 2, 0], dtype=np.int64)
NAMES = ["cat", "1", "dog"]  # no image of label 1


@pytest.mark.parametrize("shape", [(4, 5, 6), (4, 5, 6, 3)])
def test_both_formats_say_the_same(tmp_path, shape):
    pixels = np.random.default_rng(0).integers(0, 255, shape, dtype=np.uint8)
    np.savez(tmp_path / "arrays", images=pixels, labels=LABELS, classes=np.array(NAMES))
    with zipfile.ZipFile(tmp_path / "folders.zip", "w") as archive:
        lines = []
        for number, (image, label) in enumerate(zip(pixels, LABELS.tolist(), strict=True)):
            file = io.BytesIO()
            Image.fromarray(image).save(file, "PNG")
            lines.append({"file_name": f"{NAMES[label]}/{number}.png", "label": label, "class": NAMES[label]})
            archive.writestr(lines[-1]["file_name"], file.getvalue())
        archive.writestr("metadata.jsonl", "\n".join(map(json.dumps, lines)))
    for file_name, format in (("arrays.npz", "npz"), ("folders.zip", "imagefolder")):
        found = read_images(tmp_path / file_name, format)
        assert np.array_equal(found.pixels, pixels)
        assert np.array_equal(found.labels, LABELS)
        assert found.classes == tuple(NAMES)


def zipped(path: Path, *names: str) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, "content")
    return path


def test_a_folder_appears_as_a_whole_or_not_at_all(tmp_path):
    (tmp_path / "empty").mkdir()
    assert unpack(zipped(tmp_path / "a.zip", "x/1.png"), tmp_path / "empty") == tmp_path / "empty"
    assert (tmp_path / "empty" / "x" / "1.png").read_text() == "content"
    (tmp_path / "broken.zip").write_bytes((tmp_path / "a.zip").read_bytes()[:40])
    with pytest.raises(zipfile.BadZipFile):
        unpack(tmp_path / "broken.zip", tmp_path / "new")
    with pytest.raises(PlaceTaken):
        unpack(tmp_path / "a.zip", tmp_path / "empty")
    assert {path.name for path in tmp_path.iterdir()} == {"empty", "a.zip", "broken.zip"}


def test_no_name_in_a_zip_leads_out_of_the_folder(tmp_path):
    unpack(zipped(tmp_path / "a.zip", "../outside.png", "/absolute.png"), tmp_path / "in" / "side")
    outside = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.png")}
    assert outside == {"in/side/outside.png", "in/side/absolute.png"}
