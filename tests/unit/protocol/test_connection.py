"""The connection's own heartbeat (§2)."""

from __future__ import annotations

from seedance.protocol.connection import (
    ANSWER_WITHIN_S,
    CloseSocket,
    ConnectionMachine,
    PingPeer,
)
from seedance.protocol.errors import CloseCode

HEARTBEAT_S = 30.0


def test_silence_is_asked_then_closed_and_then_nothing_waits_for_time() -> None:
    """30 s of silence: a ping; 15 s more: 4408; after that no deadline is left to come back to."""
    machine = ConnectionMachine(HEARTBEAT_S, now=0.0)
    assert machine.tick(machine.deadline) == [PingPeer()]
    assert machine.deadline == HEARTBEAT_S + ANSWER_WITHIN_S
    (closed,) = machine.tick(machine.deadline)
    assert isinstance(closed, CloseSocket)
    assert closed.code is CloseCode.TIMEOUT
    assert machine.deadline == float("inf")


def test_anything_heard_keeps_the_connection() -> None:
    """Bytes of any kind after the ping begin the time anew."""
    machine = ConnectionMachine(HEARTBEAT_S, now=0.0)
    machine.tick(HEARTBEAT_S)
    machine.heard(HEARTBEAT_S + ANSWER_WITHIN_S - 1)
    assert machine.tick(HEARTBEAT_S + ANSWER_WITHIN_S) == []
    assert machine.deadline == 2 * HEARTBEAT_S + ANSWER_WITHIN_S - 1
