"""Images whose pixels are not eight bits as they stand: 16 bits, signed, measured, large, turned, moving."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.intake.inputs import Asked, Build, ImageInput, Input, Outcome, Read, Refused, colour, grey

COUNT, SIDE = 12, 32
WORDS = ("normal", "sick")
ALL = Read(WORDS, COUNT)
Array = np.ndarray[Any, Any]
Draw = Callable[[np.random.Generator], Array]


def spread(least: float, most: float, kind: str) -> Draw:
    def draw(rng: np.random.Generator) -> Array:
        ramp = np.tile(np.linspace(least, most, SIDE), (SIDE, 1))
        ramp[1:-1, 1:-1] += rng.uniform(-0.02, 0.02, (SIDE - 2, SIDE - 2)) * (most - least)
        return ramp.clip(least, most).astype(kind)

    return draw


def folder_of(suffix: str, *draws: Draw, write: Callable[[Path, Array], None] | None = None) -> Build:
    def build(folder: Path, rng: np.random.Generator) -> None:
        for number in range(COUNT):
            path = folder / WORDS[number % 2] / f"{number:03d}{suffix}"
            path.parent.mkdir(parents=True, exist_ok=True)
            values = draws[number // 2 % len(draws)](rng)
            if write is None:
                Image.fromarray(values).save(path)
            else:
                write(path, values)

    return build


def saved(kind: str, **options: Any) -> Callable[[Path, Array], None]:
    return lambda path, values: Image.fromarray(values).save(path, kind, **options)


def tagged(sample_format: int, photometric: int = 1) -> Callable[[Path, Array], None]:
    def write(path: Path, values: Array) -> None:
        kinds = {"u": values, "i": values.view(values.dtype.str.replace("i", "u")), "f": values}
        file = io.BytesIO()
        Image.fromarray(kinds[values.dtype.kind]).save(file, "TIFF", tiffinfo={339: sample_format, 262: photometric})
        path.write_bytes(file.getvalue())

    return write


def pgm(maxval: int) -> Callable[[Path, Array], None]:
    return lambda path, values: path.write_bytes(
        b"P5\n%d %d\n%d\n" % (SIDE, SIDE, maxval) + values.astype(">u2").tobytes()
    )


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


def lying(orientation: int) -> Build:
    turned = {3: Image.Transpose.ROTATE_180, 6: Image.Transpose.ROTATE_90, 8: Image.Transpose.ROTATE_270}

    def write(path: Path, values: Array) -> None:
        exif = Image.Exif()
        exif[0x0112] = orientation
        Image.fromarray(values).transpose(turned[orientation]).save(path, "JPEG", exif=exif, quality=95)

    return folder_of(".jpg", lambda _: np.repeat([[255], [0]], SIDE // 2, 0).repeat(SIDE, 1).astype("u1"), write=write)


def clear(rng: np.random.Generator) -> Array:
    del rng
    return np.zeros((SIDE, SIDE, 4), np.uint8)


def white(images: ImageInput) -> str:
    other = [name for name, pixels in images if pixels.min() < 255]
    return f"an image of {other[0]} is not laid on white" if other else ""


def moving(kind: str) -> Callable[[Path, Array], None]:
    black = Image.new("L", (SIDE, SIDE))
    return lambda path, values: Image.fromarray(values).save(path, kind, save_all=True, append_images=[black])


def given(
    name: str, build: Build, expected: Outcome, looks: Callable[[ImageInput], str] | None = None, **options: Any
) -> Input:
    if looks is not None:
        assert isinstance(expected, Read)
        expected = Read(expected.classes, expected.records, expected.subjects, expected.said, looks)
    return Input(name, build, expected, options=options)


TWELVE, SIXTEEN, EIGHT = spread(0, 4095, "u2"), spread(0, 65535, "u2"), spread(0, 255, "u1")
TEN, FOURTEEN = spread(0, 1023, "u2"), spread(0, 16383, "u2")
HOUNSFIELD, MEASURED = spread(-1024, 3071, "i2"), spread(0, 1, "f4")
OFFSET = spread(32768 - 800, 32768 + 800, "u2")  # Hounsfield units + 32,768


def hot(rng: np.random.Generator) -> Array:
    values = spread(900, 1700, "u2")(rng)
    values[0, 0], values[9, 9] = 0, 65535
    return values


WINDOW = Asked("--window", "signed or measured")
DEPTH = Asked("--depth", "far below")
INPUTS = (
    given("png16_in_full", folder_of(".png", SIXTEEN), ALL, brightens),
    given("png16_with_12_bits", folder_of(".png", TWELVE), DEPTH),
    given("png16_with_12_bits_stated", folder_of(".png", TWELVE), ALL, brightens, depth=12),
    given("png16_with_12_bits_windowed", folder_of(".png", TWELVE), ALL, brightens, window="0,4095"),
    given("png16_with_12_bits_meant_dark", folder_of(".png", TWELVE), ALL, depth=16),
    given("png16_with_12_bits_and_auto", folder_of(".png", TWELVE), Refused("would change with one of them"),
        window="auto"),
    given("png16_with_10_bits", folder_of(".png", TEN), DEPTH),
    given("png16_with_14_bits", folder_of(".png", FOURTEEN), DEPTH),
    given("png16_too_bright_for_the_stated_depth", folder_of(".png", SIXTEEN), Refused("above those of 12 bits"),
        depth=12),
    given("png16_and_png8", folder_of(".png", SIXTEEN, EIGHT), Asked("--depth", "more bits than others")),
    given("png16_and_png8_stated", folder_of(".png", SIXTEEN, EIGHT), ALL, brightens, depth=16),
    given("png12_and_png8_stated", folder_of(".png", TWELVE, EIGHT), ALL, brightens, depth=12),
    given("png16_of_two_devices", folder_of(".png", SIXTEEN, TWELVE), Asked("--depth", "another device")),
    given("png16_of_offset_ct", folder_of(".png", OFFSET), Asked("--window", "31744,35839")),
    given("png16_of_offset_ct_windowed", folder_of(".png", OFFSET), ALL, brightens, window="31968,33568"),
    given("png16_of_offset_ct_as_it_is", folder_of(".png", OFFSET), ALL, depth=16),
    given("png16_with_hot_pixels", folder_of(".png", hot), Asked("--window", "64 of 256 grey levels")),
    given("tiff16_with_hot_pixels", folder_of(".tif", hot), Asked("--window", "64 of 256 grey levels")),
    given("png16_black_and_white",
        folder_of(".png", lambda rng: np.where(rng.random((SIDE, SIDE)) < 0.5, 0, 65535).astype("u2")), ALL),
    given("png8_with_a_depth", folder_of(".png", EIGHT), Refused("there is none"), depth=12),
    given("png8_with_a_window", folder_of(".png", EIGHT), Refused("none of these has more"), window="0,100"),
    given("tiff16_min_is_white", folder_of(".tif", SIXTEEN, write=tagged(1, 0)), ALL, darkens),
    given("tiff8_min_is_white", folder_of(".tif", EIGHT, write=tagged(1, 0)), ALL, brightens),
    given("tiff16_in_full", folder_of(".tif", SIXTEEN), ALL, brightens),
    given("tiff16_with_12_bits", folder_of(".tif", TWELVE), DEPTH),
    given("tiff16_deflated", folder_of(".tif", SIXTEEN, write=saved("TIFF", compression="tiff_adobe_deflate")), ALL,
        brightens),
    given("tiff16_signed", folder_of(".tif", HOUNSFIELD, write=tagged(2)), WINDOW),
    given("tiff16_signed_windowed", folder_of(".tif", HOUNSFIELD, write=tagged(2)), ALL, brightens,
        window="-1024,3071"),
    given("tiff16_signed_with_a_depth", folder_of(".tif", HOUNSFIELD, write=tagged(2)), Asked("--window"), depth=12),
    given("tiff_float", folder_of(".tif", MEASURED), WINDOW),
    given("tiff_float_windowed", folder_of(".tif", MEASURED), ALL, brightens, window="0,1"),
    given("tiff_float_with_nan", folder_of(".tif", lambda _: np.full((SIDE, SIDE), np.nan, "f4")),
        Asked("--skip-broken", "not numbers"), window="0,1"),
    given("tiff32_counts", folder_of(".tif", spread(0, 70_000, "i4")), WINDOW),
    given("pgm_of_12_bits_says_so", folder_of(".pgm", TWELVE, write=pgm(4095)), ALL, brightens),
    given("palette_png",
        folder_of(".png", EIGHT, write=lambda path, values: Image.fromarray(values).convert("P").save(path)), ALL,
        brightens),
    given("palette_gif", folder_of(".gif", EIGHT), ALL, brightens),
    given("one_bit_png", folder_of(".png", lambda rng: rng.random((SIDE, SIDE)) < 0.5), ALL),
    given(
        "cmyk_jpeg",
        folder_of(
            ".jpg",
            lambda rng: colour(rng, SIDE, SIDE),
            write=lambda path, values: Image.fromarray(values).convert("CMYK").save(path),
        ),
        Read(WORDS, COUNT, said="CMYK"),
    ),
    given("clear_png", folder_of(".png", clear), ALL, white),
    given("moving_gif", folder_of(".gif", EIGHT, write=moving("GIF")), Read(WORDS, COUNT, said="first frame"),
        brightens),
    given("tiff_of_several_pages", folder_of(".tif", EIGHT, write=moving("TIFF")),
        Read(WORDS, COUNT, said="first frame"), brightens),
    given("webp", folder_of(".webp", EIGHT, write=saved("WEBP", lossless=True)), ALL, brightens),
    given("bmp", folder_of(".bmp", EIGHT), ALL, brightens),
    given("jpeg_upside_down_by_exif", lying(3), Read(WORDS, COUNT, said="upright"), upright),
    given("jpeg_lying_by_exif", lying(6), Read(WORDS, COUNT, said="upright"), upright),
    given("jpeg_lying_the_other_way", lying(8), Read(WORDS, COUNT, said="upright"), upright),
    given("size_256", folder_of(".png", lambda rng: grey(rng, 300, 300)), ALL, size=256),
    given("size_above", folder_of(".png", lambda rng: grey(rng, 300, 300)), Refused("8 to 256 pixels"), size=257),
    given("suffix_of_another_type", folder_of(".png", EIGHT, write=saved("JPEG", quality=95)), ALL, brightens),
    given(
        "heic",
        folder_of(
            ".heic", EIGHT, write=lambda path, values: path.write_bytes(b"\0\0\0\x18ftypheic" + values.tobytes())
        ),
        Asked("--skip-broken"),
    ),
    given(
        "jpeg_cut_short",
        folder_of(
            ".jpg",
            EIGHT,
            write=lambda path, values: (Image.fromarray(values).save(path), path.write_bytes(path.read_bytes()[:-200]))[
                0
            ],
        ),
        Asked("--skip-broken", "can be read"),
    ),
)  # fmt: skip
