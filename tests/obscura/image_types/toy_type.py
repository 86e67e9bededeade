"""A type of images that nobody has, and Pillow does not read: "TOY!", a byte for each side, gray pixels."""

from PIL import Image

from obscura.image_types import ImageType


def size(data: bytes) -> tuple[int, int]:
    return data[4], data[5]


def decode(data: bytes) -> Image.Image:
    return Image.frombytes("L", size(data), data[6:])


TOY = ImageType("TOY", (".toy",), lambda data: data.startswith(b"TOY!"), size, decode=decode)
