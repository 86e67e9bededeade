"""Read the pixels of a DICOM frame as a viewer shows them. Unrelated tags are not read.

This module applies rescale or modality LUT, then VOI LUT or window (PS3.3, C.11.1 and C.11.2), palettes, and the
inversion of MONOCHROME1. Enhanced files keep rescale and window of each frame in functional groups (PS3.3, C.7.6.16).
"""

from __future__ import annotations

import io
import re
import zlib
from typing import TYPE_CHECKING, Any, cast
from warnings import catch_warnings

import numpy as np

from obscura.errors import PackingError, Unreadable
from obscura.extras import extras
from obscura.image_types import PIXELS_MAX
from obscura.preparing.choices import NO_TAG
from obscura.preparing.depth import Numbers, Window
from obscura.preparing.sources import Pixels

if TYPE_CHECKING:
    from pydicom.dataset import Dataset
    from pydicom.tag import BaseTag

HEAD_BYTES = 132
_WHAT = "Reading DICOM files"
_NO_TEXT = ("O", "SQ", "UN")  # value representations of bytes and sequences
_DEFLATED = b"1.2.840.10008.1.2.1.99"  # the whole file after its meta group is deflated (PS3.5, A.5)
_META_BYTES_MAX = 2**16
# Names of storage classes of images. The others store descriptions of images, some as pixels: segmentations, doses,
# reports, presentation states, waveforms, documents (PS3.4, B.5).
_IMAGES = re.compile(r"Image|US Volume|Map Storage")
_DESCRIBING_MODALITIES = frozenset([
    "SEG", "SR", "PR", "KO", "RTSTRUCT", "RTPLAN", "RTDOSE", "RTRECORD", "REG", "FID", "RWV", "DOC", "ECG", "HD", "EPS",
    "AU", "PLAN", "ANN", "M3D", "ASMT", "STAIN",
])  # fmt: skip
_PIXEL_WORDS = ("PixelData", "FloatPixelData", "DoubleFloatPixelData")
_GREY, _COLOUR = ("MONOCHROME1", "MONOCHROME2"), ("RGB", "YBR_")


def begins_like_dicom(head: bytes) -> bool:
    return head[HEAD_BYTES - 4 : HEAD_BYTES] == b"DICM"


def require_reader(*tags: str | None) -> None:
    with extras(_WHAT):
        from pydicom.datadict import dictionary_has_tag, dictionary_VR
    for tag in tags:
        if tag is None or tag == NO_TAG:
            continue
        number = _tag(tag)
        if number is None or not (dictionary_has_tag(number) or number.is_private):
            raise PackingError(f"{tag!r} is not a DICOM tag: write it like PatientID or 0010,0020.")
        if dictionary_has_tag(number) and dictionary_VR(number).startswith(_NO_TEXT):
            raise PackingError(f"The values of {tag} are neither text nor numbers: name another tag.")


def _tag(text: str) -> BaseTag | None:
    from pydicom.datadict import tag_for_keyword
    from pydicom.tag import Tag

    digits = re.sub(r"[(),\s]", "", text)
    if not digits:
        return None
    number = int(digits, 16) if re.fullmatch(r"[0-9A-Fa-f]{8}", digits) else tag_for_keyword(digits)
    return None if number is None else Tag(number)


def open_dicom(data: bytes, inflated_bytes_max: int = 2**30) -> Dataset:
    """Parse a DICOM file, with or without its preamble of 128 bytes."""
    with extras(_WHAT):
        from pydicom import dcmread
        from pydicom.uid import ExplicitVRBigEndian, ExplicitVRLittleEndian, ImplicitVRLittleEndian
    try:
        if _DEFLATED in data[:_META_BYTES_MAX]:
            meta_bytes = int.from_bytes(data[HEAD_BYTES + 8 : HEAD_BYTES + 12], "little")  # PS3.10, 7.1: (0002,0000)
            stream, left = zlib.decompressobj(-zlib.MAX_WBITS), data[HEAD_BYTES + 12 + meta_bytes :]
            for _ in range(inflated_bytes_max // 2**20):
                stream.decompress(left, 2**20)
                left = stream.unconsumed_tail
                if not left or stream.eof:
                    break
            else:
                raise Unreadable(f"it has more than {inflated_bytes_max >> 20} MiB once it is inflated")
        with catch_warnings(action="ignore"):  # warnings quote tag values
            dataset = dcmread(io.BytesIO(data), force=True)
            known = "SOPClassUID" in dataset or "Rows" in dataset or begins_like_dicom(data)
            if "TransferSyntaxUID" not in dataset.file_meta:  # inferred from the encoding of the first tag
                explicit = ExplicitVRLittleEndian if dataset.original_encoding[1] else ExplicitVRBigEndian
                syntax = ImplicitVRLittleEndian if dataset.original_encoding[0] else explicit
                dataset.file_meta.TransferSyntaxUID = syntax
    except Unreadable:
        raise
    except Exception as error:  # damaged files fail in many ways
        raise Unreadable(f"it is damaged ({type(error).__name__})") from None
    if not known:
        raise Unreadable("it is not a DICOM file")
    return cast("Dataset", dataset)


def has_pixels(dataset: Dataset) -> bool:
    return any(word in dataset for word in _PIXEL_WORDS)


def describes_images(dataset: Dataset) -> bool:
    """Return whether a file is a segmentation, dose or report: it may have pixels, but describes other images."""
    from pydicom.uid import UID

    stored = UID(tag_text(dataset, "SOPClassUID")).name
    described = "Storage" in stored and not _IMAGES.search(stored)
    return described or tag_text(dataset, "Modality").upper() in _DESCRIBING_MODALITIES


def frames_of(dataset: Dataset) -> int:
    """Return the stated number of frames, at least 1."""
    try:
        return max(1, int(dataset.get("NumberOfFrames") or 1))
    except (TypeError, ValueError):
        return 1


def tag_text(dataset: Dataset, tag: str) -> str:
    from pydicom.multival import MultiValue

    with catch_warnings(action="ignore"):
        number = _tag(tag)
        element = None if number is None else dataset.get(number)
        value = getattr(element, "value", element)
        parts = list(value) if isinstance(value, MultiValue) else [value]
        return "\\".join(str(part).strip() for part in parts if part is not None)


def read_frame(dataset: Dataset, number: int = 0) -> Pixels | Numbers:
    """Return the pixels of frame `number` (from 0): grey `Numbers`, or (h, w, 3) uint8 colours."""
    if not has_pixels(dataset):
        raise Unreadable("it is a DICOM file without an image")
    try:
        with catch_warnings(action="ignore"):
            rows, columns = int(dataset.Rows), int(dataset.Columns)
            if rows * columns > PIXELS_MAX:
                raise Unreadable(f"it has {columns:,} x {rows:,} pixels, more than {PIXELS_MAX:,}")
            return _frame(dataset, number)
    except Unreadable:
        raise
    except MemoryError:
        raise Unreadable(f"it has more than {PIXELS_MAX:,} pixels") from None
    except Exception as error:  # decoders and damaged tags fail in many ways
        syntax = getattr(dataset, "file_meta", {}).get("TransferSyntaxUID")
        why = f"it is damaged ({type(error).__name__})"
        if syntax is not None and syntax.is_compressed and isinstance(error, (NotImplementedError, RuntimeError)):
            why = f"its pixels are damaged, or compressed in an unsupported way ({syntax.name})"
        raise Unreadable(why) from None


def _frame(dataset: Dataset, number: int) -> Pixels | Numbers:
    from pydicom.dataset import Dataset
    from pydicom.pixels.processing import apply_color_lut, apply_modality_lut
    from pydicom.pixels.utils import pixel_array

    kind = str(dataset.get("PhotometricInterpretation", ""))
    stored = pixel_array(dataset, index=number)
    if kind == "PALETTE COLOR":
        colours = apply_color_lut(stored, dataset)
        return _colour(colours, 8 * colours.dtype.itemsize)
    if kind.startswith(_COLOUR) and stored.ndim == 3:
        return _colour(stored, int(dataset.BitsStored))
    if kind not in _GREY or stored.ndim != 2:
        raise Unreadable(f"its pixels are of an unsupported kind ({kind or 'no PhotometricInterpretation'})")
    settings = Dataset()  # for an enhanced file, the settings of the frame
    settings.update({tag: dataset[tag] for tag in dataset.keys() if tag.group == 0x28})  # noqa: SIM118  # its values differ
    shared = list(dataset.get("SharedFunctionalGroupsSequence") or ())[:1]
    own = list(dataset.get("PerFrameFunctionalGroupsSequence") or ())[number : number + 1]
    for group in (*shared, *own):
        for word in ("PixelValueTransformationSequence", "FrameVOILUTSequence"):
            for item in list(group.get(word) or ())[:1]:
                settings.update(item)
    if not settings.get("ModalityLUTSequence") and settings.get("RescaleSlope") == 0:
        raise Unreadable("its RescaleSlope is 0, so all of its pixels are equal")
    values = apply_modality_lut(stored, settings)

    ends: Window | None = None  # values of the smallest and the largest storable number
    if stored.dtype.kind != "f" and settings.get("ModalityLUTSequence"):
        ends = 0, 2 ** int(settings.ModalityLUTSequence[0].LUTDescriptor[2]) - 1
    elif stored.dtype.kind != "f":
        half = 2 ** (int(settings.BitsStored) - 1)
        low, high = (-half, half - 1) if settings.PixelRepresentation else (0, 2 * half - 1)
        slope, intercept = settings.get("RescaleSlope"), settings.get("RescaleIntercept")
        if slope is not None and intercept is not None:
            low, high = (float(slope) * end + float(intercept) for end in (low, high))
        ends = low, high
    limits = None if ends is None else (min(ends), max(ends))
    inverted = kind == "MONOCHROME1"
    integers = limits is not None and limits[0] == 0 and values.dtype.kind in "iu"
    return Numbers(values, limits, _own(values, settings, ends), inverted, integers)


def _colour(pixels: np.ndarray[Any, Any], bits: int) -> Pixels:
    if bits != 8:
        pixels = np.rint(pixels.astype(np.float64) * 255 / (2**bits - 1))
    return np.ascontiguousarray(pixels[..., :3], np.uint8)


def _own(values: np.ndarray[Any, Any], settings: Dataset, ends: Window | None) -> Numbers | None:
    from pydicom.multival import MultiValue
    from pydicom.pixels.processing import apply_voi, apply_windowing

    tables = settings.get("VOILUTSequence")
    if tables and None not in [tables[0].get(word) for word in ("LUTDescriptor", "LUTData")]:
        return Numbers(apply_voi(values, settings, 0), (0, 2 ** int(tables[0].LUTDescriptor[2]) - 1))
    width = settings.get("WindowWidth")
    first = width[0] if isinstance(width, MultiValue) and width else width
    if ends is None or settings.get("WindowCenter") is None or not isinstance(first, float | int) or first < 1:
        return None  # PS3.3, C.11.2.1.2: a window has a width of 1 or more
    return Numbers(apply_windowing(values, settings, 0), ends)  # with a negative slope the ends are reversed
