"""The engine's door under any traffic."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from inference.engine.door import DOOR_SWAP_S, OPENINGS_AT_ONCE, Door
from inference.engine.messages import CallEnded, Cancel, Command, Credit, Hold, Open, StreamKey
from inference.engine.runner import Prepared
from inference.engine.timing import Marks
from seedance.protocol.request import GenerateRequest

# A burst of openings, a command of a stream, the end of a call, or a look of the engine.
EVENTS = st.one_of(
    st.tuples(st.just("burst"), st.integers(1, 3), st.integers(1, 60)),
    st.tuples(st.just("credit"), st.integers(0, 200), st.integers(1, 9)),
    st.tuples(st.just("cancel"), st.integers(0, 200)),
    st.tuples(st.just("hold"), st.integers(1, 3)),
    st.tuples(st.just("end"), st.integers(1, 3)),
    st.tuples(st.just("take"), st.sampled_from([0.0, 0.001, DOOR_SWAP_S])),
)


def _open(key: StreamKey) -> Open:
    request, prepared = GenerateRequest(prompt="x"), Prepared([1], lambda _: b"")
    name = f"{key.call}/{key.stream}"
    return Open(key, name, request, prepared, Marks(0, 0, 0), tenant=f"tenant-{key.call}")


class _Traffic:
    """A door, what was put into it and what came out, stream by stream."""

    def __init__(self) -> None:
        self.door = Door()
        self.now = 0.0
        self.put: dict[StreamKey, list[Command]] = {}
        self.out: dict[StreamKey, list[Command]] = {}
        self.calls_out = 0
        self.calls_put = 0
        self._last = 0
        self._waiting: set[StreamKey] = set()

    def play(self, event: tuple[object, ...]) -> None:
        """One event."""
        match event:
            case ("burst", int(call), int(count)):
                for _ in range(count):
                    self._last += 1
                    self._waiting.add(StreamKey(call, self._last))
                    self._put(_open(StreamKey(call, self._last)))
            case ("credit", int(which), int(tokens)) if self.put:
                self._put(Credit(self._asked(which), tokens))
            case ("cancel", int(which)) if self.put:
                self._put(Cancel(self._asked(which)))
            case ("hold", int(call)):
                self.calls_put += 1
                self.door.put([Hold(call, on=True)])
            case ("end", int(call)):
                self.calls_put += 1
                self.door.put([CallEnded(call)])
                for key in [key for key in self._waiting if key.call == call]:
                    self.put[key] = []
                    self._waiting.remove(key)
            case ("take", float(seconds)):
                self.now += seconds
                self.take()

    def take(self) -> None:
        """The engine looks."""
        taken = self.door.take(self.now)
        assert sum(isinstance(command, Open) for command in taken) <= OPENINGS_AT_ONCE
        for command in taken:
            if isinstance(command, CallEnded | Hold):
                self.calls_out += 1
            else:
                self.out.setdefault(command.stream, []).append(command)
                self._waiting.discard(command.stream)

    def _asked(self, which: int) -> StreamKey:
        """Some stream that was asked for."""
        return list(self.put)[which % len(self.put)]

    def _put(self, command: Open | Credit | Cancel) -> None:
        self.put.setdefault(command.stream, []).append(command)
        self.door.put([command])


@given(st.lists(EVENTS, max_size=60))
def test_every_command_passes_once_and_in_its_streams_order(
    events: list[tuple[object, ...]],
) -> None:
    """Nothing is lost, doubled or overtaken within a stream, and the door is empty in the end."""
    traffic = _Traffic()
    for event in events:
        traffic.play(event)
    looks = 0
    while len(traffic.door):
        traffic.take()
        looks += 1
        assert looks <= 200
    put = {key: commands for key, commands in traffic.put.items() if commands}
    assert traffic.out == put
    assert traffic.calls_out == traffic.calls_put
