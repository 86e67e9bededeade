"""Where benchmarks find their data, and what they say when it must be fetched or cannot be."""

import gzip
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from benchmarks.fetching import debian_folder, fetched_fashion_mnist, npm_package
from models.public_images import fashion_mnist

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
