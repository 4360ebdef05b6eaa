"""An instance that answers, and fails what it is given."""

from __future__ import annotations

from gateway.upstream.ejection import EJECTED_MAX_S, EJECTED_S, FAILURES_IN_A_ROW, Ejection


def _fail(ejection: Ejection, now: float, times: int = 1) -> None:
    for _ in range(times):
        ejection.ended(now, failed=True)


def test_failures_in_a_row_take_it_out_for_a_time() -> None:
    """One fewer does nothing; with the last one it is out, and back after its time."""
    ejection = Ejection()
    _fail(ejection, 0.0, FAILURES_IN_A_ROW - 1)
    assert not ejection.out(0.0)
    _fail(ejection, 0.0)
    assert ejection.out(0.0)
    assert not ejection.out(EJECTED_S)


def test_a_success_between_begins_the_count_anew() -> None:
    """Requests that fail now and then take nobody out."""
    ejection = Ejection()
    for now in range(100):
        _fail(ejection, float(now), FAILURES_IN_A_ROW - 1)
        ejection.ended(float(now), failed=False)
    assert not ejection.out(99.0)


def test_the_next_stream_is_the_probe() -> None:
    """When it fails the instance is out at once, for twice the time, up to a bound."""
    ejection = Ejection()
    _fail(ejection, 0.0, FAILURES_IN_A_ROW)
    _fail(ejection, EJECTED_S)
    assert ejection.out(EJECTED_S + 2 * EJECTED_S - 0.1)
    assert not ejection.out(EJECTED_S + 2 * EJECTED_S)
    now = EJECTED_S
    for _ in range(20):
        now += EJECTED_MAX_S
        _fail(ejection, now)
    assert ejection.out(now + EJECTED_MAX_S - 0.1)
    assert not ejection.out(now + EJECTED_MAX_S)


def test_what_ran_already_does_not_make_it_longer() -> None:
    """Streams that fail while it is out were there before."""
    ejection = Ejection()
    _fail(ejection, 0.0, 50)
    assert not ejection.out(EJECTED_S)
