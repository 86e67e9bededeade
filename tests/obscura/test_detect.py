"""`obscura detect`: every format is verified alone and offline, and every change is noticed."""

import io
import json
import re
import struct
import tarfile
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from obscura.cli.app import app
from obscura.wire import provenance
from obscura.wire.provenance import SOURCE_TYPE, XMP, encode_png
from tests.workers.small_trainings import KEY, random_generator, write_drawing

COUNT, KEY_ID = 7, KEY.key_id
SUFFIXES = {"imagefolder": "zip", "parquet": "zip", "webdataset": "tar", "npz": "npz"}


def detect(*paths: Path, key: str | None = KEY_ID) -> tuple[int, list[dict[str, Any]]]:
    options = [] if key is None else ["--key", key]
    done = CliRunner().invoke(app, ["detect", "--json", *options, *map(str, paths)])
    return done.exit_code, json.loads(done.stdout)


def verdict(path: Path, key: str | None = KEY_ID) -> str:
    return detect(path, key=key)[1][0]["verdict"]


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder, generator = tmp_path_factory.mktemp("samples"), random_generator(3)
    names = {"count": COUNT, "names": ("a", "b", "c")}
    return {of: write_drawing(folder / f"{of}.{end}", generator, of, **names) for of, end in SUFFIXES.items()}


@pytest.fixture
def image(samples: dict[str, Path], tmp_path: Path) -> Path:
    with zipfile.ZipFile(samples["imagefolder"]) as archive:
        (tmp_path / "one.png").write_bytes(archive.read("a/0000000.png"))
    return tmp_path / "one.png"


@pytest.mark.parametrize("sample_format", SUFFIXES)
def test_a_download_is_synthetic_by_a_release_and_a_key(samples, sample_format):
    path = samples[sample_format]
    code, (found,) = detect(path)
    assert (code, found["verdict"], found["releases"], found["keys"]) == (0, "valid", ["rel_small"], [KEY_ID])
    assert sum(found["images"].values()) >= (1 if sample_format == "npz" else COUNT)
    code, (found,) = detect(path, key=None)
    assert (code, found["verdict"], found["keys"]) == (1, "unknown_key", [KEY_ID])
    assert detect(path, key="0" * 64)[1][0]["verdict"] == "unknown_key"


def test_one_image_is_verified_alone_and_its_pixels_release_and_key_are_bound(image, tmp_path):
    assert verdict(image) == "valid"
    with Image.open(image) as opened:
        signed, pixels = json.loads(opened.info["obscura"]), np.asarray(opened).copy()
    assert signed["release_id"] == "rel_small"
    changed = tmp_path / "changed.png"
    for edit in ({"release_id": "rel_other"}, {"signature": "00" * 64}, {"public_key": "11" * 32}, {"signature": "x"}):
        changed.write_bytes(encode_png(Image.fromarray(pixels), signed | edit))
        code, (found,) = detect(changed)
        assert (code, found["verdict"], found["releases"]) == (1, "invalid", [])
    pixels[0, 0, 0] ^= 1
    changed.write_bytes(encode_png(Image.fromarray(pixels), signed))
    assert verdict(changed) == "invalid"
    changed.write_bytes(encode_png(Image.fromarray(pixels).resize((3, 100)), signed))
    assert verdict(changed) == "invalid"


def test_without_a_statement_it_cannot_be_told_and_nothing_is_called_real(image, tmp_path):
    with Image.open(image) as opened:
        opened.convert("RGB").save(tmp_path / "plain.jpg")
        opened.convert("RGB").save(tmp_path / "marked.jpg", xmp=XMP.encode())
        opened.convert("RGB").save(tmp_path / "plain.png")
    (tmp_path / "marked.png").write_bytes(encode_png(Image.new("L", (3, 3))))
    verdicts = {path.name: verdict(path) for path in tmp_path.iterdir()}
    assert verdicts == {
        "one.png": "valid",
        "plain.jpg": "no_statement",
        "plain.png": "no_statement",
        "marked.jpg": "unsigned",
        "marked.png": "unsigned",
    }
    shown = CliRunner().invoke(app, ["detect", str(tmp_path / "plain.jpg")])
    assert shown.exit_code == 1
    assert "may be synthetic or real" in shown.stdout


def test_the_worst_image_decides_on_a_folder_an_archive_and_a_table(samples, image, tmp_path):
    folder = tmp_path / "folder"
    with zipfile.ZipFile(samples["imagefolder"]) as archive:
        archive.extractall(folder)
    assert verdict(folder) == "valid"
    Image.new("RGB", (6, 5)).save(folder / "a" / "own.png")
    code, (found,) = detect(folder)
    assert (code, found["verdict"], found["images"]["no_statement"]) == (1, "no_statement", 1)
    with zipfile.ZipFile(samples["parquet"]) as archive:
        table = Path(archive.extract("data/train-00000-of-00001.parquet", tmp_path))
    assert verdict(table) == "valid"
    code, found = detect(table, image, tmp_path / "folder" / "a" / "own.png")
    assert (code, [each["verdict"] for each in found]) == (1, ["valid", "valid", "no_statement"])


def test_changed_arrays_are_noticed(samples, tmp_path):
    for changed in ("images.npy", "labels.npy", "more.npy"):
        with zipfile.ZipFile(samples["npz"]) as old, zipfile.ZipFile(tmp_path / "new.npz", "w") as new:
            for name in old.namelist():
                new.writestr(name, old.read(name)[:-1] + b"\x07" if name == changed else old.read(name))
            if changed == "more.npy":
                new.writestr(changed, old.read("images.npy"))
        assert verdict(tmp_path / "new.npz") == "invalid"


def bomb() -> bytes:
    header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 0, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(bytes(10**6))), (b"IEND", b""))
    parts = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


HOSTILE = {
    "empty.png": b"",
    "text.png": b"hello",
    "bomb.png": bomb(),
    "cut.zip": b"PK\x03\x04",
    "cut.tar": b"x" * 600,
    "cut.parquet": b"PAR1" + bytes(50) + b"PAR1",
    "nested.png": encode_png(Image.new("L", (2, 2)))[:60],
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_damaged_file_is_unreadable(name, tmp_path):
    (tmp_path / name).write_bytes(HOSTILE[name])
    code, (found,) = detect(tmp_path / name)
    assert (code, found["verdict"], found["releases"]) == (2, "unreadable", [])


@pytest.mark.parametrize("text", ["[" * 10**5, "{}", "[]", '{"release_id": 1, "signature": []}', '{"signature": "00"}'])
def test_a_hostile_statement_is_never_valid(text, tmp_path):
    from PIL.PngImagePlugin import PngInfo

    info = PngInfo()
    info.add_text("obscura", text)
    Image.new("L", (2, 2)).save(tmp_path / "a.png", pnginfo=info)
    assert verdict(tmp_path / "a.png") in ("invalid", "no_statement")


def test_names_in_a_file_cannot_move_the_cursor(tmp_path):
    picture = Image.new("L", (2, 2))
    mark = provenance.mark("rel\x1b[2J", provenance.content_of(picture), KEY.sign)  # a valid signature
    (tmp_path / "a.png").write_bytes(encode_png(picture, mark))
    shown = CliRunner().invoke(app, ["detect", "--key", KEY_ID, str(tmp_path / "a.png")])
    assert shown.exit_code == 0
    assert "\x1b" not in shown.stdout


def test_a_link_out_of_a_tar_is_not_followed(samples, image, tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        entry = tarfile.TarInfo("a.png")
        entry.type, entry.linkname = tarfile.SYMTYPE, str(image)
        archive.addfile(entry)
    assert detect(tmp_path / "a.tar")[0] == 2
    assert detect(tmp_path / "absent.png")[0] == 2


def test_the_key_is_a_fingerprint_or_a_pem_file(image, tmp_path):
    (tmp_path / "ledger.pub.pem").write_text(KEY.public_pem())
    assert verdict(image, key=str(tmp_path / "ledger.pub.pem")) == "valid"
    wrong = CliRunner().invoke(app, ["detect", "--key", "nonsense", str(image)])
    assert wrong.exit_code == 2
    assert "fingerprint" in wrong.output


def test_every_image_has_the_iptc_mark_where_readers_look_for_it(samples, image):
    with Image.open(image) as opened:
        packet = opened.info["xmp"].decode()
    assert re.search(rf'Iptc4xmpExt:DigitalSourceType="{re.escape(SOURCE_TYPE)}"', packet)
    from xml.etree import ElementTree

    ElementTree.fromstring(re.sub(r"<\?xpacket.*?\?>", "", packet))
    with zipfile.ZipFile(samples["npz"]) as archive:
        assert json.loads(archive.read("provenance.json"))["digital_source_type"] == SOURCE_TYPE
    from pyarrow import parquet

    with zipfile.ZipFile(samples["parquet"]) as archive:
        schema = parquet.read_schema(io.BytesIO(archive.read("data/train-00000-of-00001.parquet")))
    assert schema.metadata[b"digital_source_type"].decode() == SOURCE_TYPE
    assert json.loads(schema.metadata[b"obscura"]) == {"release_id": "rel_small"}
