"""Session ids."""

from __future__ import annotations

import pytest

from gateway.store.names import SESSION_ID, made_ms, new_session_id

NOW_MS = 1_790_000_000_123


def test_an_id_says_when_it_was_made() -> None:
    """The time comes back to the millisecond, and nothing else of two ids made at once is the same."""
    one, other = new_session_id(NOW_MS), new_session_id(NOW_MS)
    assert made_ms(one) == made_ms(other) == NOW_MS
    assert one[:22] != other[:22]
    assert SESSION_ID.fullmatch(one)


@pytest.mark.parametrize(
    "name", ["", "s1", "x" * 29, "x" * 31, "x" * 29 + "*", "é" * 30, "\ud83d" * 30]
)
def test_a_made_up_id_says_nothing(name: str) -> None:
    """CASES 20: whatever a client calls a session is read without a fault."""
    assert made_ms(name) is None
