"""The `Runner` of a real model on torch."""

from __future__ import annotations

import math
import os
from pathlib import Path

import torch

from inference.engine.plan import Sampled, StepPlan
from inference.engine.runner import ModelInfo
from inference.model.batch import build_batch
from inference.model.kv_cache import KvCache
from inference.model.sampler import sample
from inference.model.transformer import Transformer

__all__ = ["TorchRunner", "default_threads", "physical_cores"]

CPU_TOPOLOGY = Path("/sys/devices/system/cpu")


def default_threads() -> int:
    """Threads for the model when nobody says: physical cores less a quarter, but at least one.

    Two hardware threads of a core share its arithmetic, so one is counted. The quarter, rounded up,
    is for whatever else runs: torch's threads wait for each other hundreds of times in a step, and
    when one of them is off its core the others spin. On two cores that others use as well, two
    threads took 750 ms for a step (median) that one thread did in 46 ms; with the cores to
    themselves they took 24 ms against 34. Somebody who has the cores to spare says so.
    """
    cores = physical_cores()
    return max(1, cores - math.ceil(cores / 4))


def physical_cores() -> int:
    """Cores this process may run on, each counted once however many threads it has in hardware."""
    try:
        usable = os.sched_getaffinity(0)
    except AttributeError:  # not every system can say
        usable = set(range(os.cpu_count() or 1))
    return len({_core(cpu) for cpu in usable})


def _core(cpu: int) -> str:
    """A name that the hardware threads of one core share."""
    try:
        return (CPU_TOPOLOGY / f"cpu{cpu}/topology/thread_siblings_list").read_text().strip()
    except OSError:
        return str(cpu)


class TorchRunner:
    """Computes steps with a `Transformer`, a `KvCache` and the sampler."""

    def __init__(self, info: ModelInfo, model: Transformer, cache: KvCache) -> None:
        self._info = info
        self._model = model
        self._cache = cache

    @property
    def info(self) -> ModelInfo:
        """What is served."""
        return self._info

    @torch.inference_mode()
    def run(self, plan: StepPlan) -> list[Sampled]:
        """Compute one step.

        A row's result is the same, bit for bit, alone and among others, and however its prompt is
        cut into chunks (on a CPU; see `inference.model.attention`).
        """
        self._cache.copy(plan.copies)
        if not plan.rows:
            return []
        batch = build_batch(
            plan, self._model.config, self._cache.block_size, self._model.dtype, self._model.device
        )
        logits = self._model.forward(batch, self._cache)
        return sample(logits[: len(batch.samplers)], batch.samplers)

    def release(self, sequence_id: int) -> None:
        """Nothing is kept per sequence beside its blocks, which are the engine's."""

    def close(self) -> None:
        """Drop weights and cache."""
        del self._model, self._cache
