"""Paged attention of a ragged batch."""

from __future__ import annotations

import pytest
import torch

from inference.engine.plan import PlanRow
from inference.model.attention import SLOT_STEP, TILE_TOKENS, Grouping, attend, slots_read
from inference.model.config import ModelConfig
from inference.model.kv_cache import KvCache
from seedance.protocol.request import Sampling

KV_HEADS, GROUP, DIM, BLOCK, TOKENS = 2, 3, 16, 16, 700
WINDOWS = (None, 1, 40, 300, 2000)
FOREIGN = 99  # a block of another sequence, full of what would be seen in any sum
CPU = torch.device("cpu")


def _config() -> ModelConfig:
    return ModelConfig(
        architecture="llama",
        vocab_size=1,
        hidden_size=KV_HEADS * GROUP * DIM,
        mlp_size=1,
        layer_count=2,
        head_count=KV_HEADS * GROUP,
        kv_head_count=KV_HEADS,
        head_dim=DIM,
        norm_eps=1e-5,
        rope_base=1e4,
        rope_divisors=(1.0,) * (DIM // 2),
        context_length=1024,
        tied_head=True,
        eos_token_ids=frozenset(),
        layer_windows=(None, None),
        qk_norm=False,
    )


class Paged:
    """Random queries, keys and values of one sequence of 700 tokens, in scattered blocks."""

    def __init__(self, dtype: torch.dtype, window: int | None = None) -> None:
        self.window = window
        generator = torch.Generator().manual_seed(4)
        self.queries = torch.randn(TOKENS, KV_HEADS, GROUP, DIM, generator=generator).to(dtype)
        self.rows = torch.randn(TOKENS, 2 * KV_HEADS * DIM, generator=generator).to(dtype)
        self.cache = KvCache(_config(), 100, BLOCK, dtype, CPU)
        self.table = torch.randperm(90, generator=generator)[: -(-TOKENS // BLOCK)].tolist()
        places = torch.arange(TOKENS)
        slots = torch.tensor(self.table)[places // BLOCK] * BLOCK + places % BLOCK
        self.cache.write(1, slots, self.rows)
        foreign = torch.arange(FOREIGN * BLOCK, (FOREIGN + 1) * BLOCK)
        self.cache.write(1, foreign, torch.full((BLOCK, self.rows.shape[1]), torch.nan).to(dtype))

    def row(self, start: int, end: int) -> PlanRow:
        """The plan of a chunk of the sequence."""
        table = self.table[: -(-end // BLOCK)]
        if self.window:  # what left the window is somebody else's
            gone = max(0, start + 1 - self.window) // BLOCK
            table[:gone] = [FOREIGN] * gone
        sampling = Sampling()
        return PlanRow(0, list(range(start, end)), start, table, True, sampling, 0, 0, [], [])

    def read(self, *chunks: tuple[int, int]) -> list[torch.Tensor]:
        """What each chunk's tokens read, all chunks in one step."""
        grouping = Grouping(self.window, GROUP, BLOCK, self.queries.dtype, CPU)
        groups = grouping([self.row(*chunk) for chunk in chunks])
        queries = torch.cat([self.queries[start:end] for start, end in chunks])
        if len(queries) == 1:  # as a step lays it out
            queries = torch.cat([queries, queries])
        found = attend(queries, 1, groups, self.cache)
        sizes = [end - start for start, end in chunks]
        return list(found[: sum(sizes)].split(sizes))


@pytest.mark.parametrize("window", WINDOWS)
def test_it_is_causal_attention(window: int | None) -> None:
    """A token reads what a softmax over what it sees says, written out."""
    paged = Paged(torch.float32, window)
    keys, values = (part.view(TOKENS, KV_HEADS, DIM) for part in paged.rows.chunk(2, dim=1))
    (found,) = paged.read((120, 290))
    for position in (120, 127, 128, 200, 289):
        for head in range(KV_HEADS * GROUP):
            query = paged.queries[position, head // GROUP, head % GROUP]
            seen = slice(max(0, position + 1 - window) if window else 0, position + 1)
            weights = torch.softmax(keys[seen, head // GROUP] @ query / DIM**0.5, 0)
            expected = weights @ values[seen, head // GROUP]
            part = found[position - 120, head * DIM : (head + 1) * DIM]
            torch.testing.assert_close(part, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("chunk", [1, 5, 16, 43, 128])
def test_no_chunking_changes_a_token(chunk: int, window: int | None, dtype: torch.dtype) -> None:
    """Cut anyhow, every token of the sequence reads the same numbers, bit for bit."""
    paged = Paged(dtype, window)
    (whole,) = paged.read((0, TOKENS))
    step = 1 if chunk > 1 else 7
    for start in range(0, TOKENS, chunk * step):
        end = min(start + chunk, TOKENS)
        (found,) = paged.read((start, end))
        assert torch.equal(found, whole[start:end]), start


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("window", WINDOWS)
def test_no_company_changes_a_token(window: int | None, dtype: torch.dtype) -> None:
    """Decodes of every length and chunks in one step read what each reads alone."""
    paged = Paged(dtype, window)
    chunks = [(position, position + 1) for position in (0, 1, 127, 128, 400, 511, 512, 699)]
    chunks += [(60, 110), (0, 33), (500, 650)]
    for chunk, found in zip(chunks, paged.read(*chunks), strict=True):
        assert torch.equal(found, paged.read(chunk)[0]), chunk


def test_slots_cover_and_waste_little() -> None:
    """What is read reaches the token, is whole blocks, and less than a third of it is padding."""
    for position in range(40_000):
        read = slots_read(position, None, BLOCK)
        assert read.start == 0
        assert read.stop > position
        assert len(read) % SLOT_STEP == 0
        if position >= 4 * SLOT_STEP:
            assert len(read) - (position + 1) < len(read) / 3


@pytest.mark.parametrize("window", [1, 100, 512, 4096])
@pytest.mark.parametrize("block_size", [16, 128])
def test_slots_of_a_window_are_few_however_long_the_sequence(window: int, block_size: int) -> None:
    """All that the token sees is read, and no more than a tile and two blocks beyond it."""
    for position in range(0, 20_000, 7):
        read = slots_read(position, window, block_size)
        assert read.start <= max(0, position + 1 - window)
        assert read.stop > position
        assert read.start % block_size == len(read) % block_size == 0
        assert len(read) <= window + TILE_TOKENS + 2 * block_size


def test_all_tokens_of_a_tile_read_the_same_slots() -> None:
    """A tile is one call, and a token is computed in a tile or alone."""
    for start in range(0, 5000, TILE_TOKENS):
        for window in (None, 40, 1000):
            assert len({slots_read(start + i, window, BLOCK) for i in range(TILE_TOKENS)}) == 1


def test_decodes_of_near_lengths_are_one_call() -> None:
    """16 decodes of up to 2,000 tokens need few calls."""
    rows = [
        PlanRow(i, [1], 125 * i, list(range(130)), True, Sampling(), 0, 0, [], [])
        for i in range(16)
    ]
    assert len(Grouping(None, GROUP, BLOCK, torch.float32, CPU)(rows)) <= 8
