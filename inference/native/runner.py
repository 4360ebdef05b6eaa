"""The `Runner` of a real model on the native step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from inference.engine.plan import Sampled, StepPlan
from inference.engine.runner import ModelInfo
from inference.model.config import ModelConfig
from inference.model.sampler import plainly_greedy, sample
from inference.model.weights import WeightSource
from inference.native.library import Library, ModelShape, NativeModel, NormSlot, Slot
from inference.native.weights import GROUP, WIDE, read_levels, stack

__all__ = ["KEY_LANES", "NativeRunner", "PreparedStep", "load_native", "why_unsupported"]

KEY_LANES = 16

Ints = NDArray[np.int32]
Floats = NDArray[np.float32]


def why_unsupported(config: ModelConfig, block_size: int) -> str | None:
    """What keeps the native step from a model, in words; None when nothing does."""
    for name, size in (
        ("hidden size", config.hidden_size),
        ("MLP size", config.mlp_size),
        ("size of all queries", config.head_count * config.head_dim),
    ):
        if size % GROUP:
            return f"{name} {size} is no multiple of {GROUP}"
    for name, size in (("head size", config.head_dim), ("block size", block_size)):
        if size % KEY_LANES:
            return f"{name} {size} is no multiple of {KEY_LANES}"
    return None


@dataclass(frozen=True, slots=True)
class PreparedStep:
    """`run` computes a step into `logits` [samplers, vocab] and `greedy` [samplers]."""

    run: Callable[[], None]
    logits: Floats
    greedy: Ints


class NativeRunner:
    """Computes steps in the library, and samples what is not plainly the likeliest token in torch."""

    def __init__(self, info: ModelInfo, model: NativeModel) -> None:
        self._info = info
        self._model = model
        self._logits: Floats = np.empty((0, info.vocab_size), np.float32)

    @property
    def info(self) -> ModelInfo:
        """What is served."""
        return self._info

    def run(self, plan: StepPlan) -> list[Sampled]:
        """Compute one step; a row's result is the same, bit for bit, alone and among others."""
        self._model.copy(plan.copies)
        samplers = [row for row in plan.rows if row.sample]
        logits, greedy = self.forward(plan)
        drawn = [i for i, row in enumerate(samplers) if not plainly_greedy(row)]
        results = [
            Sampled(row.sequence_id, token_id)
            for row, token_id in zip(samplers, greedy.tolist(), strict=True)
        ]
        if drawn:
            some = torch.from_numpy(logits if len(drawn) == len(samplers) else logits[drawn])
            with torch.inference_mode():
                chosen = sample(some, [samplers[i] for i in drawn])
            for index, sampled in zip(drawn, chosen, strict=True):
                results[index] = sampled
        return results

    def forward(self, plan: StepPlan) -> tuple[Floats, Ints]:
        """Logits [samplers, vocab] of the rows that sample, good until the next step; and the likeliest ids."""
        step = self.prepared(plan)
        step.run()
        return step.logits, step.greedy

    def prepared(self, plan: StepPlan) -> PreparedStep:
        """The step with its inputs laid out, to run once or often."""
        token_ids: list[int] = []
        positions: list[int] = []
        tables: list[int] = []
        table_starts: list[int] = []
        sampled: list[int] = []
        for row in plan.rows:
            count = len(row.token_ids)
            token_ids += row.token_ids
            positions += range(row.start, row.start + count)
            table_starts += [len(tables)] * count
            tables += row.block_table
            if row.sample:
                sampled.append(len(token_ids) - 1)
        logits = self._logits_for(len(sampled))
        greedy = np.empty(len(sampled), np.int32)
        run = self._model.step(
            token_ids=_ints(token_ids),
            positions=_ints(positions),
            tables=_ints(tables),
            table_starts=_ints(table_starts),
            sampled=_ints(sampled),
            logits=logits,
            greedy=greedy,
        )
        return PreparedStep(run, logits, greedy)

    def _logits_for(self, rows: int) -> Floats:
        if rows > len(self._logits):
            self._logits = np.empty((rows, self._info.vocab_size), np.float32)
        return self._logits[:rows]

    def release(self, sequence_id: int) -> None:
        """Nothing is kept per sequence beside its blocks, which are the engine's."""

    def close(self) -> None:
        """Give back weights, cache and threads."""
        self._model.close()


def _ints(values: list[int]) -> Ints:
    return np.array(values, np.int32)


def load_native(
    library: Library,
    source: WeightSource,
    info: ModelInfo,
    threads: int,
    progress: Callable[[float], None],
    path: str | None = None,
    layer_bits: int = WIDE,
) -> NativeRunner:
    """Read all weights into the library; `progress` hears the share done, 0 to 1.

    `path` is an instruction set of `library.paths()`; None: the fastest. Matrices of the layers get
    at most `layer_bits` bits a weight; embedding and head keep 8, to which they are sensitive. Ask `why_unsupported`
    first. Raises `ModelLoadError` for a missing or damaged tensor, `MemoryError` for want of memory.
    """
    shape = _shape(source.config, info)
    model = NativeModel(library, shape, path or library.fastest_path, threads, info.cold_blocks)
    _fill(model, source, progress, layer_bits)
    return NativeRunner(info, model)


def _shape(config: ModelConfig, info: ModelInfo) -> ModelShape:
    return ModelShape(
        layers=config.layer_count,
        hidden=config.hidden_size,
        mlp=config.mlp_size,
        heads=config.head_count,
        kv_heads=config.kv_head_count,
        head_dim=config.head_dim,
        vocab=config.vocab_size,
        block_size=info.block_size,
        blocks=info.total_blocks,
        context=info.context_length,
        norm_eps=config.norm_eps,
        tied_head=config.tied_head,
    )


def _fill(
    model: NativeModel, source: WeightSource, progress: Callable[[float], None], layer_bits: int
) -> None:
    # The library trusts sizes: `source` has checked each tensor's shape against its configuration.
    config = source.config

    def norm(slot: NormSlot, layer: int, name: str) -> None:
        model.set_norm(slot, layer, _vector(source, f"{name}.weight"))

    def matrix(slot: Slot, layer: int, *names: str) -> None:
        bits = WIDE if slot in (Slot.EMBEDDING, Slot.HEAD) else layer_bits
        levels = stack([read_levels(source, f"{name}.weight", bits) for name in names])
        biased = source.has(f"{names[0]}.bias")
        biases = [_vector(source, f"{name}.bias") for name in names] if biased else None
        model.set_matrix(slot, layer, levels, np.concatenate(biases) if biases else None)

    model.set_frequencies(_frequencies(config))
    norm(NormSlot.FINAL, 0, "model.norm")
    matrix(Slot.EMBEDDING, 0, "model.embed_tokens")
    if not config.tied_head:
        matrix(Slot.HEAD, 0, "lm_head")
    for layer, window in enumerate(config.layer_windows):
        root = f"model.layers.{layer}"
        attention, mlp = f"{root}.self_attn", f"{root}.mlp"
        if window is not None:
            model.set_window(layer, window)
        if config.qk_norm:
            norm(NormSlot.QUERY, layer, f"{attention}.q_norm")
            norm(NormSlot.KEY, layer, f"{attention}.k_norm")
        norm(NormSlot.ATTENTION, layer, f"{root}.input_layernorm")
        norm(NormSlot.MLP, layer, f"{root}.post_attention_layernorm")
        matrix(Slot.QKV, layer, *(f"{attention}.{part}_proj" for part in "qkv"))
        matrix(Slot.OUTPUT, layer, f"{attention}.o_proj")
        matrix(Slot.GATE_UP, layer, f"{mlp}.gate_proj", f"{mlp}.up_proj")
        matrix(Slot.DOWN, layer, f"{mlp}.down_proj")
        progress((layer + 1) / config.layer_count)


def _vector(source: WeightSource, name: str) -> Floats:
    values: Floats = source.tensor(name).to(torch.float32).contiguous().numpy()
    return values


def _frequencies(config: ModelConfig) -> Floats:
    """Radians per position of each rotated pair, as `inference.model.transformer` has them."""
    pairs = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    rates = 1.0 / (config.rope_base**pairs * torch.tensor(config.rope_divisors))
    values: Floats = rates.numpy()
    return values
