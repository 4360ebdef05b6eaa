"""The `Runner` of a real model on a GPU: each stage on a stream of its own.

    fetch     numbers of the step, from pinned memory    ├──┤
    compute   forward pass, likeliest tokens                └─ ├────────┤
    emit      chosen ids, into pinned memory                            └─ ├──┤
    engine                        ... waits for emit's last event ...         └─ ids

A stage waits for another by an event on the device; only at the end, for the ids, the engine's thread
waits, asleep, without the interpreter's lock. When a step has ended nothing of it is under way, so the
next one may use the same places.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from inference.engine.plan import PlanRow, Sampled, StepPlan
from inference.engine.runner import ModelInfo
from inference.model.attention import AttentionBackend, TiledAttention
from inference.model.backend import GpuOptions
from inference.model.batch import build_batch
from inference.model.cuda_attention import choose_attention
from inference.model.cuda_graphs import DecodeGraphs
from inference.model.errors import ModelLoadError
from inference.model.kv_cache import KvCache
from inference.model.sampler import plainly_greedy, sample
from inference.model.transformer import Transformer

__all__ = ["CudaRunner", "Lane", "load_cuda"]

log = logging.getLogger(__name__)


class Lane:
    """One stage's stream, with events at the begin and at the end of what it did last.

    `cuda` is `torch.cuda`, or what has its streams and events.
    """

    def __init__(self, cuda: Any) -> None:
        self._cuda = cuda
        self.stream = cuda.Stream()
        self.begun = cuda.Event(enable_timing=True)
        # Whoever waits for it sleeps: a core that spins is taken from the gateway.
        self.done = cuda.Event(enable_timing=True, blocking=True)

    @contextmanager
    def work(self, *after: Lane) -> Iterator[None]:
        """What is done inside begins when those other lanes have done what they did last."""
        for lane in after:
            self.stream.wait_event(lane.done)
        with self._cuda.stream(self.stream):
            self.begun.record()
            yield
            self.done.record()

    def wait(self) -> None:
        """Sleep until it has done all."""
        self.done.synchronize()

    @property
    def last_ms(self) -> float:
        """How long its last work took on the device; it must have ended."""
        return float(self.begun.elapsed_time(self.done))


class CudaRunner:
    """Computes steps with a `Transformer` on a GPU; `graphs` is None where decodes are not recorded."""

    def __init__(
        self,
        info: ModelInfo,
        model: Transformer,
        cache: KvCache,
        attention: AttentionBackend,
        graphs: DecodeGraphs | None,
        cuda: Any = torch.cuda,
    ) -> None:
        self._info = info
        self._model = model
        self._cache = cache
        self._attention = attention
        self._graphs = graphs
        self._cuda = cuda
        self.fetch, self.compute, self.emit = Lane(cuda), Lane(cuda), Lane(cuda)

    @property
    def info(self) -> ModelInfo:
        """What is served."""
        return self._info

    @property
    def stage_ms(self) -> dict[str, float]:
        """How long the last step's stages took on the device; the step must have chosen tokens."""
        lanes = {"fetch": self.fetch, "compute": self.compute, "emit": self.emit}
        return {stage: lane.last_ms for stage, lane in lanes.items()}

    @torch.inference_mode()
    def run(self, plan: StepPlan) -> list[Sampled]:
        """Compute one step; when this returns, or raises, nothing of its rows is under way."""
        try:
            if plan.copies:
                # On the stream of the steps that write and read those blocks.
                with self.compute.work():
                    self._cache.copy(plan.copies)
            if not plan.rows:
                return []
            if self._graphs is not None and self._graphs.fits(plan.rows):
                return self._decode(self._graphs, plan.rows)
            return self._any_step(plan)
        except Exception:
            self._cuda.synchronize()
            raise

    def _decode(self, graphs: DecodeGraphs, rows: list[PlanRow]) -> list[Sampled]:
        size = graphs.stage(rows)
        with self.fetch.work():
            graphs.inputs[:size].copy_(graphs.staging[:size], non_blocking=True)
        with self.compute.work(self.fetch):
            graphs.replay(size)
        chosen = self._choose(rows, graphs.logits[: len(rows)], graphs.likeliest[: len(rows)])
        return [one for one, row in zip(chosen, rows, strict=True) if row.sample]

    def _any_step(self, plan: StepPlan) -> list[Sampled]:
        model, cache = self._model, self._cache
        with self.fetch.work():
            batch = build_batch(
                plan, model.config, cache.block_size, model.dtype, model.device, self._attention
            )
        with self.compute.work(self.fetch):
            logits = model.forward(batch, cache)[: len(batch.samplers)].float()
            likeliest = logits.argmax(-1)
        return self._choose(batch.samplers, logits, likeliest)

    def _choose(self, rows: list[PlanRow], logits: Tensor, likeliest: Tensor) -> list[Sampled]:
        """Where only likeliest tokens are asked for, their ids alone come back."""
        plain = all(map(plainly_greedy, rows))
        with self.emit.work(self.compute):
            # Ids are on their way only: into pinned memory, which torch's host allocator lends.
            found = likeliest.to("cpu", non_blocking=True) if plain else sample(logits, rows)
        self.emit.wait()
        if isinstance(found, list):
            return found
        return [
            Sampled(row.sequence_id, token_id)
            for row, token_id in zip(rows, found.tolist(), strict=True)
        ]

    def release(self, sequence_id: int) -> None:
        """Nothing is kept per sequence beside its blocks, which are the engine's."""

    def close(self) -> None:
        """Drop weights, cache and recorded steps."""
        self._cuda.synchronize()
        del self._model, self._cache, self._graphs


def load_cuda(
    info: ModelInfo,
    model: Transformer,
    kept: torch.dtype,
    options: GpuOptions,
    progress: Callable[[float], None],
    cuda: Any = torch.cuda,
) -> CudaRunner:
    """Choose how to compute, and record the decode steps; `progress` hears the share recorded.

    Raises `ModelLoadError` when compiling was asked for, must succeed and does not.
    """
    config, size = model.config, info.block_size
    # One block more than the engine knows: for the rows that fill up a recorded step.
    cache = KvCache(config, info.total_blocks + 1, size, kept, model.device, info.cold_blocks)
    if options.torch_compile:
        _fuse(model, must=not options.compile_fallback)
    tiles = TiledAttention(config.group, size, model.dtype, model.device)
    attention = choose_attention(config, tiles, kept)
    if isinstance(attention, TiledAttention):
        return CudaRunner(info, model, cache, attention, None, cuda)
    blocks_max = -(-info.context_length // size)
    graphs = DecodeGraphs(model, cache, attention, options.rows_max, blocks_max)
    runner = CudaRunner(info, model, cache, attention, graphs, cuda)
    try:
        graphs.record(runner.compute.stream, progress)
    except Exception:  # a driver's or a compiler's; all steps can be computed without
        log.warning("decodes are not recorded, which makes them slow", exc_info=True)
        cuda.synchronize()
        return CudaRunner(info, model, cache, attention, None, cuda)
    return runner


def _fuse(model: Transformer, *, must: bool) -> None:
    try:
        model.fuse()
    except Exception as error:
        reason = str(error).partition("\n")[0]
        if must:
            raise ModelLoadError(
                f"torch.compile fails: {reason}; use --no-torch-compile"
            ) from error
        log.warning("torch.compile fails, so the model computes without it: %s", reason)
