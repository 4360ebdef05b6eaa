"""Products with weights of 8 and 4 bits."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from inference.model.errors import ModelLoadError
from inference.model.quantized import int4_linear, int8_linear
from inference.native.weights import GROUP, quantize

KINDS = pytest.mark.parametrize("make", [int8_linear, int4_linear], ids=["int8", "int4"])
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])


def _random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


@KINDS
@DTYPES
@pytest.mark.parametrize("shape", [(192, 64), (96, 1536), (512, 96)], ids=str)
def test_a_row_is_the_same_in_any_batch(
    make: type, dtype: torch.dtype, shape: tuple[int, int]
) -> None:
    """One row alone and any number of rows are bit for bit what they are among 300."""
    linear = make(_random(*shape).to(dtype), _random(shape[0]).to(dtype))
    x = _random(300, shape[1]).to(dtype)
    whole = linear(x)
    for first, last in ((0, 1), (0, 2), (7, 10), (3, 19), (0, 31), (90, 154), (0, 129)):
        assert torch.equal(linear(x[first:last]), whole[first:last]), (first, last)


def test_eight_bits_are_near() -> None:
    """No product is further away than half a step of every weight allows."""
    weight, x = _random(64, 96), _random(5, 96)
    step = weight.abs().amax(1) / 127
    bound = x.abs().sum(1)[:, None] * step / 2
    assert ((int8_linear(weight)(x) - x @ weight.T).abs() <= bound * 1.001).all()


def test_four_bits_are_the_levels_of_the_native_step() -> None:
    """Both backends compute with the same 4-bit weights."""
    weight, x = _random(64, 96), _random(5, 96)
    kept = torch.from_numpy(quantize(weight.numpy(), 4).values())
    torch.testing.assert_close(int4_linear(weight)(x), x @ kept.T, rtol=1e-4, atol=1e-4)


@KINDS
def test_rows_and_groups_of_zeros_stay_zero(make: type) -> None:
    """Nothing divides by a scale of zero."""
    weight = _random(32, 64)
    weight[3], weight[4, :GROUP] = 0, 0
    x = torch.zeros(2, 64)
    x[:, :GROUP] = 1
    assert not make(weight)(x)[:, 3:5].any()


@KINDS
def test_what_follows_the_product(make: type) -> None:
    """SiLU, product and sum are those of the product with its bias."""
    x, bias, other = _random(4, 64), _random(32), _random(4, 32)
    linear = make(_random(32, 64), bias)
    plain = make(_random(32, 64))(x) + bias
    assert torch.equal(linear(x), plain)
    assert torch.equal(linear.silu(x), F.silu(plain))
    assert torch.equal(linear.times(x, other), plain * other)
    assert torch.equal(linear.plus(x, other), plain + other)


@pytest.mark.parametrize("shape", [(24, 64), (32, 48)], ids=str)
def test_four_bits_want_whole_groups(shape: tuple[int, int]) -> None:
    """A size that the kernel does not take is named, with what to use."""
    with pytest.raises(ModelLoadError, match=f"{shape[0]} x {shape[1]}; use --quantize int8"):
        int4_linear(_random(*shape))
