"""The double buffer at the engine's door."""

from __future__ import annotations

from inference.engine.door import DOOR_SWAP_S, OPENINGS_AT_ONCE, Door
from inference.engine.messages import (
    CallEnded,
    Cancel,
    Command,
    Credit,
    Hold,
    Open,
    Release,
    StreamKey,
    TurnAway,
)
from inference.engine.runner import Prepared
from inference.engine.timing import Marks
from seedance.protocol.request import GenerateRequest


def _open(stream: int, tenant: str = "a", call: int = 1) -> Open:
    return Open(
        stream=StreamKey(call, stream),
        generation=f"{call}/{stream}",
        request=GenerateRequest(prompt="x"),
        prepared=Prepared([1], lambda _: b""),
        marks=Marks(0, 0, 0),
        tenant=tenant,
    )


def _names(commands: list[Command]) -> list[str]:
    return [command.generation for command in commands if isinstance(command, Open)]


def test_an_idle_engine_takes_at_once() -> None:
    """What comes alone does not wait for a swap."""
    door = Door()
    for stream in (1, 2):
        door.put([_open(stream)])
        assert _names(door.take(0.0)) == [f"1/{stream}"]
    assert len(door) == 0


def test_a_burst_is_let_in_fairly() -> None:
    """Each tenant's first request, then each one's second; a tenant's own stay in order."""
    door = Door()
    door.put([_open(stream, "a") for stream in range(1, 5)])
    door.put([_open(1, "b", call=2), _open(2, "b", call=2), _open(1, "c", call=3)])
    assert _names(door.take(0.0)) == ["1/1", "2/1", "3/1", "1/2", "2/2", "1/3", "1/4"]


def test_the_engine_takes_one_half_before_the_other() -> None:
    """Who comes later waits until those before him are in, however few he is: for 50 ms."""
    door = Door()
    door.put([_open(stream, "a") for stream in range(1, 3 * OPENINGS_AT_ONCE + 1)])
    assert len(door.take(0.0)) == OPENINGS_AT_ONCE
    door.put([_open(1, "b", call=2)])
    assert "2/1" not in _names(door.take(DOOR_SWAP_S * 0.9))
    # The halves are swapped: the rest takes its turn with the newcomer, who is his tenant's first.
    assert _names(door.take(DOOR_SWAP_S))[:2] == [f"1/{2 * OPENINGS_AT_ONCE + 1}", "2/1"]
    assert len(door) == 1
    assert len(door.take(DOOR_SWAP_S)) == 1


def test_an_emptied_half_is_swapped_at_once() -> None:
    """No time has to pass when there is nobody left to take."""
    door = Door()
    door.put([_open(stream) for stream in range(1, OPENINGS_AT_ONCE + 1)])
    door.take(0.0)
    door.put([_open(99)])
    assert _names(door.take(0.0)) == ["1/99"]


def test_no_other_command_waits_for_requests() -> None:
    """Credit, cancel and release of running streams overtake a burst."""
    door = Door()
    door.put([_open(stream) for stream in range(1, 2 * OPENINGS_AT_ONCE + 1)])
    key = StreamKey(7, 7)
    urgent: list[Command] = [Credit(key, 1), Cancel(key), Release(key), Hold(7, on=True)]
    door.put(urgent)
    assert door.take(0.0)[:4] == urgent


def test_a_streams_own_commands_stay_behind_its_request() -> None:
    """In either half: credit must not arrive for a stream that is not there yet."""
    door = Door()
    last = 2 * OPENINGS_AT_ONCE
    door.put([_open(stream) for stream in range(1, last + 1)])
    follower = Credit(StreamKey(1, last), 5)
    door.put([follower])
    assert follower not in door.take(0.0)
    late = Cancel(StreamKey(1, last))
    door.put([late])
    taken = door.take(0.0)
    assert taken[-3:] == [_open_of(taken, last), follower, late]
    assert len(door) == 0


def _open_of(commands: list[Command], stream: int) -> Command:
    (found,) = [c for c in commands if isinstance(c, Open) and c.stream.stream == stream]
    return found


def test_requests_of_a_call_that_is_over_are_turned_away() -> None:
    """Nobody listens: they cost the engine nothing, and the others keep their place."""
    door = Door()
    door.put([_open(1, call=1), _open(1, call=2), Cancel(StreamKey(1, 1))])
    door.put([CallEnded(1)])
    assert len(door) == 2
    taken = door.take(0.0)
    assert taken[0] == CallEnded(1)
    assert _names(taken) == ["2/1"]
    assert len(door) == 0


def test_whoever_is_beyond_the_engines_room_is_turned_away_fairly() -> None:
    """One bound counts those here and in the queue; a flood costs those who ask for little nothing."""
    door = Door()
    door.put([_open(stream, "flood") for stream in range(1, 101)])
    door.put([Credit(StreamKey(1, 100), 5), _open(1, "b", call=2)])
    taken = door.take(0.0, room=4)
    assert _names(taken) == ["1/1", "2/1", "1/2", "1/3"]
    turned_away = [command for command in taken if isinstance(command, TurnAway)]
    assert [command.stream.stream for command in turned_away] == list(range(4, 101))
    assert len(taken) == 4 + 97, "what they had said besides goes with them"
    assert len(door) == 0
    # What is said to them later passes: the desk knows that there is nothing to say it to.
    late = Cancel(StreamKey(1, 100))
    door.put([late])
    assert door.take(0.0, room=-1) == [late]
