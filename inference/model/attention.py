"""Attention of a ragged batch over paged keys and values.

One rule makes a token's result independent of everything else in the step, bit for bit: *what is
computed for a token depends on its own position alone.*

* A token at position p attends over a window of `window_length(p)` slots from position 0, those
  above p masked. How long the row's other tokens or the batch's other rows are has no say.
* A prefill chunk is cut into tiles of `TILE_TOKENS` at multiples of that number, however the
  scheduler cut the chunk, and a tile is always computed whole.
* Query heads that share a key-value head are folded into the query length (one product instead of
  `group`), padded to `QUERY_ROWS_MIN`, below which kernels take another path.

Decodes with equal windows are one call: few calls for any mix of lengths.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 -- the name everybody in the field knows it by
from torch import Tensor

from inference.engine.plan import PlanRow
from inference.model.kv_cache import KvCache
from inference.model.linear import ROWS_MIN

__all__ = ["TILE_TOKENS", "WINDOW_STEP", "AttentionGroup", "attend", "group_rows", "window_length"]

TILE_TOKENS = 32
WINDOW_STEP = 128
# Steps grow with the length, so that many lengths share a window; under a third is padding.
WINDOW_STEPS_MIN = 4
QUERY_ROWS_MIN = 4


@dataclass(frozen=True, slots=True)
class AttentionGroup:
    """Tiles of `tile` tokens with equal windows, computed in one call.

    `tokens` [tiles * tile] says which of the step's tokens stand in the tiles; a padded place
    repeats one. `places` and `kept`, of equal length, say which places are read out and into which
    of the step's tokens; both are None when the group is the whole step in its order.
    `tables` [tiles or 1, blocks]: where the windows lie, 1 when all tiles are of one sequence.
    `mask` [tiles, 1, queries or 1, window]: 0 for what a query sees and minus infinity elsewhere.
    """

    tile: int
    tokens: Tensor
    places: Tensor | None
    kept: Tensor | None
    tables: Tensor
    mask: Tensor


def window_length(position: int) -> int:
    """Slots that the token at `position` attends over: a multiple of `WINDOW_STEP`."""
    step = WINDOW_STEP
    while position >= WINDOW_STEPS_MIN * step:
        step *= 2
    return (position // step + 1) * step


@dataclass(slots=True)
class _Tiles:
    """A group while it is put together, in plain lists."""

    tile: int
    window: int
    tokens: list[int]
    positions: list[int]
    places: list[int]
    kept: list[int]
    tables: list[list[int]]

    def table(self, row: PlanRow, block_size: int) -> None:
        """Add where a row's window lies; blocks it does not have yet repeat its last one, masked."""
        blocks = row.block_table[: self.window // block_size]
        missing = self.window // block_size - len(blocks)
        self.tables.append(blocks + [blocks[-1]] * missing)


def group_rows(
    rows: Iterable[PlanRow], group: int, block_size: int, dtype: torch.dtype, device: torch.device
) -> list[AttentionGroup]:
    """Sort a step's rows into attention groups; `group` is the number of queries per key-value head."""
    singles: dict[int, _Tiles] = defaultdict(_new_single)
    tiled: list[_Tiles] = []
    first = 0
    for row in rows:
        if len(row.token_ids) == 1:
            _add_single(singles[window_length(row.start)], row, first, block_size)
        else:
            tiled += _cut(row, first, block_size)
        first += len(row.token_ids)
    groups = [*singles.values(), *tiled]
    whole = len(groups) == 1 and not tiled and first >= ROWS_MIN
    # A token alone stands in the step several times; every copy reads what the token reads.
    for copy in range(first, ROWS_MIN):
        groups[0].places.append(0)
        groups[0].kept.append(copy)
    return [_finish(tiles, group, whole, dtype, device) for tiles in groups]


def _new_single() -> _Tiles:
    return _Tiles(1, 0, [], [], [], [], [])


def _add_single(tiles: _Tiles, row: PlanRow, token: int, block_size: int) -> None:
    tiles.window = window_length(row.start)
    tiles.places.append(len(tiles.tokens))
    tiles.kept.append(token)
    tiles.tokens.append(token)
    tiles.positions.append(row.start)
    tiles.table(row, block_size)


def _cut(row: PlanRow, first: int, block_size: int) -> list[_Tiles]:
    """A chunk's tiles, one group per window.

    positions    |  tile  |  tile  |  tile  |      at multiples of TILE_TOKENS
    chunk             [start ......... end)        places outside are padded
    """
    end = row.start + len(row.token_ids)
    groups: dict[int, _Tiles] = {}
    for tile_start in range(row.start // TILE_TOKENS * TILE_TOKENS, end, TILE_TOKENS):
        window = window_length(tile_start)
        if window not in groups:
            groups[window] = _Tiles(TILE_TOKENS, window, [], [], [], [], [])
            groups[window].table(row, block_size)
        tiles = groups[window]
        for position in range(tile_start, tile_start + TILE_TOKENS):
            inside = row.start <= position < end
            token = first + min(max(position, row.start), end - 1) - row.start
            if inside:
                tiles.places.append(len(tiles.tokens))
                tiles.kept.append(token)
            tiles.tokens.append(token)
            tiles.positions.append(position)
    return list(groups.values())


def _finish(
    tiles: _Tiles, group: int, whole: bool, dtype: torch.dtype, device: torch.device
) -> AttentionGroup:
    positions = torch.tensor(tiles.positions).view(-1, 1, tiles.tile, 1)
    hidden = torch.arange(tiles.window) > positions
    mask = torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, float("-inf"))
    if tiles.tile > 1:
        mask = mask.repeat_interleave(group, dim=2)
    return AttentionGroup(
        tile=tiles.tile,
        tokens=torch.tensor(tiles.tokens, device=device),
        places=None if whole else torch.tensor(tiles.places, device=device),
        kept=None if whole else torch.tensor(tiles.kept, device=device),
        tables=torch.tensor(tiles.tables, device=device),
        mask=mask.to(device),
    )


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
