"""Images of 16 bits, signed, measured, large, turned or animated, and checks of the results."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.intake.inputs import COUNT, SIDE, WORDS, ImageInput, step

Array = np.ndarray[Any, Any]
Draw = Callable[[np.random.Generator], Array]
_ROOM = 2048  # bytes for the values that do not fit into an entry of a TIFF


def spread(least: float, most: float, kind: str, side: int = SIDE) -> Draw:
    """Draw a ramp from black at the left to white at the right, with a little noise."""

    def draw(rng: np.random.Generator) -> Array:
        ramp = np.tile(np.linspace(least, most, side), (side, 1))
        ramp[1:-1, 1:-1] += rng.uniform(-0.02, 0.02, (side - 2, side - 2)) * (most - least)
        return ramp.clip(least, most).astype(kind)

    return draw


def _hot(rng: np.random.Generator) -> Array:
    values = spread(900, 1700, "u2")(rng)
    values[0, 0], values[9, 9] = 0, 65535
    return values


DRAWS: dict[str, Draw] = {
    "eight": spread(0, 255, "u1"),
    "ten": spread(0, 1023, "u2"),
    "twelve": spread(0, 4095, "u2"),
    "fourteen": spread(0, 16383, "u2"),
    "sixteen": spread(0, 65535, "u2"),
    "hounsfield": spread(-1024, 3071, "i2"),
    "measured": spread(0, 1, "f4"),
    "hot pixels": _hot,
    "black and white": lambda rng: np.where(rng.random((SIDE, SIDE)) < 0.5, 0, 65535).astype("u2"),
    "one bit": lambda rng: rng.random((SIDE, SIDE)) < 0.5,
    "not numbers": lambda _: np.full((SIDE, SIDE), np.nan, "f4"),
    "colour": lambda rng: rng.integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8),
    "clear": lambda _: np.zeros((SIDE, SIDE, 4), np.uint8),
    "white above black": lambda _: np.repeat([[255], [0]], SIDE // 2, 0).repeat(SIDE, 1).astype("u1"),
    "grey, 300 pixels": lambda rng: rng.integers(0, 256, (300, 300), dtype=np.uint8),
}


def drawn(name: str | Sequence[Any]) -> Draw:
    """Return a named draw, or a ramp by its bounds and type."""
    return DRAWS[name] if isinstance(name, str) else spread(*name)


@step
def images(
    folder: Path,
    rng: np.random.Generator,
    suffix: str,
    draw: Any,
    also: Any = None,
    *,
    bands: int = 0,
    axis: int = 2,
    tiff: Mapping[str, Any] | None = None,
    pgm: int = 0,
    mode: str = "",
    turned: int = 0,
    frames: bool = False,
    tags: Mapping[str, int] | None = None,
    format: str | None = None,
    **options: Any,
) -> None:
    """Write images in two class folders.

    `also` draws every second image of a class. The pixels are stacked `bands` times along `axis`. They are written by
    `tiff_of`, as a PGM of the largest number `pgm`, or by Pillow: converted to `mode`, `turned` for an EXIF
    orientation, with a second black frame, or with `tags` of a TIFF.
    """
    for number in range(COUNT):
        path = folder / WORDS[number % 2] / f"{number:03d}{suffix}"
        path.parent.mkdir(parents=True, exist_ok=True)
        values = drawn(draw if also is None or number // 2 % 2 == 0 else also)(rng)
        values = np.stack([values] * bands, axis) if bands else values
        if tiff is not None:
            path.write_bytes(tiff_of(values, **tiff))
        elif pgm:
            path.write_bytes(b"P5\n%d %d\n%d\n" % (SIDE, SIDE, pgm) + values.astype(">u2").tobytes())
        else:
            more = dict(options)
            if tags is not None:
                more["tiffinfo"] = {int(tag): value for tag, value in tags.items()}
                values = values.view(values.dtype.str.replace("i", "u"))
            image = Image.fromarray(values)
            image = image.convert(mode) if mode else image
            if turned:
                back = {3: Image.Transpose.ROTATE_180, 6: Image.Transpose.ROTATE_90, 8: Image.Transpose.ROTATE_270}
                more["exif"] = Image.Exif()
                more["exif"][0x0112] = turned
                image = image.transpose(back[turned])
            if frames:
                more |= {"save_all": True, "append_images": [Image.new("L", (SIDE, SIDE))]}
            file = io.BytesIO()
            image.save(file, format or Image.registered_extensions()[suffix], **more)
            path.write_bytes(file.getvalue())


def tiff_of(
    values: Array,
    bits: int,
    sample: int = 1,
    white: int = 1,
    *,
    big: bool = False,
    bands: int = 1,
    apart: bool = False,
    extra: Sequence[int] = (),
) -> bytes:
    """Return a TIFF of a kind that Pillow does not write: packed, big-endian, or of several bands."""
    order = ">" if big else "<"
    if bits % 8:
        shifts = np.arange(bits - 1, -1, -1)
        set_bits = values.reshape(len(values), -1, 1) >> shifts & 1
        data = np.packbits(set_bits.astype(np.uint8).reshape(len(values), -1), axis=1).tobytes()
    else:
        data = values.astype(values.dtype.newbyteorder(order)).tobytes()
    strips = bands if apart else 1
    height, width = values.shape[1:] if apart else values.shape[:2]
    tags = {256: ("I", [width]), 257: ("I", [height]), 258: ("H", [bits] * bands), 259: ("H", [1])}
    tags |= {262: ("H", [2 if bands == 3 else white]), 277: ("H", [bands]), 278: ("I", [height])}
    tags |= {284: ("H", [1 + apart]), 339: ("H", [sample] * bands)} | ({338: ("H", list(extra))} if extra else {})
    size, first = len(data) // strips, 8 + _ROOM
    tags |= {273: ("I", [first + number * size for number in range(strips)]), 279: ("I", [size] * strips)}
    entries, beyond, at = b"", b"", 8 + 2 + 12 * len(tags) + 4
    for tag, (kind, numbers) in sorted(tags.items()):
        value = struct.pack(order + kind * len(numbers), *numbers)
        if len(value) > 4:
            value, beyond = struct.pack(order + "I", at + len(beyond)), beyond + value
        entries += struct.pack(order + "HHI", tag, {"H": 3, "I": 4}[kind], len(numbers)) + value.ljust(4, b"\0")
    head = (b"MM\0*" if big else b"II*\0") + struct.pack(order + "I", 8)
    directory = struct.pack(order + "H", len(tags)) + entries + bytes(4) + beyond
    return head + directory.ljust(_ROOM, b"\0") + data


def brightens(images: ImageInput) -> str:
    for name, pixels in images:
        columns = pixels.reshape(*pixels.shape[:2], -1).mean(axis=(0, 2))
        if columns[0] > 12 or columns[-1] < 243 or columns[SIDE // 4] >= columns[3 * SIDE // 4]:
            return f"an image of {name} runs from {columns[0]:.0f} to {columns[-1]:.0f}"
    return ""


def darkens(images: ImageInput) -> str:
    return brightens([(name, 255 - pixels) for name, pixels in images])


def upright(images: ImageInput) -> str:
    dark = [name for name, pixels in images if pixels[:8].mean() < 200 or pixels[-8:].mean() > 60]
    return f"an image of {dark[0]} lies on its side" if dark else ""


def white(images: ImageInput) -> str:
    other = [name for name, pixels in images if pixels.min() < 255]
    return f"an image of {other[0]} is not laid on white" if other else ""


def colours(side: int) -> Callable[[ImageInput], str]:
    def look(images: ImageInput) -> str:
        shapes = {pixels.shape for _, pixels in images}
        return "" if shapes == {(side, side, 3)} else str(shapes)

    return look


LOOKS: dict[str, Callable[[ImageInput], str]] = {
    "brightens": brightens,
    "darkens": darkens,
    "upright": upright,
    "white": white,
    "colours, 28 pixels": colours(28),
    "colours, 64 pixels": colours(64),
}
