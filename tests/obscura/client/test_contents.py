"""Both formats of a sample are read alike, and a folder appears as a whole or not at all."""

import io
import json
import stat
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from obscura.client import DownloadCorrupt
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
        found = read_images(tmp_path / file_name, format, 4)
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
    assert unpack(zipped(tmp_path / "a.zip", "x/1.png"), tmp_path / "empty", 1) == tmp_path / "empty"
    assert (tmp_path / "empty" / "x" / "1.png").read_text() == "content"
    (tmp_path / "broken.zip").write_bytes((tmp_path / "a.zip").read_bytes()[:40])
    with pytest.raises(DownloadCorrupt):
        unpack(tmp_path / "broken.zip", tmp_path / "new", 1)
    with pytest.raises(PlaceTaken):
        unpack(tmp_path / "a.zip", tmp_path / "empty", 1)
    assert {path.name for path in tmp_path.iterdir()} == {"empty", "a.zip", "broken.zip"}


def entry(name: str, mode: int = 0) -> zipfile.ZipInfo:
    made = zipfile.ZipInfo(name)
    made.external_attr = mode << 16
    return made


HOSTILE = {
    "a parent": [(entry("../outside.png"), b"x")],
    "a parent in the middle": [(entry("a/../../outside.png"), b"x")],
    "an absolute name": [(entry("/absolute.png"), b"x")],
    "a drive": [(entry("C:/absolute.png"), b"x")],
    "a backslash": [(entry("..\\outside.png"), b"x")],
    "a control character": [(entry("a\x1b[2J.png"), b"x")],
    "a name that is too long": [(entry("a" * 300 + ".png"), b"x")],
    "a name twice": [(entry("a.png"), b"x"), (entry("a.png"), b"y")],
    "a file and a folder": [(entry("a"), b"x"), (entry("a/b.png"), b"y")],
    "a symbolic link": [(entry("a.png", stat.S_IFLNK | 0o777), b"/etc/passwd")],
    "a device": [(entry("a.png", stat.S_IFCHR | 0o666), b"")],
    "too many entries": [(entry(f"{number}.png"), b"") for number in range(1100)],
    "a bomb": [(entry("a.png"), bytes(10_000_000))],
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_archive_is_refused_and_leaves_nothing(tmp_path, kind):
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for info, content in HOSTILE[kind]:
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, content)
    with pytest.raises(DownloadCorrupt):
        unpack(tmp_path / "a.zip", tmp_path / "in" / "side", 10)
    assert {path.name for path in tmp_path.rglob("*")} == {"a.zip", "in"}


def test_a_hostile_description_is_refused(tmp_path):
    picture, huge = io.BytesIO(), io.BytesIO()
    Image.new("L", (8, 8)).save(picture, "PNG")
    Image.new("1", (4000, 4000)).save(huge, "PNG")
    for line, content in (
        ({"file_name": "a.png", "label": 10**15, "class": "a"}, picture),
        ({"file_name": "a.png", "label": "a", "class": "a"}, picture),
        ({"file_name": "b.png", "label": 0, "class": "a"}, picture),
        ({"label": 0}, picture),
        ({"file_name": "a.png", "label": 0, "class": "a"}, huge),
        ({"file_name": "a.png", "label": 0, "class": "a"}, io.BytesIO(b"no picture")),
    ):
        with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
            archive.writestr("metadata.jsonl", json.dumps(line))
            archive.writestr("a.png", content.getvalue())
        with pytest.raises(DownloadCorrupt):
            read_images(tmp_path / "a.zip", "imagefolder", 1)
