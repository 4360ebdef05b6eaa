"""The pool of keys and values."""

from __future__ import annotations

import pytest
import torch

from inference.engine.plan import BlockCopy
from inference.model.kv_cache import GIB, KvCache, blocks_that_fit, kv_dtype
from tests.unit.inference.model.test_attention import CPU, _config


def test_what_is_written_is_read_in_table_order() -> None:
    """Rows come back by block table, split into keys and values, one head after the other."""
    config = _config()
    cache = KvCache(config, 4, 16, torch.float32, CPU)
    rows = torch.randn(32, config.kv_token_size)
    slots = torch.cat([torch.arange(48, 64), torch.arange(16, 32)])
    cache.write(1, slots, rows)
    keys, values = cache.read(1, torch.tensor([[3, 1]]), torch.float32)
    expected = rows.view(32, 2, config.kv_head_count, config.head_dim)
    assert torch.equal(keys[0], expected[:, 0].transpose(0, 1))
    assert torch.equal(values[0], expected[:, 1].transpose(0, 1))


def test_layers_do_not_share() -> None:
    """A write in one layer leaves the others zero."""
    cache = KvCache(_config(), 2, 16, torch.float32, CPU)
    cache.write(0, torch.tensor([5]), torch.ones(1, _config().kv_token_size))
    keys, values = cache.read(1, torch.tensor([[0, 1]]), torch.float32)
    assert not keys.any()
    assert not values.any()


@pytest.mark.parametrize("name", ["fp16", "bf16"])
def test_a_half_size_cache_keeps_values_rounded(name: str) -> None:
    """Kept in half precision, read back in what the model computes in."""
    dtype = kv_dtype(name, torch.float32)
    cache = KvCache(_config(), 1, 16, dtype, CPU)
    rows = torch.randn(1, _config().kv_token_size)
    cache.write(0, torch.tensor([0]), rows)
    keys, _ = cache.read(0, torch.tensor([[0]]), torch.float32)
    size = _config().kv_head_count * _config().head_dim
    assert keys.dtype == torch.float32
    assert torch.equal(keys[0, :, 0].flatten(), rows[0, :size].to(dtype).float())


def test_blocks_that_fit() -> None:
    """So many that one more would not fit; never none."""
    config, block = _config(), 16
    size = config.layer_count * block * config.kv_token_size * 4
    count = blocks_that_fit(config, block, torch.float32, 0.01)
    assert count * size <= 0.01 * GIB < (count + 1) * size
    assert blocks_that_fit(config, block, torch.float32, 1e-9) == 1
    assert blocks_that_fit(config, block, torch.float32, 0) == 0


def test_auto_is_what_the_model_computes_in() -> None:
    """`auto` follows the model."""
    assert kv_dtype("auto", torch.bfloat16) == torch.bfloat16


def test_blocks_go_to_the_cpu_tier_and_back_unchanged() -> None:
    """Saved, overwritten, and loaded into another block: the same bits in every layer."""
    config = _config()
    cache = KvCache(config, 3, 16, torch.bfloat16, CPU, cold_blocks=2)
    for layer in range(config.layer_count):
        cache.write(layer, torch.arange(16), torch.randn(16, config.kv_token_size))
    before = [cache.read(layer, torch.tensor([[0]]), torch.float32) for layer in (0, 1)]
    cache.copy([BlockCopy(0, 1, save=True)])
    for layer in range(config.layer_count):
        cache.write(layer, torch.arange(16), torch.zeros(16, config.kv_token_size))
    cache.copy([BlockCopy(0, 0, save=True), BlockCopy(2, 1, save=False)])
    for layer, expected in enumerate(before):
        found = cache.read(layer, torch.tensor([[2]]), torch.float32)
        assert torch.equal(found[0], expected[0])
        assert torch.equal(found[1], expected[1])
    assert not cache.read(0, torch.tensor([[0]]), torch.float32)[0].any()
