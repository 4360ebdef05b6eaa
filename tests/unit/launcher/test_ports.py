"""Ports on this machine."""

from __future__ import annotations

import socket

import pytest

from launcher.ports import free_port, is_free, next_free_ports


@pytest.fixture
def taken_port() -> int:
    """A port that somebody listens on while the test runs."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield server.getsockname()[1]


def test_a_port_in_use_is_not_free(taken_port: int) -> None:
    """A port that somebody listens on is not offered."""
    assert not is_free(taken_port)


def test_next_free_ports_skip_those_in_use(taken_port: int) -> None:
    """The list begins at the first free port from the given one on, and has no port twice."""
    found = next_free_ports(taken_port, 3)
    assert taken_port not in found
    assert len(set(found)) == 3
    assert found == sorted(found)


def test_free_port_avoids_what_is_promised_to_others() -> None:
    """A port handed out before is not handed out again."""
    first = free_port()
    assert all(free_port(taken=[first]) != first for _ in range(20))


def test_the_end_of_the_range_is_an_error() -> None:
    """More ports than there are is an error, not an endless search."""
    with pytest.raises(OSError, match="no 10 free ports"):
        next_free_ports(65_530, 10)
