"""Attention over pages, with the GPU's kernels written out or compiled for this machine's CPU."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
import torch

from inference.model.attention import TiledAttention
from inference.model.config import config_from_hf
from inference.model.cuda_attention import (
    FlexAttention,
    VarlenAttention,
    choose_attention,
    distance,
)
from tests.support.tiny_models import LLAMA
from tests.support.varlen_reference import varlen_reference

TINY = config_from_hf(LLAMA, {})
CPU = torch.device("cpu")


def _tiles(block_size: int, dtype: torch.dtype = torch.float32) -> TiledAttention:
    return TiledAttention(3, block_size, dtype, CPU)


@pytest.fixture(autouse=True)
def _varlen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", varlen_reference)


@pytest.mark.parametrize("windows", [(None, None), (50, None)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_varlen_reads_what_the_tiles_read(
    windows: tuple[int | None, ...], dtype: torch.dtype
) -> None:
    """Decodes at the ends of pages and a chunk across them, with and without a sliding window."""
    config = replace(TINY, layer_windows=windows)
    tiles = _tiles(256, dtype)
    found = distance(VarlenAttention(tiles), config, tiles, dtype)
    assert found < {torch.float32: 1e-5, torch.bfloat16: 3e-2}[dtype]


def test_the_kernel_that_fits_is_chosen_and_named(caplog: pytest.LogCaptureFixture) -> None:
    """With pages of 256 tokens FlashAttention computes."""
    caplog.set_level(logging.INFO)
    chosen = choose_attention(TINY, _tiles(256), torch.float32)
    assert isinstance(chosen, VarlenAttention)
    assert "attention is computed by VarlenAttention" in caplog.text


def test_kernels_that_refuse_or_err_are_passed_over(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page that FlashAttention refuses and a kernel that reads wrongly leave the tiles; the log says why."""
    caplog.set_level(logging.INFO)

    def wrong(queries: torch.Tensor, *_keys: torch.Tensor, block_mask: object) -> torch.Tensor:
        assert block_mask is not None
        return torch.zeros_like(queries)

    monkeypatch.setattr(torch, "compile", lambda _kernel, **_options: wrong)
    tiles = _tiles(64)
    assert choose_attention(TINY, tiles, torch.float32) is tiles
    assert "not with VarlenAttention: Paged KV cache block size must be divisible" in caplog.text
    assert "not with FlexAttention: it is" in caplog.text
    assert "attention is computed in tiles" in caplog.text


def test_keys_of_another_type_are_the_tiles_business(caplog: pytest.LogCaptureFixture) -> None:
    """What a backend raises, whatever it is, ends in the log and not in the start."""

    class Broken(VarlenAttention):
        def __init__(self, tiles: TiledAttention) -> None:
            raise ImportError("no such module\nand a long story")

    caplog.set_level(logging.INFO)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("inference.model.cuda_attention.BACKENDS", (Broken,))
        tiles = _tiles(64)
        assert choose_attention(TINY, tiles, torch.float32) is tiles
    assert "not with Broken: no such module" in caplog.text
    assert "long story" not in caplog.text


@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore")  # of the compiler's own modules
@pytest.mark.parametrize("windows", [(None, None), (50, None)])
def test_flex_reads_what_the_tiles_read(windows: tuple[int | None, ...]) -> None:
    """Compiled for the CPU, the pages' lists and masks say the same as the tiles."""
    config = replace(TINY, layer_windows=windows)
    tiles = _tiles(64)
    assert distance(FlexAttention(tiles), config, tiles, torch.float32) < 1e-5
