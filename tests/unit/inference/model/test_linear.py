"""The matrix product that no batch changes."""

from __future__ import annotations

import pytest
import torch

from inference.model.linear import ROWS_MIN, Linear

SHAPES = [(192, 64), (96, 1536), (512, 96)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_row_is_the_same_in_any_batch(shape: tuple[int, int], dtype: torch.dtype) -> None:
    """From `ROWS_MIN` rows on, each row is bit for bit what it is among 300."""
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(shape, generator=generator).to(dtype)
    x = torch.randn(300, shape[1], generator=generator).to(dtype)
    other = torch.randn(300, shape[0], generator=generator).to(dtype)
    linear = Linear(weight, torch.randn(shape[0], generator=generator).to(dtype))
    forms = (
        linear(x),
        linear.silu(x),
        linear.times(x, other),
        linear.plus(x, other),
    )
    for rows in (ROWS_MIN, 3, 5, 16, 31, 64, 129):
        part, others = x[:rows], other[:rows]
        found = (
            linear(part),
            linear.silu(part),
            linear.times(part, others),
            linear.plus(part, others),
        )
        for whole, small in zip(forms, found, strict=True):
            assert torch.equal(whole[:rows], small), rows


def test_the_fused_forms_are_what_they_say() -> None:
    """SiLU, product and sum follow the matrix product."""
    x, weight, bias = torch.randn(4, 48), torch.randn(32, 48), torch.randn(32)
    other = torch.randn(4, 32)
    linear, plain = Linear(weight, bias), x @ weight.T + bias
    torch.testing.assert_close(linear(x), plain)
    torch.testing.assert_close(linear.silu(x), torch.nn.functional.silu(plain))
    torch.testing.assert_close(linear.times(x, other), plain * other)
    torch.testing.assert_close(linear.plus(x, other), plain + other)


def test_it_works_without_onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without the fast layout computes the same numbers the plain way."""
    x, weight, other = torch.randn(4, 48), torch.randn(32, 48), torch.randn(4, 32)
    fast = Linear(weight)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    plain = Linear(weight)
    torch.testing.assert_close(plain(x), fast(x))
    torch.testing.assert_close(plain.silu(x), fast.silu(x))
    torch.testing.assert_close(plain.times(x, other), fast.times(x, other))
    torch.testing.assert_close(plain.plus(x, other), fast.plus(x, other))
