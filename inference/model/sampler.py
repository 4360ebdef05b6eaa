"""The next token of every row, as a pure function of (scores, seed, choice, position).

A row's number u from [0, 1) picks by inverse distribution function: tokens are put in order of
falling score (equal scores by rising id), filters cut that order off somewhere, and the token at
which the running sum of what is left first exceeds u of its total is chosen.

Sorting a whole vocabulary costs more than a small model's forward pass, so only the first
`CANDIDATES` are looked at; a row that those do not decide is done again with all. The answer is
the same: what precedes a candidate in the order does not depend on how many follow.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from inference.engine.plan import PlanRow, Sampled, SampledLogprob
from inference.model.counter_random import uniforms
from inference.model.linear import ROWS_MIN
from inference.model.logit_edits import edit_scores, wants_edits

__all__ = ["CANDIDATES", "TEMPERATURE_MIN", "plainly_greedy", "sample"]

Floats = NDArray[np.float64]
Ids = NDArray[np.int64]
Number = TypeVar("Number", np.float64, np.int64)

CANDIDATES = 256
# At and below it the highest score wins: dividing by less would only turn rounding into chance.
TEMPERATURE_MIN = 1e-3


def plainly_greedy(row: PlanRow) -> bool:
    """Whether a row asks for nothing but the likeliest token's id."""
    sampling = row.sampling
    return (
        sampling.temperature <= TEMPERATURE_MIN
        and sampling.logprobs is None
        and not wants_edits(row)
    )


def sample(logits: Tensor, rows: Sequence[PlanRow]) -> list[Sampled]:
    """Choose for each row of `logits` [rows, vocab]; log-probabilities are the model's own.

    "Own": of the untouched logits at temperature 1, before penalties, biases and filters.
    """
    if not rows:
        return []
    logits = logits.float()
    scores = logits
    if any(wants_edits(row) for row in rows):
        scores = logits.clone()
        edit_scores(scores, rows)
    ids = _choose(scores, rows)
    return [
        _with_logprobs(row, token_id, logits[index])
        for index, (row, token_id) in enumerate(zip(rows, ids, strict=True))
    ]


def _choose(scores: Tensor, rows: Sequence[PlanRow]) -> list[int]:
    rolling = [i for i, row in enumerate(rows) if row.sampling.temperature > TEMPERATURE_MIN]
    if not rolling:
        return scores.argmax(dim=-1).tolist()
    drawn = _draw(scores[rolling], [rows[index] for index in rolling])
    if len(rolling) == len(rows):
        return drawn
    ids: list[int] = scores.argmax(dim=-1).tolist()
    for index, token_id in zip(rolling, drawn, strict=True):
        ids[index] = token_id
    return ids


def _with_logprobs(row: PlanRow, token_id: int, logits: Tensor) -> Sampled:
    count = row.sampling.logprobs
    if count is None:
        return Sampled(row.sequence_id, token_id)
    logprobs = torch.log_softmax(logits, dim=-1)
    count = min(count, len(logits))
    order: list[int] = _nearest(_distances(logits[None]), count)[0].tolist() if count else []
    return Sampled(
        row.sequence_id,
        token_id,
        float(logprobs[token_id]),
        tuple(SampledLogprob(index, float(logprobs[index])) for index in order),
    )


def _distances(scores: Tensor) -> Tensor:
    """How far each score is below its row's highest: relative to that nothing overflows."""
    # A difference of two zeros may be a negative zero, whose bits sort as no number's.
    return (scores.amax(-1, keepdim=True) - scores).abs_()


def _nearest(distances: Tensor, count: int) -> Tensor:
    """Ids of the `count` smallest of `distances` [rows, vocab], rising; equal ones by rising id.

    The bits of a number that is not negative, read as an integer, sort as the number does. With
    the id in the low word no two keys are equal, so that no kernel has a tie to break its own way.
    """
    keys = distances.view(torch.int32).long()
    keys <<= 32
    keys |= torch.arange(distances.shape[1], device=distances.device)
    return keys.topk(count, dim=-1, largest=False).values & 0xFFFFFFFF


def _draw(scores: Tensor, rows: Sequence[PlanRow]) -> list[int]:
    """Chosen ids for `scores` [rows, vocab] of rows with a temperature."""
    vocab = scores.shape[1]
    chance = uniforms(
        [row.seed for row in rows],
        [row.sampling.choice for row in rows],
        [row.answer_position for row in rows],
    )
    distances = _distances(scores)
    chosen, decided = _draw_among(distances, rows, chance, min(CANDIDATES, vocab))
    again = np.flatnonzero(~decided).tolist()
    if again:
        chosen[again], _ = _draw_among(
            distances[again], [rows[i] for i in again], chance[again], vocab
        )
    return chosen.tolist()


def _draw_among(
    distances: Tensor, rows: Sequence[PlanRow], chance: Floats, count: int
) -> tuple[Ids, NDArray[np.bool_]]:
    """Chosen ids looking at the `count` highest scores, and which rows those decide."""
    vocab = distances.shape[1]
    temperature = torch.tensor([[row.sampling.temperature] for row in rows])
    scaled = distances / -temperature.to(distances.device)
    order = _nearest(distances, count)
    weights = scaled.gather(1, order).double().exp_().cpu().numpy()
    sums = weights.cumsum(axis=1)
    total = _totals(scaled) if count < vocab else sums[:, -1:]

    # Columns, each compared with all candidates of its row at once.
    top_k = np.array([[min(row.sampling.top_k or vocab, vocab)] for row in rows])
    top_p = np.array([[row.sampling.top_p] for row in rows])
    min_p = np.array([[row.sampling.min_p] for row in rows])
    left_by_top_k = np.where(top_k <= count, _at(sums, np.minimum(top_k, count) - 1), total)
    before = np.hstack([np.zeros_like(total), sums[:, :-1]])
    kept = (np.arange(count) < top_k) & (before < top_p * left_by_top_k) & (weights >= min_p)
    length = kept.sum(axis=1, keepdims=True)

    # The end of what is kept is seen when it lies before the last candidate or there are no more.
    seen = (length < count) | (top_k <= count)
    target = chance[:, None] * np.where(seen, _at(sums, length - 1), total)
    # Rounding may leave a target at the very sum: the last one kept takes it.
    place = np.minimum((sums <= target).sum(axis=1, keepdims=True), length - 1)
    unfiltered = (top_k == vocab) & (top_p == 1) & (min_p == 0)
    decided = seen | (unfiltered & (target < sums[:, -1:]))
    # What top_k leaves is unknown when it reaches beyond the candidates.
    decided &= (top_k <= count) | (top_k == vocab)
    return _at(order.cpu().numpy(), place)[:, 0], decided[:, 0]


def _at(table: NDArray[Number], places: Ids) -> NDArray[Number]:
    """The number at each row's place: [rows, 1] of [rows, columns]."""
    return np.take_along_axis(table, places, axis=1)


def _totals(scaled: Tensor) -> Floats:
    """The sum of all weights, [rows, 1].

    One row alone would be summed by several threads, in another order than a row among others.
    """
    rows = scaled.shape[0]
    weights = scaled.exp().expand(max(rows, ROWS_MIN), -1)
    return weights.sum(dim=-1, keepdim=True, dtype=torch.float64)[:rows].cpu().numpy()
