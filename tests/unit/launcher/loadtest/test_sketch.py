"""Percentiles out of buckets."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from launcher.loadtest.sketch import ACCURACY, Sketch

_SECONDS = st.lists(st.floats(1e-5, 1e4), min_size=1, max_size=200)


def _of(values: list[float]) -> Sketch:
    sketch = Sketch()
    for value in values:
        sketch.add(value)
    return sketch


@given(_SECONDS, st.sampled_from([0.0, 0.5, 0.95, 0.99, 1.0]))
def test_a_percentile_is_within_a_hundredth(values: list[float], share: float) -> None:
    """Whatever the values are, a percentile is within 1 % of the value that has its rank."""
    exact = sorted(values)[math.floor(share * (len(values) - 1))]
    assert abs(_of(values).quantile(share) - exact) <= ACCURACY * exact * 1.0001


@given(_SECONDS, _SECONDS)
def test_merging_is_as_if_counted_together(one: list[float], two: list[float]) -> None:
    """Rounds and processes can be added up without losing anything."""
    merged, whole = _of(one), _of(one + two)
    merged.merge(_of(two))
    assert merged.buckets == whole.buckets
    assert (merged.count, merged.largest) == (whole.count, whole.largest)


def test_of_nothing_there_is_no_percentile() -> None:
    """Nothing measured is not zero."""
    assert math.isnan(Sketch().quantile(0.5))


def test_what_is_too_short_or_too_long_is_kept_within_bounds() -> None:
    """Zero, a negative clock step and a week cost no more buckets than anything else."""
    sketch = _of([0.0, -1.0, 1e9])
    assert sketch.count == 3
    assert sketch.quantile(1.0) <= 1e5
