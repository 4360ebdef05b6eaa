"""Attention over the pages themselves, without gathering them: what a GPU decodes with.

| backend | decodes | prompt chunks | what it asks for |
| --- | --- | --- | --- |
| `VarlenAttention` | FlashAttention over the pages | the same | bf16, keys as well; FlashAttention 2 wants blocks of 256 tokens |
| `FlexAttention` | a Triton kernel over the pages | tiles | a working Triton |
| `TiledAttention` | tiles | tiles | nothing; each step copies what it reads, so its decodes are not recorded |

What a GPU, a torch and a model's shape can do together is not written down anywhere; so each is tried
on a small problem at the start, and the first that agrees with the tiles computes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, Protocol

import torch
import torch.nn.functional as F  # noqa: N812 -- the name everybody in the field knows it by
from torch import Tensor

from inference.engine.plan import PlanRow
from inference.model.attention import AttentionBackend, Layout, TiledAttention
from inference.model.config import ModelConfig
from inference.model.kv_cache import KvCache
from inference.model.linear import ROWS_MIN
from inference.model.staging import send
from seedance.protocol.request import Sampling

__all__ = [
    "BACKENDS",
    "FlexAttention",
    "PagedAttention",
    "VarlenAttention",
    "choose_attention",
    "distance",
    "paged",
]

log = logging.getLogger(__name__)

# How far two correct kernels are apart when numbers are around 1.
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 3e-2}
# Rows of the tile that FlexAttention keeps its lists for; a decode fills one.
FLEX_QUERY_ROWS = 128
# One for each recorded number of rows, and the problem of the start.
FLEX_COMPILES_MAX = 32


class PagedAttention(AttentionBackend, Protocol):
    """A backend whose decodes take all their numbers from tensors on the device."""

    def decodes(self, tables: Tensor, lengths: Tensor, window: int | None) -> Layout:
        """Lay out a token for each row: it sees the first `lengths` [rows] tokens, itself the last.

        `tables` [rows, blocks], both int32. Nothing is read back: it can be recorded in a CUDA graph.
        """
        ...


class VarlenAttention:
    """`torch.nn.attention.varlen`; one split, so that a row's sums do not depend on its batch."""

    def __init__(self, tiles: TiledAttention) -> None:
        self._tiles = tiles

    def lay_out(self, rows: Sequence[PlanRow], window: int | None) -> Layout:
        """All rows in one call."""
        counts = [len(row.token_ids) for row in rows]
        # A token alone stands in the step several times.
        copies = max(0, ROWS_MIN - sum(counts))
        counts += [1] * copies
        starts = send([0, *accumulate(counts)], self._tiles.device, torch.int32)
        tables, lengths = paged([*rows, *[rows[-1]] * copies], self._tiles.device)
        return _Varlen(starts, tables, lengths, max(counts), self._tiles.block_size, window)

    def decodes(self, tables: Tensor, lengths: Tensor, window: int | None) -> Layout:
        """A query for each row."""
        starts = torch.arange(len(lengths) + 1, dtype=torch.int32, device=lengths.device)
        return _Varlen(starts, tables, lengths, 1, self._tiles.block_size, window)


@dataclass(frozen=True, slots=True)
class _Varlen:
    """`starts` [rows + 1]: where each row's queries begin, and the last one's end."""

    starts: Tensor
    tables: Tensor
    lengths: Tensor
    queries_max: int
    block_size: int
    window: int | None

    def read(self, queries: Tensor, layer: int, cache: KvCache) -> Tensor:
        # Not in every torch that can serve this model.
        from torch.nn.attention.varlen import varlen_attn

        keys, values = cache.pages(layer)
        left = self.window - 1 if self.window else -1
        # A single query is its row's last token, after which there is nothing to hide; told so, the
        # kernel takes all queries of a key-value head together.
        right = -1 if self.queries_max == 1 and left < 0 else 0
        # Pages and lengths say where keys are: of the keys' starts only the shape is looked at.
        read = varlen_attn(
            queries.flatten(1, 2),
            keys,
            values,
            self.starts,
            self.starts,
            self.queries_max,
            self.tables.shape[1] * self.block_size,
            window_size=(left, right),
            enable_gqa=True,
            seqused_k=self.lengths,
            block_table=self.tables,
            num_splits=1,
        )
        return torch.as_tensor(read).flatten(1)


class FlexAttention:
    """`torch.nn.attention.flex_attention` over the whole pool, told which pages a row reads.

    It is compiled anew for every number of rows, so it is for the recorded steps alone.
    """

    def __init__(self, tiles: TiledAttention) -> None:
        from torch.nn.attention.flex_attention import flex_attention

        self._tiles = tiles
        # Its newest options are not in torch's annotations yet.
        compiler: Callable[..., Any] = torch.compile
        self._kernel = compiler(flex_attention, dynamic=False, recompile_limit=FLEX_COMPILES_MAX)

    def lay_out(self, rows: Sequence[PlanRow], window: int | None) -> Layout:
        """Tiles."""
        return self._tiles.lay_out(rows, window)

    def decodes(self, tables: Tensor, lengths: Tensor, window: int | None) -> Layout:
        """A query for each row. Of the pages that it reads only the first and the last are masked."""
        size = self._tiles.block_size
        own = lengths - 1
        begin = torch.clamp(lengths - window, min=0) if window else torch.zeros_like(own)
        first, last = begin // size, own // size
        masked = tables.gather(1, torch.stack([last, first], 1).long())
        inner = first[:, None] + 1 + torch.arange(tables.shape[1], device=tables.device)
        whole = tables.gather(1, inner.clamp(max=tables.shape[1] - 1).long())
        # In slots of the pool: where the row's own token lies, and the first one that it sees.
        own_slot = masked[:, 0] * size + own % size
        begin_slot = masked[:, 1] * size + begin % size

        def sees(row: Tensor, _head: Tensor, _query: Tensor, slot: Tensor) -> Tensor:
            end, start = own_slot[row], begin_slot[row]
            before = (slot // size != end // size) | (slot <= end)
            return before & ((slot // size != start // size) | (slot >= start))

        masked_count = torch.where(first < last, 2, 1)
        whole_count = torch.clamp(last - first - 1, min=0)
        return _Flex(self._kernel, (masked_count, masked, whole_count, whole), sees, size)


@dataclass(slots=True)
class _Flex:
    """`pages`: how many are masked, which, how many are seen whole, which."""

    kernel: Callable[..., Any]
    pages: tuple[Tensor, Tensor, Tensor, Tensor]
    sees: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
    block_size: int
    mask: Any = None

    def read(self, queries: Tensor, layer: int, cache: KvCache) -> Tensor:
        # [slots, kv_heads, head_dim] of all sequences as one that all rows share; the queries of a
        # key-value head as if they followed each other, which the kernel for short queries likes.
        keys, values = (part.flatten(0, 1).transpose(0, 1)[None] for part in cache.pages(layer))
        if self.mask is None:
            self.mask = self._mask(queries.shape[2], cache.blocks)
        return torch.as_tensor(self.kernel(queries, keys, values, block_mask=self.mask)).flatten(1)

    def _mask(self, queries: int, blocks: int) -> Any:
        from torch.nn.attention.flex_attention import BlockMask

        masked_count, masked, whole_count, whole = self.pages
        return BlockMask.from_kv_blocks(
            _list(masked_count),
            _list(_wide(masked, blocks)),
            _list(whole_count),
            _list(_wide(whole, blocks)),
            BLOCK_SIZE=(FLEX_QUERY_ROWS, self.block_size),
            mask_mod=self.sees,
            seq_lengths=(queries, blocks * self.block_size),
            compute_q_blocks=False,
        )


def _list(pages: Tensor) -> Tensor:
    """For one head and one tile of queries."""
    return pages.to(torch.int32).view(len(pages), 1, 1, *pages.shape[1:])


def _wide(pages: Tensor, count: int) -> Tensor:
    """The kernel wants room for all pages that there are."""
    return F.pad(pages, (0, max(0, count - pages.shape[1])))


def paged(rows: Sequence[PlanRow], device: torch.device) -> tuple[Tensor, Tensor]:
    """The rows' tables, as wide as the longest one, and how many tokens their last tokens see."""
    width = max(len(row.block_table) for row in rows)
    tables = [row.block_table + [0] * (width - len(row.block_table)) for row in rows]
    lengths = [row.start + len(row.token_ids) for row in rows]
    return send(tables, device, torch.int32), send(lengths, device, torch.int32)


BACKENDS: tuple[type[VarlenAttention | FlexAttention], ...] = (VarlenAttention, FlexAttention)


def choose_attention(
    config: ModelConfig, tiles: TiledAttention, kept: torch.dtype
) -> PagedAttention | TiledAttention:
    """The first backend that agrees with `tiles` on the device, where keys are kept in `kept`."""
    for backend in BACKENDS:
        name = backend.__name__
        try:
            chosen = backend(tiles)
            found = distance(chosen, config, tiles, kept)
        except Exception as error:  # noqa: BLE001 - whatever a kernel says, the next one is tried
            log.info("not with %s: %s", name, str(error).partition("\n")[0])
            continue
        if found <= TOLERANCE[tiles.dtype]:
            log.info("attention is computed by %s, which is %.1e from the tiles", name, found)
            return chosen
        log.warning("not with %s: it is %.1e from the tiles", name, found)
    log.info("attention is computed in tiles")
    return tiles


@torch.inference_mode()
def distance(
    backend: PagedAttention, config: ModelConfig, tiles: TiledAttention, kept: torch.dtype
) -> float:
    """How far a backend is from the tiles on four decodes, and on these and a chunk in one step."""
    size, device = tiles.block_size, tiles.device
    spans = [(0, 1), (size - 1, size), (size, size + 1), (3 * size + 5, 3 * size + 6)]
    spans.append((size // 2, 2 * size + 3))
    rows = [
        PlanRow(
            i,
            [0] * (end - start),
            start,
            [*range(4 * i, 4 * i + 4)],
            True,
            Sampling(),
            0,
            0,
            [],
            [],
        )
        for i, (start, end) in enumerate(spans)
    ]
    one = replace(config, layer_count=1)
    cache = KvCache(one, 4 * len(rows), size, kept, device)
    random = torch.Generator().manual_seed(0)
    slots = torch.arange(cache.blocks * size)
    kv = torch.randn(len(slots), one.kv_token_size, generator=random)
    cache.write(0, slots.to(device), kv.to(device))
    tokens = sum(end - start for start, end in spans)
    shape = (tokens, one.kv_head_count, one.group, one.head_dim)
    queries = torch.randn(shape, generator=random).to(device, tiles.dtype)
    decodes = len(rows) - 1
    worst = 0.0
    for window in {window and min(window, size + 3) for window in one.layer_windows}:
        expected = tiles.lay_out(rows, window).read(queries, 0, cache)
        found = backend.lay_out(rows, window).read(queries, 0, cache)
        layout = backend.decodes(*paged(rows[:decodes], device), window)
        found = torch.cat([found, layout.read(queries[:decodes], 0, cache)])
        expected = torch.cat([expected, expected[:decodes]])
        worst = max(worst, float((found - expected).abs().max()))
    return worst
