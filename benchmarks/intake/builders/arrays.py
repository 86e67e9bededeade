"""Arrays in files: .npz as several programs write them, and IDX."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.intake.builders.images import spread
from benchmarks.intake.inputs import COUNT, step


@step
def npz(
    folder: Path,
    rng: np.random.Generator,
    shapes: Mapping[str, Sequence[int]] | None = None,
    types: Mapping[str, str] | None = None,
    name: str = "a.npz",
    compressed: bool = False,
    deep: Sequence[Any] = (),
    **arrays: Any,
) -> None:
    """Write random images of these shapes, or ramps (see `spread`), and other arrays of these types."""
    found: dict[str, Any] = {}
    if deep:
        found["images"] = np.stack([spread(*deep)(rng) for _ in range(COUNT)])
    else:
        for key, shape in (shapes or {"images": (COUNT, 28, 28)}).items():
            found[key] = rng.integers(0, 256, tuple(shape), dtype=np.uint8)
    found |= {key: np.array(values) for key, values in arrays.items()}
    for key, kind in (types or {}).items():
        found[key] = found[key] / 255 if kind == "part" else found[key].astype(kind)
    with (folder / name).open("wb") as file:
        (np.savez_compressed if compressed else np.savez)(file, **found)


@step
def idx(folder: Path, rng: np.random.Generator, prefix: str, *labels: int) -> None:
    """Write an IDX pair of random images, whose labels repeat."""
    pixels = rng.integers(0, 256, (COUNT, 28, 28), dtype=np.uint8)
    head = struct.pack(">4I", 0x803, *pixels.shape)
    (folder / f"{prefix}-images-idx3-ubyte").write_bytes(head + pixels.tobytes())
    repeated = bytes(np.resize(labels, COUNT).tolist())
    (folder / f"{prefix}-labels-idx1-ubyte").write_bytes(struct.pack(">2I", 0x801, COUNT) + repeated)
