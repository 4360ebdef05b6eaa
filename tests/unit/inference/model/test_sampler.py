"""The choice of a token, against an oracle written the plain way."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from inference.engine.plan import PlanRow, Sampled
from inference.model.counter_random import uniforms
from inference.model.sampler import CANDIDATES, sample
from seedance.protocol.request import Sampling

VOCAB = 1500


def _row(sampling: Sampling, *, seed: int = 0, position: int = 0, sequence_id: int = 0) -> PlanRow:
    return PlanRow(sequence_id, [0], 0, [0], True, sampling, seed, position, [], [])


def _logits(rows: int, *, spread: float = 3.0, vocab: int = VOCAB, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * spread


def _oracle(logits: torch.Tensor, row: PlanRow) -> int:
    """One row by plain sorting and summing."""
    sampling = row.sampling
    scores = [float(score) for score in logits]
    order = sorted(range(len(scores)), key=lambda token: (-scores[token], token))
    top = scores[order[0]]
    weights = [math.exp((scores[token] - top) / sampling.temperature) for token in order]
    if sampling.top_k:
        weights = weights[: sampling.top_k]
    kept, total = [], 0.0
    for weight in weights:
        if total >= sampling.top_p * sum(weights) or weight < sampling.min_p:
            break
        kept.append(weight)
        total += weight
    target = uniforms([row.seed], [sampling.choice], [row.answer_position])[0] * total
    for token, reached in zip(order, itertools.accumulate(kept), strict=False):
        if reached > target:
            return token
    return order[len(kept) - 1]


SETTINGS = [
    Sampling(temperature=1.0),
    Sampling(temperature=2.0),
    Sampling(temperature=0.3),
    Sampling(top_k=1),
    Sampling(top_k=40),
    Sampling(top_k=CANDIDATES),
    Sampling(top_k=CANDIDATES + 1),
    Sampling(top_k=VOCAB + 5),
    Sampling(top_p=0.1),
    Sampling(top_p=0.9, temperature=0.8),
    Sampling(top_p=0.999, temperature=2.0),
    Sampling(top_k=700, top_p=0.95, temperature=2.0),
    Sampling(min_p=0.05),
    Sampling(min_p=1.0),
    Sampling(min_p=0.0001, temperature=2.0),
    Sampling(top_k=50, top_p=0.8, min_p=0.02, temperature=1.3),
]


@pytest.mark.parametrize("spread", [0.0, 0.5, 3.0])
def test_every_setting_equals_the_oracle(spread: float) -> None:
    """Whatever is kept, and however flat the scores, the token is the oracle's."""
    rows = [
        _row(setting, seed=seed, position=seed * 3, sequence_id=index)
        for index, (setting, seed) in enumerate(itertools.product(SETTINGS, range(6)))
    ]
    logits = _logits(len(rows), spread=spread)
    found = sample(logits, rows)
    for index, row in enumerate(rows):
        assert found[index].token_id == _oracle(logits[index], row), row.sampling
        assert found[index].sequence_id == row.sequence_id


def test_a_row_is_the_same_in_any_company() -> None:
    """A row alone chooses what it chooses among 40 others of every kind."""
    rows = [_row(setting, seed=3, position=index) for index, setting in enumerate(SETTINGS)]
    rows += [_row(Sampling(temperature=0))] * 4
    logits = _logits(len(rows))
    together = sample(logits, rows)
    for index, row in enumerate(rows):
        assert sample(logits[index : index + 1], [row]) == [together[index]]


@pytest.mark.parametrize("temperature", [0.0, 1e-6, 1e-4, 3e-4])
def test_a_tiny_temperature_is_greedy(temperature: float) -> None:
    """At 1e-6, 1e-4 and 3e-4 the answer is that of temperature 0, also between near ties (CASES 23)."""
    logits = _logits(8, spread=0.001)
    logits[:, 700] = logits.amax(-1) + 1e-6
    rows = [_row(Sampling(temperature=temperature), seed=seed) for seed in range(8)]
    assert [found.token_id for found in sample(logits, rows)] == [700] * 8


def test_of_equal_scores_the_lowest_id_wins() -> None:
    """Greedy, and with top_k 1, ties end at the lowest id."""
    logits = torch.zeros(2, VOCAB)
    logits[:, [900, 20, 1400]] = 5.0
    rows = [_row(Sampling(temperature=0)), _row(Sampling(top_k=1))]
    assert [found.token_id for found in sample(logits, rows)] == [20, 20]


def test_frequencies_follow_the_distribution() -> None:
    """Over 20,000 positions each token is chosen as often as its probability, within five deviations."""
    count, probabilities = 20_000, np.array([0.5, 0.25, 0.15, 0.1])
    logits = torch.tensor(np.log(probabilities), dtype=torch.float32).expand(count, 4)
    rows = [_row(Sampling(), seed=11, position=position) for position in range(count)]
    ids = np.array([found.token_id for found in sample(logits, rows)])
    counts = np.bincount(ids, minlength=4)
    deviation = np.sqrt(count * probabilities * (1 - probabilities))
    assert (np.abs(counts - count * probabilities) < 5 * deviation).all()


def test_choices_of_one_seed_differ() -> None:
    """The choice's number (`n` > 1) draws another answer from the same seed."""
    logits = _logits(1).expand(64, -1)
    rows = [_row(Sampling(temperature=2.0, choice=choice), seed=5) for choice in range(64)]
    assert len({found.token_id for found in sample(logits, rows)}) > 32


def test_log_probabilities_are_the_models_own() -> None:
    """They sum to one, come in falling order, and no penalty, bias or temperature touches them."""
    logits = _logits(1)
    expected = torch.log_softmax(logits[0].double(), -1)
    edited = Sampling(temperature=0.5, logit_bias={3: 100.0}, logprobs=5)
    (found,) = sample(logits, [_row(edited)])
    assert found.token_id == 3
    assert found.logprob == pytest.approx(float(expected[3]), abs=1e-5)
    values, ids = expected.topk(5)
    assert [item.token_id for item in found.top] == ids.tolist()
    assert [item.logprob for item in found.top] == pytest.approx(values.tolist(), abs=1e-5)


def test_log_probabilities_only_where_asked() -> None:
    """None reports nothing, 0 the chosen token alone."""
    logits = _logits(2)
    nothing, chosen = sample(logits, [_row(Sampling()), _row(Sampling(logprobs=0))])
    assert nothing == Sampled(0, nothing.token_id)
    assert chosen.logprob is not None
    assert chosen.top == ()


def test_banned_ids_are_never_chosen() -> None:
    """Not even when they are all that is likely, greedy or not."""
    logits = torch.full((2, VOCAB), -5.0)
    logits[:, 2] = 50.0
    rows = [
        PlanRow(0, [0], 0, [0], True, sampling, 1, 0, [], [], banned_ids=(2,))
        for sampling in (Sampling(temperature=0), Sampling())
    ]
    assert all(found.token_id != 2 for found in sample(logits, rows))


def test_half_precision_logits_choose_as_their_values_say() -> None:
    """bf16 logits are read exactly, ties and all."""
    logits = _logits(6).bfloat16()
    rows = [_row(Sampling(top_p=0.9), seed=seed) for seed in range(6)]
    found = [chosen.token_id for chosen in sample(logits, rows)]
    assert found == [_oracle(logits[index].float(), row) for index, row in enumerate(rows)]


def test_nothing_to_choose() -> None:
    """A step of prefill chunks alone chooses nothing."""
    assert sample(torch.empty(0, VOCAB), []) == []
