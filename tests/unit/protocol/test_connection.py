"""One WebSocket's messages and its heartbeat."""

from __future__ import annotations

import json

import pytest

from seedance.protocol.connection import (
    CloseSocket,
    ConnectionMachine,
    ConnectionState,
    Deliver,
    PingPeer,
    TakeOver,
)
from seedance.protocol.errors import CloseCode
from seedance.protocol.events import Refused
from seedance.protocol.frames import Generate, Ping, Resume

RESUME = json.dumps({"type": "resume", "session": "s", "token": "t", "last_seq": 0, "offsets": {}})


def machine() -> ConnectionMachine:
    return ConnectionMachine(30, now=100)


@pytest.mark.parametrize("message", ["[]", '"x"', "null", "{", "", "nonsense"])
def test_what_is_no_object_closes(message: str) -> None:
    """It is not of this protocol at all: 4400 (CASES 22)."""
    connection = machine()
    [effect] = connection.text(message)
    assert isinstance(effect, CloseSocket)
    assert effect.code is CloseCode.PROTOCOL_ERROR
    assert connection.state is ConnectionState.CLOSED
    assert connection.text('{"type":"ping"}') == []


def test_a_binary_message_closes() -> None:
    """The JSON subprotocol has none: 1003 (CASES 22)."""
    [effect] = machine().binary()
    assert isinstance(effect, CloseSocket)
    assert effect.code is CloseCode.UNSUPPORTED_DATA


@pytest.mark.parametrize("message", ['{"type":"what"}', "{}", '{"prompt":"\\ud83d"}'])
def test_a_bad_frame_is_the_sessions_affair(message: str) -> None:
    """The connection goes on (CASES 20)."""
    [effect] = machine().text(message)
    assert isinstance(effect, Deliver)
    assert isinstance(effect.event, Refused)


def test_frames_are_delivered() -> None:
    """Also the bare form."""
    connection = machine()
    [first] = connection.text('{"prompt":"hi"}')
    [second] = connection.text('{"type":"ping","t":1}')
    assert isinstance(first, Deliver)
    assert isinstance(first.event, Generate)
    assert second == Deliver(Ping(1))


def test_resume_is_special_only_as_the_first_message() -> None:
    """Later it is a frame like others, which the session refuses."""
    assert isinstance(machine().text(RESUME)[0], TakeOver)
    connection = machine()
    connection.text('{"type":"ping"}')
    [late] = connection.text(RESUME)
    assert isinstance(late, Deliver)
    assert isinstance(late.event, Resume)


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
