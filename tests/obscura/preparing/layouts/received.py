"""What would be sent of a package, read again by class."""

import io
import zipfile

import numpy as np
from PIL import Image

from obscura.preparing import Package


def received(package: Package) -> list[tuple[str, np.ndarray]]:
    """Return (class, pixels) of each image in the order of the zip."""
    assert package.format == "zip"
    found = []
    with zipfile.ZipFile(io.BytesIO(b"".join(package.open()))) as archive:
        for name in archive.namelist():
            with Image.open(io.BytesIO(archive.read(name))) as image:
                found.append((name.split("/")[0], np.asarray(image)))
    assert len(found) == package.private_records
    return found
