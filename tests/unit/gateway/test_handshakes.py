"""The share of clients that a gateway asks for."""

from __future__ import annotations

import pytest

from gateway.handshakes import Handshakes


def _shaken(*seconds: float, at: float = 0.0) -> Handshakes:
    handshakes = Handshakes()
    for took in seconds:
        handshakes.took(took, at)
    return handshakes


def test_few_handshakes_say_nothing() -> None:
    """Nineteen slow ones are chance: the share is whole."""
    assert _shaken(*[1.0] * 19).share(0.0) == 100
    assert _shaken(*[1.0] * 19).p95_s(0.0) is None


def test_the_share_is_whole_at_the_target() -> None:
    """A 95th percentile of 35 ms is good; a twentieth of the clients may wait longer."""
    assert _shaken(*[0.035] * 95, *[2.0] * 5).share(0.0) == 100


@pytest.mark.parametrize(("p95_s", "share"), [(0.036, 97), (0.070, 50), (10.0, 10)])
def test_the_share_falls_as_handshakes_get_late(p95_s: float, share: int) -> None:
    """Twice the target is half the share; never so little that an improvement could not be seen."""
    assert _shaken(*[p95_s] * 50).share(0.0) == share


def test_what_is_long_ago_does_not_count() -> None:
    """Half a minute later the share is whole again, whether or not anybody came."""
    assert _shaken(*[1.0] * 50).share(29.0) == 10
    assert _shaken(*[1.0] * 50).share(31.0) == 100
