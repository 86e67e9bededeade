"""Real images for the demo: Fashion-MNIST if available, otherwise scikit-learn's digits.

Imports neither torch nor scikit-learn: both run in processes of their own, with short timeouts.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from models.public_images import FASHION_CLASSES
from obscura.cli.console import CliError
from obscura.preparing import Choices, Package, prepare

ImagesName = Literal["fashion-mnist", "digits"]
DEBIAN_FOLDER = Path("/usr/share/datasets/fashion-mnist")
DEBIAN_PACKAGE = "dataset-fashion-mnist"
APT_SECONDS_MAX = 60
DOWNLOAD_SECONDS_MAX = 180
CONNECT_SECONDS_MAX = 10
DIGITS_SECONDS_MAX = 60

# SHA-256 of the uncompressed files; the packages compress them differently.
CHECKSUMS = {
    "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
}
# A small evaluation keeps the fallback within three minutes.
DIGITS_OPTIONS: dict[str, Any] = {"evaluation_samples": 2000}
FASHION_OPTIONS: dict[str, Any] = {"evaluation_samples": 10_000}  # of two releases, in less time than 30,000 of one

_TORCHVISION = f"""
import socket, sys
socket.setdefaulttimeout({CONNECT_SECONDS_MAX})
from torchvision.datasets import FashionMNIST
FashionMNIST(sys.argv[1], download=True)  # checks MD5 sums
"""
# A fixed split: every fifth image is public, for evaluation.
_DIGITS = """
import sys
from pathlib import Path
import numpy as np
from sklearn.datasets import load_digits
digits = load_digits()
images = np.round(digits.images * (255 / 16)).astype(np.uint8)
public = np.arange(len(images)) % 5 == 0
for name, chosen in (("digits", ~public), ("test", public)):
    np.savez(Path(sys.argv[1]) / f"{name}.npz", images=images[chosen], labels=digits.target[chosen].astype(np.int64))
"""


@dataclass(frozen=True)
class DemoImages:
    """Real images and their public facts.

    Attributes:
        source: Where the files came from.
        folder: Training images for `obscura datasets push` with `flags`.
        private: Training images.
        public: Evaluation images.
        delta: Of the account; at most 1 / records.
        options: Of the recipe.
    """

    name: str
    source: str
    folder: Path
    flags: str
    private: Package
    public: Package
    private_at_most: int
    public_at_most: int
    delta: float
    options: dict[str, Any]


def find_images(cache: Path, say: Callable[[str], None], wanted: str | None = None) -> DemoImages:
    """Find Fashion-MNIST, or fall back to the bundled digits and say so.

    Args:
        cache: Folder for downloads.
        say: Prints progress.
        wanted: "fashion-mnist" or "digits"; None takes the first available.
    """
    if wanted not in (None, "fashion-mnist", "digits"):
        raise CliError("--images is fashion-mnist or digits.")
    if wanted != "digits":
        for source, folder in _fashion_folders(cache / "fashion-mnist", say):
            if is_fashion_mnist(folder):
                return _fashion_mnist(folder, source)
        if wanted == "fashion-mnist":
            raise CliError("Fashion-MNIST cannot be had: neither here, nor from Debian's archive, nor by torchvision.")
        say(
            "Fashion-MNIST cannot be had here; falling back to scikit-learn's bundled digits (1,797 real 8 x 8 images)."
        )
    return _digits(cache / "digits")


def is_fashion_mnist(folder: Path) -> bool:
    """Return whether a folder holds the four files of Fashion-MNIST, by checksum."""
    try:
        return all(_content_sha256(_member(folder, name)) == digest for name, digest in CHECKSUMS.items())
    except OSError:
        return False


def _fashion_mnist(folder: Path, source: str) -> DemoImages:
    return DemoImages(
        name="Fashion-MNIST",
        source=source,
        folder=folder,
        flags=f" --split train --classes '{','.join(FASHION_CLASSES)}'",
        private=prepare(folder, Choices(split="train", classes=FASHION_CLASSES)),
        public=prepare(folder, Choices(split="t10k", classes=FASHION_CLASSES)),
        private_at_most=60_000,
        public_at_most=10_000,
        delta=1e-5,
        options=dict(FASHION_OPTIONS),
    )


def _digits(folder: Path) -> DemoImages:
    folder.mkdir(parents=True, exist_ok=True)
    _run([sys.executable, "-c", _DIGITS, str(folder)], DIGITS_SECONDS_MAX)
    if not (folder / "test.npz").is_file():
        raise CliError("scikit-learn's digits could not be loaded: is it installed (`make setup`)?")
    return DemoImages(
        name="digits",
        source="scikit-learn",
        folder=folder / "digits.npz",
        flags="",
        private=prepare(folder / "digits.npz"),
        public=prepare(folder / "test.npz"),
        private_at_most=1500,
        public_at_most=400,
        delta=1e-4,
        options=dict(DIGITS_OPTIONS),
    )


def _fashion_folders(cache: Path, say: Callable[[str], None]) -> Iterator[tuple[str, Path]]:
    yield "local cache", cache
    yield "files on this machine", Path(os.environ.get("OBSCURA_FASHION_MNIST", str(DEBIAN_FOLDER)))
    if shutil.which("apt-get") and shutil.which("dpkg-deb"):
        say("Looking for Fashion-MNIST in Debian's archive ...")
        yield "Debian package", _into_cache(cache, _from_debian)
    say("Looking for Fashion-MNIST with torchvision ...")
    yield "torchvision", _into_cache(cache, _from_torchvision)


def _into_cache(cache: Path, fetch: Callable[[Path], Path]) -> Path:
    with tempfile.TemporaryDirectory(prefix="obscura-") as name:
        folder = fetch(Path(name))
        if is_fashion_mnist(folder):
            cache.mkdir(parents=True, exist_ok=True)
            for member in CHECKSUMS:
                source = _member(folder, member)
                shutil.copyfile(source, cache / source.name)
    return cache


def _from_debian(folder: Path) -> Path:
    limits = [f"-oAcquire::http::Timeout={CONNECT_SECONDS_MAX}", "-oAcquire::Retries=0"]
    _run(["apt-get", "-qq", *limits, "download", DEBIAN_PACKAGE], APT_SECONDS_MAX, cwd=folder)
    for package in folder.glob("*.deb"):
        _run(["dpkg-deb", "-x", str(package), str(folder)], APT_SECONDS_MAX)
    return folder / DEBIAN_FOLDER.relative_to("/")


def _from_torchvision(folder: Path) -> Path:
    _run([sys.executable, "-c", _TORCHVISION, str(folder)], DOWNLOAD_SECONDS_MAX)
    return folder / "FashionMNIST" / "raw"


def _run(command: list[str], seconds_max: float, cwd: Path | None = None) -> None:
    quiet = subprocess.DEVNULL
    try:
        subprocess.run(command, cwd=cwd, stdin=quiet, stdout=quiet, stderr=quiet, timeout=seconds_max, check=False)
    except (subprocess.TimeoutExpired, OSError):
        return


def _member(folder: Path, name: str) -> Path:
    plain, packed = folder / name, folder / f"{name}.gz"
    return packed if packed.is_file() else plain


def _content_sha256(path: Path) -> str:
    if path.suffix == ".gz":
        with gzip.open(path) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    with path.open("rb") as plain:
        return hashlib.file_digest(plain, "sha256").hexdigest()
