"""Decode steps as CUDA graphs: recorded once for a few numbers of rows, replayed with new numbers.

A decode step is some thousand small kernels, which take the CPU longer to begin than the GPU to finish. A
graph begins them all at once. It reads and writes fixed places, so all of a step's numbers lie in one
table, which one copy fills:

    row   | token | position | block | block | ...        a decode
    row   |     0 |        0 | scratch block ...          padding, up to the recorded number of rows

Padded rows compute like all others; what they write goes to a block that no sequence has.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from inference.engine.plan import PlanRow
from inference.model.batch import StepBatch
from inference.model.cuda_attention import PagedAttention
from inference.model.kv_cache import KvCache
from inference.model.transformer import Transformer

__all__ = ["DecodeGraphs", "graph_sizes"]

log = logging.getLogger(__name__)

Replay = Callable[[], None]

# Columns before a row's block table.
TABLE_AT = 2
# Runs before a step is recorded: libraries choose kernels and take their workspaces in the first ones.
WARM_UPS = 2


def graph_sizes(rows_max: int) -> list[int]:
    """The numbers of rows to record: powers of two, and `rows_max`."""
    sizes = [1 << power for power in range((rows_max - 1).bit_length())]
    return [*sizes, rows_max]


class DecodeGraphs:
    """Recorded decode steps of a model.

    The cache's last block is the scratch block. `logits` [rows_max, vocab] in fp32 and `likeliest`
    [rows_max] are what the last replay found, good until the next one. On a CPU a step is not
    recorded but computed again, from and into the same places.
    """

    def __init__(
        self,
        model: Transformer,
        cache: KvCache,
        attention: PagedAttention,
        rows_max: int,
        blocks_max: int,
    ) -> None:
        """`blocks_max` is the most that a row's table has."""
        device = model.device
        shape = (rows_max, TABLE_AT + blocks_max)
        pinned = device.type == "cuda"
        self.staging = torch.zeros(shape, dtype=torch.int32, pin_memory=pinned)
        self.inputs = torch.zeros(shape, dtype=torch.int32, device=device)
        self.logits = torch.zeros(rows_max, model.config.vocab_size, device=device)
        self.likeliest = torch.zeros(rows_max, dtype=torch.long, device=device)
        self._model = model
        self._cache = cache
        self._attention = attention
        self._replays: dict[int, Replay] = {}

    @torch.inference_mode()
    def record(self, stream: torch.cuda.Stream, progress: Callable[[float], None]) -> None:
        """Record all sizes on the stream that will replay them; `progress` hears the share done.

        The largest comes first: the others then do with the memory that it takes.
        """
        self.stage([])
        self.inputs.copy_(self.staging)
        pool = None
        if self.inputs.is_cuda:
            pool = torch.cuda.graph_pool_handle()
            # Weights and inputs came on another stream.
            torch.cuda.synchronize()
        sizes = graph_sizes(len(self.staging))
        for index, size in enumerate(reversed(sizes)):
            step = partial(self._step, size)
            self._replays[size] = step if pool is None else _recorded(step, stream, pool)
            progress((index + 1) / len(sizes))
            log.info("decodes of %d rows are recorded, %d of %d", size, index + 1, len(sizes))

    def fits(self, rows: Sequence[PlanRow]) -> bool:
        """Whether rows are a decode step that was recorded."""
        return len(rows) <= len(self.staging) and all(len(row.token_ids) == 1 for row in rows)

    def stage(self, rows: Sequence[PlanRow]) -> int:
        """Write rows down, and padding behind them; how many rows to copy and to replay."""
        table = self.staging.numpy()
        for place, row in zip(table, rows, strict=False):
            place[0], place[1] = row.token_ids[0], row.start
            place[TABLE_AT : TABLE_AT + len(row.block_table)] = row.block_table
        size = min((size for size in self._replays if size >= len(rows)), default=len(table))
        table[len(rows) : size, :TABLE_AT] = 0
        table[len(rows) : size, TABLE_AT:] = self._cache.blocks - 1
        return size

    def replay(self, size: int) -> None:
        """Begin the step of the first `size` rows on the current stream."""
        self._replays[size]()

    def _step(self, size: int) -> None:
        inputs, block_size = self.inputs[:size], self._cache.block_size
        token_ids, positions, tables = inputs[:, 0], inputs[:, 1].long(), inputs[:, TABLE_AT:]
        blocks = tables.gather(1, (positions // block_size)[:, None])[:, 0]
        lengths = inputs[:, 1] + 1
        windows = self._model.config.layer_windows
        layouts = {w: self._attention.decodes(tables, lengths, w) for w in set(windows)}
        batch = StepBatch(
            token_ids=token_ids,
            positions=positions,
            slots=blocks.long() * block_size + positions % block_size,
            layouts=[layouts[window] for window in windows],
            samplers=[],
            last_tokens=torch.arange(size, device=inputs.device),
        )
        self.logits[:size] = self._model.forward(batch, self._cache)
        self.likeliest[:size] = self.logits[:size].argmax(-1)


def _recorded(step: Callable[[], None], stream: torch.cuda.Stream, pool: Any) -> Replay:
    with torch.cuda.stream(stream):
        for _ in range(WARM_UPS):
            step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool, stream=stream):
        step()
    return graph.replay
