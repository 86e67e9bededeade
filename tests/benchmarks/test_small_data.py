"""The public sets of benchmarks are always made in the same way, and where they are found or fetched."""

import gzip
import io
import json
import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import numpy as np
import pytest

from benchmarks.fetching import debian_folder, fetched_fashion_mnist, npm_package
from benchmarks.small_data import EMOJI, digits, emoji
from models.public_images import fashion_mnist
from tests.benchmarks.conftest import light_and_dark
from tests.pictures import picture


def package(folder: Path, name: str, files: dict[str, bytes]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(folder / f"{name}.tgz", "w:gz") as archive:
        for file, content in files.items():
            info = tarfile.TarInfo(f"package/{file}")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))


def test_digits_are_divided_in_one_way():
    one, two = digits(), digits()
    assert (len(one.labels), len(one.test_labels)) == (1437, 360)
    assert np.array_equal(one.images, two.images)
    cut = one.held_out(100, test=300)
    assert (len(cut.labels), len(cut.test_labels)) == (100, 300)


def test_settings_are_chosen_on_training_images_that_are_not_trained_on():
    whole = light_and_dark()
    folder = whole.tuning(60, 40)
    assert np.array_equal(folder.images, whole.images[:60])
    assert np.array_equal(folder.test_images, whole.images[60:])
    with pytest.raises(ValueError, match="more than 100"):
        whole.tuning(61, 40)


def test_no_tested_emoji_has_a_twin_among_the_private_ones(tmp_path, monkeypatch):
    entries = [
        {"unified": f"{code:X}", "image": f"{code}.png", "category": EMOJI[code % 9], **images}
        for code in range(60)
        for images in [{"has_img_google": True, "has_img_twitter": code != 7}]
    ]
    entries.append({**entries[0], "unified": "skin", "category": "Component"})
    for drawer in ("google", "twitter"):
        files = {
            f"img/{drawer}/64/{code}.png": picture(mode="RGBA", size=(64, 64), value=(4 * code, 0, 0, 128))
            for code in range(60)
        }
        files["emoji.json"] = json.dumps(entries).encode()
        package(tmp_path / "npm", f"emoji-datasource-{drawer}-16.0.0", files)
    monkeypatch.setenv("OBSCURA_CACHE", str(tmp_path))
    folder = emoji()
    assert folder.images.shape[1:] == (64, 64, 3)
    assert len(folder.labels) + len(folder.test_labels) == 119
    private, tested = ({tuple(image[0, 0]) for image in part} for part in (folder.images, folder.test_images))
    assert len(tested) == 10
    assert not private & tested
    assert folder.images[..., 1].min() >= 126  # half transparent, on white


# --- fetching ---------------------------------------------------------------------------------------------------------


FOLDER = "usr/share/obscura-test"


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("OBSCURA_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("OBSCURA_FASHION_MNIST", raising=False)
    return tmp_path / "cache"


@pytest.fixture
def archive(tmp_path, monkeypatch):
    """An apt-get that knows one package; each download leaves a mark."""
    if shutil.which("dpkg-deb") is None:
        pytest.skip("dpkg-deb is not there")
    whole = tmp_path / "whole"
    (whole / "DEBIAN").mkdir(parents=True)
    control = "Package: obscura-test\nVersion: 1\nArchitecture: all\nMaintainer: nobody\nDescription: a test\n"
    (whole / "DEBIAN" / "control").write_text(control)
    (whole / FOLDER).mkdir(parents=True)
    (whole / FOLDER / "data").write_text("content")
    subprocess.run(["dpkg-deb", "--build", whole, tmp_path / "one.deb"], check=True, capture_output=True)
    marks = tmp_path / "downloads"
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "apt-get"
    program.write_text(f'#!/bin/sh\necho >> {marks}\n[ "$3" = obscura-test ] && cp {tmp_path}/one.deb .\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    return marks


def test_a_package_that_is_not_installed_is_fetched_once_and_says_so_in_a_line(archive, own_cache, tmp_path, capsys):
    assert debian_folder("obscura-test", tmp_path) == tmp_path
    assert not archive.exists()
    for _ in range(2):
        found = debian_folder("obscura-test", Path("/") / FOLDER)
        assert (found / "data").read_text() == "content"
        assert own_cache in found.parents
    assert archive.read_text() == "\n"
    assert capsys.readouterr().out.count("\n") == 1


def test_what_cannot_be_fetched_is_named_and_leaves_nothing_half_done(archive, own_cache, tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError, match="no-such-package"):
        debian_folder("no-such-package", Path("/usr/share/no-such-folder"))
    assert not list((own_cache / "debian").iterdir())
    monkeypatch.setenv("PATH", str(tmp_path))  # no npm there
    with pytest.raises(FileNotFoundError, match="no-such-package@1"):
        npm_package("no-such-package@1")


def test_fashion_mnist_is_read_from_where_the_demo_keeps_it(own_cache):
    folder = own_cache / "fashion-mnist"
    folder.mkdir(parents=True)
    images = np.random.default_rng(0).integers(0, 256, (5, 28, 28)).astype(np.uint8)
    labels = np.array([3, 1, 4, 1, 5], dtype=np.uint8)
    for name, header, content in (("images-idx3", 16, images), ("labels-idx1", 8, labels)):
        (folder / f"train-{name}-ubyte.gz").write_bytes(gzip.compress(bytes(header) + content.tobytes()))
    found, truth, names = fetched_fashion_mnist("train")
    np.testing.assert_array_equal(found, images)
    np.testing.assert_array_equal(truth, labels)
    assert (found.dtype, truth.dtype, len(names)) == (np.uint8, np.int64, 10)
    with pytest.raises(FileNotFoundError, match="dataset-fashion-mnist"):
        fashion_mnist("test", folder)
