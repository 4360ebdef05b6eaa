"""Attention of a ragged batch over paged keys and values.

One rule makes a token's result independent of everything else in the step, bit for bit: *what is
computed for a token depends on its own position alone.*

* A token at position p attends over the slots `slots_read(p)`, those that it does not see masked.
  How long the row's other tokens or the batch's other rows are has no say.
* A prefill chunk is cut into tiles of `TILE_TOKENS` at multiples of that number, however the
  scheduler cut the chunk, and a tile is always computed whole.
* Query heads that share a key-value head are folded into the query length (one product instead of
  `group`), padded to `QUERY_ROWS_MIN`, below which kernels take another path.

Decodes that read equally many slots are one call: few calls for any mix of lengths.

A layer with a sliding window reads nothing of the blocks before it: the engine may have given them
to somebody else.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
import torch.nn.functional as F  # noqa: N812 -- the name everybody in the field knows it by
from torch import Tensor

from inference.engine.plan import PlanRow
from inference.model.kv_cache import KvCache
from inference.model.linear import ROWS_MIN
from inference.model.staging import send

__all__ = [
    "SLOT_STEP",
    "TILE_TOKENS",
    "AttentionBackend",
    "AttentionGroup",
    "Grouping",
    "Layout",
    "TiledAttention",
    "attend",
    "slots_read",
]

TILE_TOKENS = 32
SLOT_STEP = 128
# Steps grow with the length, so that many lengths are read alike; under a third is padding.
SLOT_STEPS_MIN = 4
QUERY_ROWS_MIN = 4


class Layout(Protocol):
    """A step's rows, laid out on the device for all layers that share a window."""

    def read(self, queries: Tensor, layer: int, cache: KvCache) -> Tensor:
        """What each of `queries` [tokens, kv_heads, group, head_dim] reads: [tokens, heads * head_dim]."""
        ...


class AttentionBackend(Protocol):
    """One way to read the cache."""

    def lay_out(self, rows: Sequence[PlanRow], window: int | None) -> Layout:
        """Get rows ready for the layers with a sliding window of `window` tokens (None: all seen)."""
        ...


@dataclass(frozen=True, slots=True)
class AttentionGroup:
    """Tiles of `tile` tokens that read equally many slots, computed in one call.

    `tokens` [tiles * tile] says which of the step's tokens stand in the tiles; a padded place
    repeats one. `places` and `kept`, of equal length, say which places are read out and into which
    of the step's tokens; both are None when the group is the whole step in its order.
    `tables` [tiles or 1, blocks]: where the slots lie, 1 when all tiles read the same.
    `mask` [tiles, 1, queries or 1, slots]: 0 for what a query sees and minus infinity elsewhere.
    """

    tile: int
    tokens: Tensor
    places: Tensor | None
    kept: Tensor | None
    tables: Tensor
    mask: Tensor


def slots_read(position: int, window: int | None, block_size: int) -> range:
    """Slots that the token at `position` attends over, whole blocks, the same for all its tile.

    `window` is the layer's sliding window, None when the token sees all before it.

        sequence   0 .......... first token's window ... tile ........
        read             | whole blocks ............................ |
    """
    tile = position // TILE_TOKENS * TILE_TOKENS
    if window is None:
        return range(_stepped(tile + TILE_TOKENS, block_size))
    first = max(0, tile + 1 - window) // block_size * block_size
    most = window - 1 + TILE_TOKENS + block_size - 1
    stepped = _stepped(tile + TILE_TOKENS - first, block_size)
    length = min(stepped, -(-most // block_size) * block_size)
    return range(first, first + length)


def _stepped(length: int, block_size: int) -> int:
    """The next multiple of `SLOT_STEP` and of a block, or of a coarser step for a long one."""
    step = max(SLOT_STEP, block_size)
    while length > SLOT_STEPS_MIN * step:
        step *= 2
    return -(-length // step) * step


@dataclass(slots=True)
class _Tiles:
    """A group while it is put together, in plain lists; `firsts` are the first slots of `tables`."""

    tile: int
    slots: int
    tokens: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    kept: list[int] = field(default_factory=list)
    tables: list[list[int]] = field(default_factory=list)
    firsts: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Grouping:
    """Sorts a step's rows into the attention groups of layers with one `window` (None: all seen).

    `group` is the number of queries per key-value head, `dtype` the type computed in.
    """

    window: int | None
    group: int
    block_size: int
    dtype: torch.dtype
    device: torch.device

    def __call__(self, rows: Iterable[PlanRow]) -> list[AttentionGroup]:
        """The groups of a step."""
        singles: dict[int, _Tiles] = {}
        tiled: list[_Tiles] = []
        first = 0
        for row in rows:
            if len(row.token_ids) == 1:
                self._add_single(singles, row, first)
            else:
                tiled += self._cut(row, first)
            first += len(row.token_ids)
        groups = [*singles.values(), *tiled]
        whole = len(groups) == 1 and not tiled and first >= ROWS_MIN
        # A token alone stands in the step several times; every copy reads what the token reads.
        for copy in range(first, ROWS_MIN):
            groups[0].places.append(0)
            groups[0].kept.append(copy)
        return [self._finish(tiles, whole) for tiles in groups]

    def _add_single(self, singles: dict[int, _Tiles], row: PlanRow, token: int) -> None:
        read = slots_read(row.start, self.window, self.block_size)
        tiles = singles.setdefault(len(read), _Tiles(1, len(read)))
        tiles.places.append(len(tiles.tokens))
        tiles.kept.append(token)
        tiles.tokens.append(token)
        tiles.positions.append(row.start)
        self._add_table(tiles, row, read)

    def _cut(self, row: PlanRow, first: int) -> list[_Tiles]:
        """A chunk's tiles, one group for those that read the same slots.

        positions    |  tile  |  tile  |  tile  |      at multiples of TILE_TOKENS
        chunk             [start ......... end)        places outside are padded
        """
        end = row.start + len(row.token_ids)
        groups: dict[range, _Tiles] = {}
        for tile_start in range(row.start // TILE_TOKENS * TILE_TOKENS, end, TILE_TOKENS):
            read = slots_read(tile_start, self.window, self.block_size)
            if read not in groups:
                groups[read] = _Tiles(TILE_TOKENS, len(read))
                self._add_table(groups[read], row, read)
            tiles = groups[read]
            for position in range(tile_start, tile_start + TILE_TOKENS):
                inside = row.start <= position < end
                token = first + min(max(position, row.start), end - 1) - row.start
                if inside:
                    tiles.places.append(len(tiles.tokens))
                    tiles.kept.append(token)
                tiles.tokens.append(token)
                tiles.positions.append(position)
        return list(groups.values())

    def _add_table(self, tiles: _Tiles, row: PlanRow, read: range) -> None:
        """Add where a row's slots lie.

        Blocks that left the row's window, and those that it does not have yet, are masked: a block
        that it has stands for them.
        """
        first, end = read.start // self.block_size, read.stop // self.block_size
        oldest = first
        if self.window is not None:
            oldest = max(first, (row.start + 1 - self.window) // self.block_size)
        table = [row.block_table[oldest]] * (oldest - first) + row.block_table[oldest:end]
        tiles.tables.append(table + [table[-1]] * (end - first - len(table)))
        tiles.firsts.append(read.start)

    def _finish(self, tiles: _Tiles, whole: bool) -> AttentionGroup:
        positions = torch.tensor(tiles.positions).view(-1, 1, tiles.tile, 1)
        slots = torch.tensor(tiles.firsts).view(-1, 1, 1, 1) + torch.arange(tiles.slots)
        hidden = slots > positions
        if self.window is not None:
            hidden = hidden | (slots <= positions - self.window)
        mask = torch.zeros(hidden.shape, dtype=self.dtype).masked_fill_(hidden, float("-inf"))
        if tiles.tile > 1:
            mask = mask.repeat_interleave(self.group, dim=2)
        return AttentionGroup(
            tile=tiles.tile,
            tokens=send(tiles.tokens, self.device),
            places=None if whole else send(tiles.places, self.device),
            kept=None if whole else send(tiles.kept, self.device),
            tables=send(tiles.tables, self.device),
            mask=mask.to(self.device),
        )


@dataclass(frozen=True, slots=True)
class TiledAttention:
    """The backend of every device: each group's slots are gathered, and multiplied.

    `group` is the number of queries per key-value head, `dtype` the type computed in.
    """

    group: int
    block_size: int
    dtype: torch.dtype
    device: torch.device

    def lay_out(self, rows: Sequence[PlanRow], window: int | None) -> Layout:
        """Sort the rows into groups."""
        sort = Grouping(window, self.group, self.block_size, self.dtype, self.device)
        return _Tiled(sort(rows))


@dataclass(frozen=True, slots=True)
class _Tiled:
    groups: list[AttentionGroup]

    def read(self, queries: Tensor, layer: int, cache: KvCache) -> Tensor:
        return attend(queries, layer, self.groups, cache)


def attend(queries: Tensor, layer: int, groups: list[AttentionGroup], cache: KvCache) -> Tensor:
    """What each of `queries` [tokens, kv_heads, group, head_dim] reads: [tokens, heads * head_dim]."""
    result = queries.new_empty(queries.shape[0], queries[0].numel())
    for group in groups:
        if group.kept is None or group.places is None:
            return _attend_tiles(queries, layer, group, cache)
        tiles = _attend_tiles(queries.index_select(0, group.tokens), layer, group, cache)
        result.index_copy_(0, group.kept, tiles.index_select(0, group.places))
    return result


def _attend_tiles(queries: Tensor, layer: int, group: AttentionGroup, cache: KvCache) -> Tensor:
    places, kv_heads, heads_each, head_dim = queries.shape
    tiles = places // group.tile
    count = group.tile * heads_each
    folded = queries.view(tiles, group.tile, kv_heads, heads_each, head_dim).transpose(1, 2)
    folded = folded.reshape(tiles, kv_heads, count, head_dim)
    if count < QUERY_ROWS_MIN:
        folded = F.pad(folded, (0, 0, 0, QUERY_ROWS_MIN - count))
    keys, values = cache.read(layer, group.tables, queries.dtype)
    shape = (tiles, *keys.shape[1:])
    read = F.scaled_dot_product_attention(
        folded, keys.expand(shape), values.expand(shape), group.mask
    )[:, :, :count]
    unfolded = read.reshape(tiles, kv_heads, group.tile, heads_each, head_dim).transpose(1, 2)
    return unfolded.reshape(places, kv_heads * heads_each * head_dim)
