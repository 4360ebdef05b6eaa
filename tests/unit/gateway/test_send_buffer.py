"""The send buffer by a client's distance."""

from __future__ import annotations

import socket

import pytest

from gateway.send_buffer import round_trip_s, send_buffer_for

KIB = 1024


@pytest.mark.parametrize(
    ("trip_s", "size"), [(0.0, 32 * KIB), (0.02, 32 * KIB), (0.1, 125_000), (5.0, 256 * KIB)]
)
def test_who_is_far_away_gets_more(trip_s: float, size: int) -> None:
    """What is under way at the fastest pace fits, within bounds that a reader who stalls may cost."""
    assert send_buffer_for(trip_s) == size


def test_the_kernel_knows_the_distance() -> None:
    """On loopback it is far below what would need more than the least; a socket without TCP has none."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        taken, _ = server.accept()
    with client, taken:
        assert 0 < round_trip_s(taken) < 0.02
    one, other = socket.socketpair()
    with one, other:
        assert round_trip_s(one) == 0.0
