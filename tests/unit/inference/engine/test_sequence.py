"""States and rows of a sequence."""

from __future__ import annotations

import pytest

from inference.engine.sequence import TRANSITIONS, Pace, Sequence, SequenceState


def _sequence(**fields: object) -> Sequence:
    return Sequence(id=1, prompt_ids=[1, 2, 3], answer_ids=[], arrival=0.0, **fields)  # type: ignore[arg-type]


def test_the_table_names_every_state() -> None:
    """Each state says where it may go, and nothing leaves ENDED."""
    assert set(TRANSITIONS) == set(SequenceState)
    assert not TRANSITIONS[SequenceState.ENDED]


def test_a_move_outside_the_table_is_caught() -> None:
    """Nobody decodes before a prefill."""
    sequence = _sequence()
    with pytest.raises(AssertionError):
        sequence.move(SequenceState.DECODE)
    assert sequence.state is SequenceState.WAITING


@pytest.mark.parametrize(
    ("computed", "count", "tokens", "samples"),
    [
        (0, 2, [1, 2], False),
        (0, 3, [1, 2, 3], False),
        (2, 3, [3, 7, 8], True),
        (3, 1, [7], False),
        (4, 1, [8], True),
        (0, 5, [1, 2, 3, 7, 8], True),
    ],
)
def test_a_row_crosses_from_prompt_to_answer(
    computed: int, count: int, tokens: list[int], samples: bool
) -> None:
    """A row computes the tokens after those computed; only the last known one chooses the next."""
    sequence = _sequence(computed=computed)
    sequence.answer_ids += [7, 8]
    row = sequence.row(count)
    assert (row.start, row.token_ids, row.sample) == (computed, tokens, samples)
    assert row.answer_position == 2


def test_endings_are_banned_before_min_tokens() -> None:
    """Below `min_tokens` no ending id may be chosen, from there on every one."""
    sequence = _sequence(min_tokens=1, ending_ids=(5,))
    assert sequence.row(3).banned_ids == (5,)
    sequence.answer_ids.append(9)
    assert sequence.row(4).banned_ids == ()


def test_pace_keeps_its_cadence_and_never_bursts() -> None:
    """A token a little late does not shift the next; after a pause nothing is made up for."""
    pace = Pace(due=10.0, period_s=1.0)
    pace.played(10.2)
    assert pace.due == 11.0
    pace.played(20.0)
    assert pace.due == 20.0
