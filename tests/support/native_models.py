"""Small models on the native step, and the same models in torch to compare with."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray

from inference.engine.plan import PlanRow, StepPlan
from inference.engine.runner import ModelInfo
from inference.model.batch import build_batch
from inference.model.kv_cache import KvCache
from inference.model.transformer import Transformer, load_transformer
from inference.model.weights import WeightSource
from inference.native.library import Library, load
from inference.native.runner import NativeRunner, load_native
from inference.native.weights import WIDE
from seedance.protocol.request import Sampling

__all__ = [
    "BLOCKS_OF_256_SIZES",
    "BLOCK_SIZE",
    "LLAMA_SIZES",
    "MISTRAL_SIZES",
    "MULTIQUERY_SIZES",
    "QWEN2_SIZES",
    "QWEN3_SIZES",
    "WIDE_SIZES",
    "divergence",
    "native_library",
    "native_runner",
    "plan_row",
    "token_rows",
    "torch_logits",
    "torch_model",
]

BLOCK_SIZE = 16
BLOCKS = 64
# Sizes that the native step takes, over the tiny models' own: grouped queries with an odd group,
# a strip that is not full (vocabulary), several pages, heads of 16 to 128.
LLAMA_SIZES = {"hidden_size": 192, "head_dim": 32, "vocab_size": 297}
QWEN2_SIZES = {
    "hidden_size": 224,
    "head_dim": 16,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
}
MULTIQUERY_SIZES = {
    "hidden_size": 96,
    "head_dim": 16,
    "num_attention_heads": 10,
    "num_key_value_heads": 1,
}
BLOCKS_OF_256_SIZES = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "head_dim": 64,
    "num_attention_heads": 4,
}
MISTRAL_SIZES = {"hidden_size": 96, "head_dim": 16}
QWEN3_SIZES = {"hidden_size": 64, "head_dim": 16}
WIDE_SIZES = {
    "hidden_size": 128,
    "head_dim": 128,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
}


@cache
def native_library() -> Library | None:
    """The library, built once; None where there is no compiler."""
    return load()


def native_runner(
    source: WeightSource,
    path: str | None = None,
    threads: int = 2,
    block_size: int = BLOCK_SIZE,
    layer_bits: int = WIDE,
) -> NativeRunner:
    """A runner with room for `BLOCKS` blocks."""
    library = native_library()
    assert library is not None
    config = source.config
    info = ModelInfo(
        name="tiny",
        aliases=(),
        context_length=config.context_length,
        vocab_size=config.vocab_size,
        eos_token_ids=frozenset(),
        block_size=block_size,
        total_blocks=BLOCKS,
    )
    return load_native(library, source, info, threads, lambda _share: None, path, layer_bits)


def plan_row(
    token_ids: list[int],
    *,
    start: int = 0,
    table: tuple[int, ...] = (0, 1, 2, 3),
    sample: bool = True,
    sampling: Sampling | None = None,
    sequence_id: int = 0,
) -> PlanRow:
    """A row of a plan, greedy unless said otherwise."""
    return PlanRow(
        sequence_id=sequence_id,
        token_ids=token_ids,
        start=start,
        block_table=list(table),
        sample=sample,
        sampling=sampling or Sampling(temperature=0.0),
        seed=7,
        answer_position=start,
        answer_ids=[],
        prompt_ids=[],
    )


@torch.inference_mode()
def torch_logits(
    source: WeightSource, token_ids: list[int], model: Transformer | None = None
) -> NDArray[np.float32]:
    """What the torch model says after each of the tokens, in fp32: [tokens, vocab].

    `model`: the source's, from `torch_model`; None: load it.
    """
    device = torch.device("cpu")
    model = model or torch_model(source)
    cache = KvCache(source.config, BLOCKS, BLOCK_SIZE, torch.float32, device)
    plan = token_rows(token_ids, tuple(range(len(token_ids) // BLOCK_SIZE + 1)))
    batch = build_batch(plan, source.config, BLOCK_SIZE, torch.float32, device)
    logits: NDArray[np.float32] = model.forward(batch, cache).numpy()
    return logits


def torch_model(source: WeightSource) -> Transformer:
    """The source's model in fp32."""
    return load_transformer(source, torch.float32, torch.device("cpu"), lambda _share: None)


def token_rows(token_ids: list[int], table: tuple[int, ...]) -> StepPlan:
    """A text in one step, every token a row of its own, so that each one's logits are given."""
    return StepPlan(
        [plan_row([token], start=at, table=table) for at, token in enumerate(token_ids)]
    )


def divergence(reference: NDArray[np.float32], logits: NDArray[np.float32]) -> float:
    """KL divergence per token of two sets of logits [tokens, vocab], in nats."""
    p = torch.log_softmax(torch.from_numpy(reference).double(), -1)
    q = torch.log_softmax(torch.from_numpy(np.array(logits)).double(), -1)
    return float((p.exp() * (p - q)).sum(-1).mean())
