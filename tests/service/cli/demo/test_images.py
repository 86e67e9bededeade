"""Where the demo finds its images, and what it does when there are none."""

import gzip

import numpy as np
import pytest

from models.public_images import FASHION_CLASSES
from obscura.cli.console import CliError
from service.cli.demo import images as demo_images
from service.cli.demo import resident_bytes
from service.cli.demo.images import DEBIAN_FOLDER, find_images, is_fashion_mnist


def test_wrong_files_are_not_taken_for_fashion_mnist(tmp_path):
    assert not is_fashion_mnist(tmp_path)
    for name in demo_images.CHECKSUMS:
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(b"something else"))
    assert not is_fashion_mnist(tmp_path)
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(b"not even gzip")
    assert not is_fashion_mnist(tmp_path)


@pytest.mark.skipif(not is_fashion_mnist(DEBIAN_FOLDER), reason="Debian's dataset-fashion-mnist is not installed")
def test_fashion_mnist_from_this_machine(tmp_path, monkeypatch):
    monkeypatch.delenv("OBSCURA_FASHION_MNIST", raising=False)
    found = find_images(tmp_path, lambda _: None)
    assert found.name == "Fashion-MNIST"
    assert (found.private.private_records, found.public.private_records) == (60_000, 10_000)
    assert found.private.classes == found.public.classes == FASHION_CLASSES
    assert found.delta <= 1 / found.private.private_records


def test_the_digits_are_the_last_resort_and_it_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("OBSCURA_FASHION_MNIST", str(tmp_path / "nothing"))
    monkeypatch.setenv("PATH", "")  # no apt-get
    monkeypatch.setattr(demo_images, "DOWNLOAD_SECONDS_MAX", 0.01)
    said: list[str] = []
    found = find_images(tmp_path / "cache", said.append)
    assert found.name == "digits"
    assert any("falling back" in sentence for sentence in said)
    assert found.private.private_records + found.public.private_records == 1797
    assert found.delta <= 1 / found.private.private_records
    with np.load(tmp_path / "cache" / "digits" / "digits.npz") as arrays:
        assert arrays["images"].max() == 255


def test_wishes_that_cannot_be_met(tmp_path):
    with pytest.raises(CliError):
        find_images(tmp_path, lambda _: None, "imagenet")


def test_memory_of_a_process_and_its_children():
    import os

    assert resident_bytes(os.getpid()) > 10_000_000
    assert resident_bytes(2**30) == 0
