"""bfloat16 is used exactly where it is said to be fast, and nowhere else."""

import pytest
import torch

from models.precision import bfloat16_is_fast, mixed_precision


@pytest.mark.parametrize(
    "device",
    [
        "cpu",
        torch.device("cpu"),
        pytest.param(
            "cuda",
            marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")],
        ),
    ],
)
def test_products_have_the_precision_that_was_promised(device):
    ones = torch.ones(4, 4, device=device)
    with mixed_precision(device):
        product = ones @ ones
    fast = bfloat16_is_fast(torch.device(device).type)
    assert product.dtype == (torch.bfloat16 if fast else torch.float32)
    assert (ones @ ones).dtype == torch.float32
    assert torch.equal(product.float(), torch.full_like(ones, 4.0))
