"""What draws without our libraries reads what theirs write, and writes what theirs read."""

import io

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from models.portable.drawing import draw, png, read_tensors
from tests.models.checks import stream
from tests.models.test_released import affine


def test_tensors_are_read_as_safetensors_writes_them(tmp_path):
    written = {
        "a": torch.randn(2, 3, generator=stream(1)),
        "b": torch.arange(5),
        "c": torch.randn(4, generator=stream(2), dtype=torch.float64),
        "empty": torch.zeros(3, 0),
        "scalar": torch.tensor(2.5),
    }
    save_file(written, tmp_path / "x.safetensors", metadata={"a": "b"})
    found = read_tensors(tmp_path / "x.safetensors")
    assert found.keys() == written.keys()
    for name, tensor in written.items():
        assert found[name].dtype == tensor.dtype
        assert found[name].shape == tensor.shape
        assert torch.equal(found[name], tensor)


def test_a_type_that_no_release_has_is_refused(tmp_path):
    save_file({"a": torch.zeros(2, dtype=torch.bfloat16)}, tmp_path / "x.safetensors")
    with pytest.raises(ValueError, match="BF16"):
        read_tensors(tmp_path / "x.safetensors")


@pytest.mark.parametrize("channels", [1, 3])
def test_a_picture_is_a_png(channels):
    pixels = torch.randint(0, 256, (5, 7, channels), generator=stream(1), dtype=torch.uint8)
    picture = Image.open(io.BytesIO(png(pixels)))
    picture.load()
    assert picture.mode == ("L" if channels == 1 else "RGB")
    assert np.array_equal(np.asarray(picture).reshape(5, 7, channels), pixels.numpy())


def test_drawing_leaves_the_number_of_threads_as_it_was():
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        drawing = draw(affine().eval(), 4)
        images, _ = next(drawing)
        assert images.shape == (4, 8, 8, 1)
        assert torch.get_num_threads() == 3
        assert not torch.is_inference_mode_enabled()
    finally:
        torch.set_num_threads(threads)
