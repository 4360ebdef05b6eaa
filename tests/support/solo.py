"""Runs requests on a `Runner` without the engine: every sequence owns enough blocks from the start."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from inference.engine.plan import PlanRow, Sampled, StepPlan
from inference.engine.runner import Runner
from inference.model.batch import build_batch
from inference.model.kv_cache import KvCache
from inference.model.transformer import Transformer
from seedance.protocol.request import Sampling

__all__ = ["GREEDY", "SoloSequence", "generate", "logits_of", "run_together"]

GREEDY = Sampling(temperature=0)


@dataclass
class SoloSequence:
    """A prompt on its way to an answer of `max_tokens` tokens (fewer when one ends it)."""

    prompt_ids: list[int]
    max_tokens: int
    sampling: Sampling = GREEDY
    seed: int = 0
    chunk: int = 1 << 30
    stop_at_eos: bool = True
    answer_ids: list[int] = field(default_factory=list)
    sampled: list[Sampled] = field(default_factory=list)
    computed: int = 0
    ended: bool = False

    def next_row(self, sequence_id: int, table: list[int]) -> PlanRow:
        """The next chunk of the prompt, or the last token of the answer."""
        known = self.prompt_ids + self.answer_ids
        ids = known[self.computed : self.computed + self.chunk]
        return PlanRow(
            sequence_id=sequence_id,
            token_ids=ids,
            start=self.computed,
            block_table=table,
            sample=self.computed + len(ids) == len(known),
            sampling=self.sampling,
            seed=self.seed,
            answer_position=len(self.answer_ids),
            answer_ids=self.answer_ids,
            prompt_ids=self.prompt_ids,
        )


def run_together(runner: Runner, sequences: list[SoloSequence]) -> None:
    """Run all sequences at once, a row each in every step, until all have ended."""
    info = runner.info
    tables: list[list[int]] = []
    free = iter(range(info.total_blocks))
    for sequence in sequences:
        needed = -(-(len(sequence.prompt_ids) + sequence.max_tokens) // info.block_size)
        tables.append([next(free) for _ in range(needed)])
    while not all(sequence.ended for sequence in sequences):
        rows = [
            sequence.next_row(index, tables[index])
            for index, sequence in enumerate(sequences)
            if not sequence.ended
        ]
        results = {result.sequence_id: result for result in runner.run(StepPlan(rows))}
        for row in rows:
            sequences[row.sequence_id].computed += len(row.token_ids)
        for index, result in results.items():
            _take(sequences[index], result, info.eos_token_ids)


def _take(sequence: SoloSequence, result: Sampled, eos: frozenset[int]) -> None:
    sequence.answer_ids.append(result.token_id)
    sequence.sampled.append(result)
    ended = sequence.stop_at_eos and result.token_id in eos
    sequence.ended = ended or len(sequence.answer_ids) == sequence.max_tokens


def generate(
    runner: Runner, prompt_ids: list[int], max_tokens: int, **options: object
) -> list[int]:
    """The answer's ids of one request alone."""
    sequence = SoloSequence(prompt_ids, max_tokens, **options)  # type: ignore[arg-type]
    run_together(runner, [sequence])
    return sequence.answer_ids


def logits_of(model: Transformer, cache: KvCache, ids: list[int], chunk: int = 1 << 30) -> Tensor:
    """Logits of every position of one sequence in the cache's first blocks, [tokens, vocab].

    Every chunk is computed again for each of its positions, as a chunk that ends there.
    """
    found = []
    table = list(range(cache.blocks))
    for start in range(0, len(ids), chunk):
        for end in range(start + 1, min(start + chunk, len(ids)) + 1):
            row = SoloSequence(ids[:end], 1, computed=start, chunk=chunk).next_row(0, table)
            batch = build_batch(
                StepPlan([row]), model.config, cache.block_size, model.dtype, model.device
            )
            found.append(model.forward(batch, cache)[0])
    return torch.stack(found)
