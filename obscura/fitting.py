"""Fit one decoded image to a dataset: upright, on white, at the dataset's size and in its colour mode.

The client and the confined process of the service share these rules, so an image has the same pixels whichever of them
converts it.
"""

from __future__ import annotations

from PIL import Image, ImageOps

from obscura.wire.formats import UploadFit

GREY_MODES = frozenset({"1", "L", "LA"})
PLAIN_MODES = GREY_MODES | {"P", "PA", "RGB", "RGBA"}
READ_MODES = PLAIN_MODES | {"CMYK", "YCbCr", "HSV", "RGBX", "RGBa"}
_ORIENTATION_TAG = 0x0112
_TURNS = {  # EXIF 2.32, tag 274: the transformation that brings each orientation upright
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_LYING = frozenset(_TURNS[orientation] for orientation in (5, 6, 7, 8))


def turn_of(image: Image.Image) -> Image.Transpose | None:
    """Return the transformation that brings an image upright, by its EXIF orientation; None if it is upright."""
    try:
        return _TURNS.get(int(image.getexif().get(_ORIENTATION_TAG, 1)))
    except Exception:  # ignore damaged metadata; the pixels are complete
        return None


def upright_size(size: tuple[int, int], turn: Image.Transpose | None) -> tuple[int, int]:
    """Return (width, height) after `turn`."""
    return size[::-1] if turn in _LYING else size


def decode_small(image: Image.Image, size: tuple[int, int], turn: Image.Transpose | None) -> None:
    """Make the decoder of a large JPEG reduce it to about twice `size`, its upright size. Call before decoding."""
    image.draft(image.mode, upright_size((2 * size[0], 2 * size[1]), turn))


def is_transparent(image: Image.Image) -> bool:
    """Return whether an image of eight bits has pixels that are not opaque."""
    if image.mode not in ("LA", "PA", "RGBA", "RGBa") and "transparency" not in image.info:
        return False
    lowest, _ = image.convert("RGBA").getchannel("A").getextrema()
    return bool(isinstance(lowest, int | float) and lowest < 255)


def flatten(image: Image.Image) -> Image.Image:
    """Return an image of eight bits as L or RGB, on a white background."""
    if is_transparent(image):
        ground = Image.new("RGBA", image.size, "white")
        ground.alpha_composite(image.convert("RGBA"))
        return ground.convert("RGB")
    return image.convert("L" if image.mode in GREY_MODES else "RGB")


def fit(
    flat: Image.Image, turn: Image.Transpose | None, size: tuple[int, int], channels: int, how: UploadFit = "crop"
) -> Image.Image:
    """Return a flat image upright, at `size` (width, height), as L for one channel or RGB for three.

    Args:
        how: "crop" fills the size and crops equally on both sides; "pad" shows the whole image on white.
    """
    upright = flat if turn is None else flat.transpose(turn)
    if upright.size != size:
        if how == "pad":
            upright = ImageOps.pad(upright, size, Image.Resampling.LANCZOS, color="white")
        else:
            upright = ImageOps.fit(upright, size, Image.Resampling.LANCZOS)
    fitted = upright.convert("L" if channels == 1 else "RGB")
    fitted.info = {}  # no profile, no text, no transparency
    return fitted
