"""What rounds on a busy machine say."""

from __future__ import annotations

import pytest

from launcher.bench.rounds import noise, quiet, spread


def test_the_quietest_third_counts() -> None:
    """A round that was disturbed changes nothing."""
    assert quiet([1.0, 9.0, 1.2, 7.0, 8.0, 50.0]) == pytest.approx(1.1)


def test_nothing_measured_is_no_figure() -> None:
    """Without a round there is no answer, rather than a zero."""
    with pytest.raises(ValueError, match="nothing was measured"):
        quiet([])


def test_noise_is_what_halves_disagree_about() -> None:
    """Equal halves have none; one that is a tenth dearer says so."""
    assert noise([2.0, 2.0, 2.0, 2.0]) == 0
    assert noise([1.0, 1.1, 1.0, 1.1, 1.0, 1.1]) == pytest.approx(0.1)
    assert noise([1.0]) == 0


def test_spread_leaves_the_ends_out() -> None:
    """The middle half counts, so that one bad round widens nothing."""
    assert spread([1.0, 1.0, 1.0, 1.0, 99.0]) == 0
    assert spread([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]) == pytest.approx(4 / 4)
