"""One WebSocket's messages and its heartbeat."""

from __future__ import annotations

import pytest

from seedance.protocol.connection import (
    CloseSocket,
    ConnectionMachine,
    ConnectionState,
    Deliver,
    PingPeer,
    TakeOver,
)
from seedance.protocol.errors import CloseCode, ProtocolFault
from seedance.protocol.events import Refused
from seedance.protocol.frames import Ping, Resume
from seedance.protocol.request import bad_field

RESUME = Resume("s", "t", 0, {})


def machine() -> ConnectionMachine:
    return ConnectionMachine(30, now=100)


@pytest.mark.parametrize("code", [CloseCode.PROTOCOL_ERROR, CloseCode.UNSUPPORTED_DATA])
def test_what_is_no_frame_closes(code: CloseCode) -> None:
    """With the fault's own code, once, and nothing counts after it (CASES 22)."""
    connection = machine()
    [effect] = connection.fault(ProtocolFault(code, "why"))
    assert effect == CloseSocket(code, "why")
    assert connection.state is ConnectionState.CLOSED
    assert connection.frame(Ping()) == []
    assert connection.fault(ProtocolFault(code, "again")) == []


def test_a_bad_frame_is_the_sessions_affair() -> None:
    """The connection goes on (CASES 20)."""
    refusal = bad_field("prompt", "a string")
    refusal.stream_id = "s"
    assert machine().frame(refusal) == [Deliver(Refused(refusal, "s"))]


def test_frames_are_delivered() -> None:
    """As they came."""
    assert machine().frame(Ping(1)) == [Deliver(Ping(1))]


def test_resume_is_special_only_as_the_first_message() -> None:
    """Later it is a frame like others, which the session refuses."""
    assert machine().frame(RESUME) == [TakeOver(RESUME)]
    connection = machine()
    connection.frame(Ping())
    assert connection.frame(RESUME) == [Deliver(RESUME)]


def test_it_pings_after_30_s_of_silence_and_closes_15_s_later() -> None:
    """Anything received counts as life (§2)."""
    connection = machine()
    assert connection.deadline == 130
    assert connection.tick(129) == []
    assert connection.tick(130) == [PingPeer()]
    assert connection.deadline == 145
    connection.heard(140)
    assert connection.tick(145) == []
    assert connection.tick(170) == [PingPeer()]
    [effect] = connection.tick(185)
    assert isinstance(effect, CloseSocket)
    assert effect.code is CloseCode.TIMEOUT


def test_after_the_timeout_no_deadline_is_left() -> None:
    """A closed connection asks for no more time: nothing that holds the loop at a past deadline."""
    connection = machine()
    connection.tick(connection.deadline)
    [closed] = connection.tick(connection.deadline)
    assert isinstance(closed, CloseSocket)
    assert closed.code is CloseCode.TIMEOUT
    assert connection.deadline == float("inf")
