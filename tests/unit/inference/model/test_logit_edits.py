"""Penalties, biases and bans, against formulas written out."""

from __future__ import annotations

import torch

from inference.engine.plan import PlanRow
from inference.model.logit_edits import edit_scores, wants_edits
from seedance.protocol.request import Sampling


def _row(sampling: Sampling, *, banned: tuple[int, ...] = ()) -> PlanRow:
    return PlanRow(0, [0], 0, [0], True, sampling, 0, 3, [4, 5, 4], [1, 5], banned)


def _edited(row: PlanRow) -> list[float]:
    scores = torch.tensor([[1.0, 2.0, 3.0, 4.0, 5.0, -6.0, 7.0]])
    edit_scores(scores, [row])
    return scores[0].tolist()


def test_frequency_and_presence_count_the_answer() -> None:
    """Frequency subtracts per occurrence, presence once, for answer tokens and no prompt token."""
    found = _edited(_row(Sampling(frequency_penalty=0.5, presence_penalty=0.25)))
    assert found == [1, 2, 3, 4, 5 - 2 * 0.5 - 0.25, -6 - 0.5 - 0.25, 7]


def test_repetition_reaches_prompt_and_answer() -> None:
    """Positive scores are divided, negative ones multiplied, each token once."""
    assert _edited(_row(Sampling(repetition_penalty=2.0))) == [1, 1, 3, 4, 2.5, -12, 7]


def test_a_bias_is_added_to_a_penalised_score() -> None:
    """A token with a penalty and a bias gets both."""
    found = _edited(_row(Sampling(presence_penalty=1.0, logit_bias={4: 10.0, 0: -3.0})))
    assert found == [-2, 2, 3, 4, 14, -7, 7]


def test_a_ban_outweighs_a_bias() -> None:
    """No bias brings a banned token back."""
    found = _edited(_row(Sampling(logit_bias={6: 100.0}), banned=(6, 2)))
    assert found[6] == found[2] == float("-inf")


def test_rows_do_not_touch_each_other() -> None:
    """Each row is edited by its own wishes."""
    scores = torch.zeros(3, 7)
    plain, biased = _row(Sampling()), _row(Sampling(logit_bias={1: 2.0}))
    edit_scores(scores, [plain, biased, plain])
    assert scores.tolist() == [[0.0] * 7, [0.0, 2.0, *[0.0] * 5], [0.0] * 7]


def test_plain_rows_want_no_edit() -> None:
    """The copy of the scores is saved where nobody asks for changes."""
    assert not wants_edits(_row(Sampling()))
    assert wants_edits(_row(Sampling(), banned=(1,)))
    assert wants_edits(_row(Sampling(repetition_penalty=1.1)))
