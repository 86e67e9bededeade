"""Generate any number of images from one seed: batches with their own random streams, and conversion to pixels.

All of this is part of a sample's format: after a change, the same seed would give different images. This module also
reads a release's files and writes images with torch and the standard library alone. The service itself uses other
libraries for reading and writing; tests compare the results.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

IMAGES_PER_BATCH = 256


@dataclass(frozen=True)
class ImageShape:
    """The shape of labelled images: classes, 1 or 3 channels, and pixels."""

    classes: int
    channels: int
    height: int
    width: int

    @property
    def pixels(self) -> int:
        """Number of values in one image."""
        return self.channels * self.height * self.width


def turns(count: int, chosen: Sequence[int], proportions: Sequence[float] | None = None) -> Tensor:
    """Return labels (count,) int64 that alternate in the given proportions.

    A label with proportion w occurs at the times 1/w, 3/w, 5/w, and so on (Sainte-Lague's method). For every n, the
    first n labels follow the proportions as closely as whole numbers can. Float divisions are rounded identically on
    every machine, so the order is the same everywhere. Labels of equal proportions take turns.

    Args:
        chosen: the labels to use, without repetition.
        proportions: a number above 0 for each label, of which only ratios matter; None: equal proportions.
    """
    every = torch.tensor(chosen, dtype=torch.int64)
    if proportions is None:
        return every[torch.arange(count) % len(every)]
    whole, times, owners = math.fsum(proportions), [], []
    for place, weight in enumerate(proportions):
        most = math.floor(weight / whole * (count + len(every) / 2) + 1.5)  # a label has at most this many turns
        times.append((2 * torch.arange(most, dtype=torch.float64) + 1) / weight)
        owners.append(every[place].expand(most))
    order = torch.sort(torch.cat(times), stable=True).indices[:count]  # ties go to the earlier label
    return torch.cat(owners)[order]


def batches(
    count: int, seed: int, chosen: Sequence[int], proportions: Sequence[float] | None = None
) -> Iterator[tuple[Tensor, torch.Generator]]:
    """Yield the labels (b,) int64 and the random stream of each batch; the public seed is below 2**63."""
    every = turns(count, chosen, proportions)
    for batch, labels in enumerate(torch.split(every, IMAGES_PER_BATCH)):
        digest = hashlib.sha256(f"obscura/sample/{seed}/{batch}".encode()).digest()
        yield labels, torch.Generator(device="cpu").manual_seed(int.from_bytes(digest[:8], "big") >> 1)


def to_pixels(values: Tensor) -> Tensor:
    """Turn images (b, c, h, w) in [0, 1] into pixels (b, h, w, c) uint8 on the CPU."""
    pixels = (values.clamp(0, 1) * 255).round().to(torch.uint8)
    return pixels.permute(0, 2, 3, 1).contiguous().cpu()


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read a safetensors file: a length, a JSON header of that many bytes, and the numbers.

    Raises:
        ValueError: a tensor has a type that releases do not use.
    """
    content = bytearray(path.read_bytes())
    begin = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:begin])
    header.pop("__metadata__", None)
    kinds = {"F32": torch.float32, "F64": torch.float64, "I64": torch.int64, "U8": torch.uint8}
    found = {}
    for name, about in header.items():
        if about["dtype"] not in kinds:
            raise ValueError(f"{path.name}: {name} is of type {about['dtype']}; this program reads {', '.join(kinds)}")
        kind, count, place = kinds[about["dtype"]], math.prod(about["shape"]), begin + about["data_offsets"][0]
        found[name] = torch.empty(about["shape"], dtype=kind)
        if count:
            found[name].view(-1).copy_(torch.frombuffer(content, dtype=kind, count=count, offset=place))
    return found


def draw(
    generator: Any,
    count: int,
    seed: int = 0,
    labels: Sequence[int] | None = None,
    proportions: Sequence[float] | None = None,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield batches of images (b, h, w, c) uint8 and labels (b,), `count` images in all. The service draws the same.

    Args:
        generator: the released generator, as `load` returns it.
        seed: equal seeds give equal images.
        labels: labels to draw, in turn; all by default.
        proportions: a number above 0 for each label; by default, all are equally frequent.
    """
    chosen = list(range(generator.config.classes)) if labels is None else list(labels)
    for batch, stream in batches(count, seed, chosen, proportions):
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # the service adds in this order, so equal seeds give equal pixels
        try:
            with torch.inference_mode():
                pixels = to_pixels(generator.sample(batch, stream))
        finally:
            torch.set_num_threads(threads)
        yield pixels, batch


def png(pixels: Tensor, texts: Mapping[str, str]) -> bytes:
    """Return one image (h, w, 1 or 3) uint8 as a PNG file with text chunks, by keyword."""
    height, width, channels = pixels.shape
    rows = torch.cat([torch.zeros(height, 1, dtype=torch.uint8), pixels.reshape(height, -1)], dim=1)  # 0: no filter
    colour = 0 if channels == 1 else 2
    header = struct.pack(">IIBBBBB", width, height, 8, colour, 0, 0, 0)
    packed = zlib.compress(bytes(rows.flatten().tolist()), 6)
    content = b"\x89PNG\r\n\x1a\n"
    words = [(b"iTXt", f"{keyword}\0\0\0\0\0{text}".encode()) for keyword, text in texts.items()]
    for kind, data in ((b"IHDR", header), *words, (b"IDAT", packed), (b"IEND", b"")):
        content += struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    return content


def main(load: Callable[[], Any], classes: Sequence[str], folders: Sequence[str], texts: Mapping[str, str]) -> None:
    """Draw the images that the command line requests, as PNG files with text chunks, in one folder per class."""
    parser = argparse.ArgumentParser(description="Draw synthetic images from the released generator beside this file.")
    parser.add_argument("--count", type=int, required=True, help="number of images")
    parser.add_argument("--seed", type=int, default=0, help="equal seeds give equal images")
    parser.add_argument("--class", dest="classes", action="append", choices=classes, help="draw this class; repeatable")
    parser.add_argument(
        "--proportion",
        dest="proportions",
        type=float,
        action="append",
        help="relative frequency of a class, a number above 0; one for each --class, in the same order",
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for the class folders")
    asked = parser.parse_args()
    if asked.count < 1 or not 0 <= asked.seed < 2**63:
        parser.error("--count must be at least 1, --seed at least 0 and below 2**63")
    labels = None if asked.classes is None else [classes.index(name) for name in dict.fromkeys(asked.classes)]
    weights = asked.proportions
    if weights is not None and (len(weights) != len(labels or classes) or not all(0 < w < math.inf for w in weights)):
        parser.error("--proportion must be above 0; give one for each --class, or, without --class, for every class")
    number = 0
    for images, drawn in draw(load(), asked.count, asked.seed, labels, weights):
        for pixels, label in zip(images, drawn.tolist(), strict=True):
            path = asked.out / folders[label] / f"{number:07d}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(png(pixels, texts))
            number += 1
