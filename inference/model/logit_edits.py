"""What a request changes in the model's scores before a token is chosen: penalties, biases, bans."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from inference.engine.plan import PlanRow

__all__ = ["edit_scores", "wants_edits"]


def wants_edits(row: PlanRow) -> bool:
    """Whether a row's scores are not the model's own."""
    sampling = row.sampling
    return bool(
        sampling.presence_penalty
        or sampling.frequency_penalty
        or sampling.repetition_penalty != 1
        or sampling.logit_bias
        or row.banned_ids
    )


@dataclass(slots=True)
class _Entries:
    """Sparse changes: one number for each (row, token id)."""

    rows: list[int] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    def add(self, row: int, token_id: int, value: float) -> None:
        self.rows.append(row)
        self.ids.append(token_id)
        self.values.append(value)

    def place(self, device: torch.device) -> tuple[Tensor, Tensor]:
        return torch.tensor(self.rows, device=device), torch.tensor(self.ids, device=device)


def edit_scores(scores: Tensor, rows: Sequence[PlanRow]) -> None:
    """Change `scores` [rows, vocab] in place, in this order.

    1. `repetition_penalty` r, for each token of prompt or answer: a positive score is divided by
       r, a negative one multiplied (Keskar et al. 2019, "CTRL").
    2. `frequency_penalty` times the token's count in the answer, and `presence_penalty` once if it
       is there, are subtracted.
    3. `logit_bias` is added.
    4. Banned ids go to minus infinity.
    """
    repeated, subtracted, banned = _Entries(), _Entries(), _Entries()
    for index, row in enumerate(rows):
        sampling = row.sampling
        if sampling.repetition_penalty != 1:
            for token_id in {*row.prompt_ids, *row.answer_ids}:
                repeated.add(index, token_id, sampling.repetition_penalty)
        if sampling.frequency_penalty or sampling.presence_penalty:
            for token_id, count in Counter(row.answer_ids).items():
                penalty = sampling.frequency_penalty * count + sampling.presence_penalty
                subtracted.add(index, token_id, penalty)
        for token_id, bias in sampling.logit_bias.items():
            subtracted.add(index, token_id, -bias)
        for token_id in row.banned_ids:
            banned.add(index, token_id, float("-inf"))
    _divide(scores, repeated)
    _subtract(scores, subtracted)
    if banned.rows:
        scores[banned.place(scores.device)] = float("-inf")


def _divide(scores: Tensor, entries: _Entries) -> None:
    if not entries.rows:
        return
    place = entries.place(scores.device)
    penalty = torch.tensor(entries.values, device=scores.device)
    found = scores[place]
    scores[place] = torch.where(found > 0, found / penalty, found * penalty)


def _subtract(scores: Tensor, entries: _Entries) -> None:
    if not entries.rows:
        return
    values = torch.tensor(entries.values, device=scores.device)
    # A token may have a penalty and a bias: accumulate.
    scores.index_put_(entries.place(scores.device), -values, accumulate=True)
