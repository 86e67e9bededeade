"""More than eight bits: white is what is stated, the same for all images, and nobody reads it off them."""

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from benchmarks.intake.builders.images import tiff_of
from obscura.image_types import PNG_MAGIC
from obscura.preparing import ChoiceNeeded, PackingError, prepare
from obscura.preparing.choices import Choices
from obscura.preparing.depth import FORMAT_SCALE, Scale, read_scale
from obscura.preparing.images import Target, look, prepare_image
from tests.obscura.preparing.conftest import assert_refused, deep_png, dicom_file, flags_asked
from tests.pictures import saved, write_files

SIDE = 16
RAMP = np.arange(SIDE * SIDE, dtype=np.uint16).reshape(SIDE, SIDE) * 16  # 0 to 4,080


def tiff(values: np.ndarray, white: int = 1, sample: int = 1) -> bytes:
    return tiff_of(values, 8 * values.itemsize, sample, white)


def shown(content: bytes, scale: Scale = FORMAT_SCALE, side: int = SIDE) -> np.ndarray:
    _, png = prepare_image(content, Target(side, side, 1, scale))
    return np.asarray(Image.open(io.BytesIO(png)))


def folder(root: Path, *files: bytes) -> Path:
    def suffix(content: bytes) -> str:
        return ".dcm" if content[128:132] == b"DICM" else ".png" if content.startswith(PNG_MAGIC) else ".tif"

    return write_files(
        root, {f"{'ab'[place % 2]}/{place}{suffix(content)}": content for place, content in enumerate(files)}
    )


TWELVE, SIXTEEN, EIGHT = saved(RAMP), saved(RAMP * 16), saved((RAMP // 16).astype(np.uint8))
SIGNED, MEASURED = tiff(RAMP.astype(np.int16) - 1024, sample=2), tiff((RAMP / 4080).astype("f4"), 1, 3)


def test_a_stated_depth_or_window_is_what_becomes_white():
    assert np.abs(shown(TWELVE, Scale(depth=12)) - RAMP / 4095 * 255).max() <= 0.5
    assert (shown(TWELVE, Scale(window=(0, 4095))) == shown(TWELVE, Scale(depth=12))).all()
    assert np.abs(shown(SIXTEEN) - RAMP * 16 / 257).max() <= 0.5
    windowed = shown(TWELVE, Scale(window=(1000, 2000))).astype(int)
    assert (windowed[RAMP <= 1000] == 0).all()
    assert (windowed[RAMP >= 2000] == 255).all()
    assert len(np.unique(windowed)) > 50


@pytest.mark.parametrize("kind", ["i2", "i4", "f4", "i1"])
def test_signed_and_measured_values_take_the_stated_window(kind):
    values = np.linspace(-100, 100, SIDE * SIDE).reshape(SIDE, SIDE).astype(kind)
    content = tiff(values, sample=3 if kind == "f4" else 2)
    assert np.abs(shown(content, Scale(window=(-50, 50))) - (values.clip(-50, 50) + 50.0) * 2.55).max() <= 0.51


@pytest.mark.parametrize("kind", ["u2", "u1"])
def test_images_whose_white_is_zero_are_inverted_at_every_depth(kind):
    most = np.iinfo(kind).max
    values = (np.linspace(0, 1, SIDE * SIDE).reshape(SIDE, SIDE) * most).astype(kind)
    assert np.abs(shown(tiff(values, white=0)) - (255 - values / most * 255)).max() <= 1
    assert np.abs(shown(tiff(values)) - values / most * 255).max() <= 1


@pytest.mark.parametrize(
    ("files", "flags"),
    [
        ([TWELVE, TWELVE], ("--depth 12",)),
        ([saved(RAMP // 4), saved(RAMP)], ("--depth 12",)),
        ([SIXTEEN, TWELVE], ("--depth 12",)),
        ([SIXTEEN, EIGHT], ("--depth 12",)),
        ([deep_png(np.dstack([RAMP] * 3))] * 2, ("--depth 16",)),
        ([SIGNED, SIGNED], ("--window -1024,3071",)),
        ([MEASURED, MEASURED], ("--window 0,1",)),
        ([tiff((RAMP / 7).astype("f4"), 1, 3)] * 2, ("--window -1024,3071",)),
        ([tiff(RAMP.astype("f4") * 9, 1, 3)] * 2, ("--window LOW,HIGH",)),
        ([SIXTEEN, MEASURED], ("--window LOW,HIGH",)),
        ([tiff(RAMP.astype("u4"))] * 2, ("--depth 12",)),
    ],
)
def test_where_a_guess_would_destroy_images_their_owner_is_asked(tmp_path, files, flags):
    assert flags_asked(prepare, folder(tmp_path, *files)) == flags


@pytest.mark.parametrize(
    ("files", "scale"),
    [
        ([deep_png(np.dstack([RAMP * 16] * 3)), EIGHT], FORMAT_SCALE),
        ([SIGNED, MEASURED], Scale(window=(-1024, 3071))),
        ([TWELVE, SIGNED], Scale(window=(0, 3071))),
        ([saved(np.zeros((SIDE, SIDE), np.uint16)), SIXTEEN], FORMAT_SCALE),
    ],
)
def test_what_is_known_or_stated_passes(tmp_path, files, scale):
    assert prepare(folder(tmp_path, *files), Choices(depth=scale.depth, window=scale.window)).private_records == 2


NOISE = np.random.default_rng(3)
TISSUE = NOISE.normal(60, 60, (2, 64, 64)).astype(np.int32)  # Hounsfield units
CT = np.where(np.arange(64) < 20, -1000, TISSUE)
DIM = (NOISE.gamma(2, 100, (2, 64, 64)) + 300).astype(np.uint16)  # a few hundred of 65,536, and hot pixels
DIM[:, :2, :2] = NOISE.integers(0, 65536, (2, 2, 2))
DIM[:, 0, 0], DIM[:, 0, 1] = 0, 65535


def offset_ct(offset: int) -> list[bytes]:
    return [saved((values + offset).astype(np.uint16)) for values in CT]


@pytest.mark.parametrize(
    ("files", "window"),
    [
        (offset_ct(32768), "32640,33024"),
        ([tiff((values * 8 + 32768).astype(np.uint16)) for values in TISSUE], "31744,35839"),
        (offset_ct(40000), "39808,40320"),
        ([saved(values) for values in DIM], "256,1024"),
        ([dicom_file(values) for values in DIM], "256,1024"),
        ([tiff(values.astype("u4") * 65536) for values in DIM], "16777216,67108864"),
    ],
)
def test_a_window_is_proposed_where_few_grey_levels_would_be_left(tmp_path, files, window):
    assert flags_asked(prepare, folder(tmp_path, *files)) == (f"--window {window}",)
    package = prepare(tmp_path, Choices(window=window, size=64, grey=True))
    images = [shown(content, Choices(window=window).scale, 64) for content in files]
    assert package.private_records == 2
    assert len(np.unique(images)) > 30


def test_few_levels_through_the_windows_of_the_files_are_asked_about(tmp_path):
    wide = [dicom_file(values, WindowCenter=32767, WindowWidth=65535) for values in DIM]
    assert flags_asked(prepare, folder(tmp_path / "wide", *wide)) == ("--window LOW,HIGH",)
    assert prepare(tmp_path / "wide", Choices(window="auto")).private_records == 2
    narrow = [dicom_file(values, WindowCenter=600, WindowWidth=1000) for values in DIM]
    assert prepare(folder(tmp_path / "narrow", *narrow), Choices()).private_records == 2


def test_an_offset_of_colour_images_is_asked_about(tmp_path):
    colours = NOISE.integers(40000, 50000, (2, 16, 16, 3)).astype(np.uint16)
    assert flags_asked(prepare, folder(tmp_path, *map(deep_png, colours))) == ("--depth 16",)
    assert prepare(tmp_path, Choices(depth=16)).private_records == 2


@pytest.mark.parametrize(
    "values",
    [
        np.full((64, 64), 65535, np.uint16),
        np.arange(64 * 64, dtype=np.uint16).reshape(64, 64) // 400 * 5900,  # a drawing in eleven greys
        np.where(NOISE.random((64, 64)) < 0.8, 0, NOISE.integers(0, 65536, (64, 64))).astype(np.uint16),
        (NOISE.integers(0, 256, (64, 64)) * 257).astype(np.uint16),  # eight bits, saved as sixteen
        (NOISE.beta(4, 4, (64, 64)) * 65535).astype(np.uint16),
        *(dull.astype(np.uint8) for dull in (np.full((9, 9), 3), np.eye(9) * 255, np.arange(9)[None] + 99)),
    ],
)
def test_drawings_images_with_contrast_and_those_of_eight_bits_are_not_asked_about(tmp_path, values):
    assert prepare(folder(tmp_path, saved(values), saved(np.flipud(values).copy())), Choices()).private_records == 2


def test_the_question_names_no_number_of_the_images(tmp_path):
    with pytest.raises(ChoiceNeeded) as needed:
        prepare(folder(tmp_path, TWELVE, TWELVE))
    assert not {"4080", "4,080"} & set(str(needed.value).split())


@pytest.mark.parametrize(
    ("files", "scale", "says"),
    [
        ([deep_png(np.dstack([RAMP] * 3))] * 2, Scale(depth=12), "eight bits per channel first"),
        ([tiff(np.full((SIDE, SIDE), np.nan, "f4"), 1, 3)] * 2, Scale(window=(0, 1)), "not numbers"),
    ],
)
def test_what_does_not_go_with_the_images_is_refused(tmp_path, files, scale, says):
    assert_refused(folder(tmp_path, *files), says, Choices(depth=scale.depth, window=scale.window))


NO_WINDOWS = ["", "5", "5,4", "3,3", "a,b", "0,inf", "1,2,3", "nan,3", (4, 1)]
NO_DEPTHS = [0, 8, 33, "twelve", "", -12]


@pytest.mark.parametrize(("depth", "window"), [*((None, no) for no in NO_WINDOWS), *((no, None) for no in NO_DEPTHS)])
def test_depths_and_windows_that_are_none(depth, window):
    with pytest.raises(PackingError, match="`window`" if depth is None else "`depth`"):
        read_scale(depth, window)


def test_what_is_stated_is_read():
    assert read_scale("12", None) == read_scale(12, None) == Scale(depth=12)
    assert read_scale(None, " -160, 240 ") == read_scale(None, (-160, 240)) == Scale(window=(-160, 240))
    assert read_scale(None, "auto").window == "auto"
    with pytest.raises(PackingError, match="`depth` or `window`"):
        read_scale(12, "0,5")


def test_a_transparent_number_of_sixteen_bits_is_laid_on_white():
    values = RAMP * 16
    content = saved(values, transparency=int(values[3, 3]))
    seen = look(content)
    assert (seen.transparent, seen.depth is None) == (True, False)
    _, png = prepare_image(content, Target(SIDE, SIDE, 3))
    pixels = np.asarray(Image.open(io.BytesIO(png)))
    assert tuple(pixels[3, 3]) == (255, 255, 255)
    assert tuple(pixels[3, 4]) == (round(values[3, 4] / 257),) * 3


def test_the_words_of_the_command_line_reach_the_images(tmp_path):
    assert prepare(folder(tmp_path, TWELVE, TWELVE), Choices(depth="12")).private_records == 2
    assert Choices(window="-1,2").scale == Scale(window=(-1, 2))
    for other in ({"label_tag": "Modality"}, {"subject_tag": "none"}, {"frames": "all"}, {"slices": "axial"}):
        with pytest.raises(PackingError, match=r"DICOM|NIfTI"):
            prepare(folder(tmp_path, TWELVE, TWELVE), Choices(**other))  # type: ignore[arg-type]
