"""When gathered frames are written."""

from __future__ import annotations

import asyncio

import pytest

from gateway.writes import FRAMES_A_WRITE, QUIET_TURNS, WAIT_MAX_S, Writes
from tests.support.clock import FakeClock

# A turn in which frames came, the quiet ones after it, and the one that writes.
TURNS_UNTIL_WRITTEN = QUIET_TURNS + 2


class _Socket:
    """Gathers as `SocketProtocol` does."""

    def __init__(self, writes: Writes) -> None:
        self.written: list[int] = []
        self._gathered = 0
        self._writes = writes

    def send(self) -> None:
        self._writes.frames += 1
        if not self._gathered:
            self._writes.soon(self)
        self._gathered += 1

    def flush(self) -> None:
        self.written.append(self._gathered)
        self._gathered = 0


class _Broken(_Socket):
    def flush(self) -> None:
        raise RuntimeError("the transport has a fault")


async def _turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_lone_frame_is_written_within_a_few_turns_of_the_loop() -> None:
    """Nothing more comes: nobody waits for time, which stands still here."""
    writes = Writes(FakeClock())
    socket = _Socket(writes)
    for count in (1, 2, 3):
        socket.send()
        await _turns(TURNS_UNTIL_WRITTEN)
        assert socket.written == [1] * count


async def test_what_comes_in_time_leaves_in_one_write() -> None:
    """The next message takes a turn to be read and one to become frames: they leave together."""
    writes = Writes(FakeClock())
    first, second = _Socket(writes), _Socket(writes)
    first.send()
    await _turns(QUIET_TURNS)
    first.send()
    second.send()
    assert first.written == []
    await _turns(TURNS_UNTIL_WRITTEN)
    assert first.written == [2]
    assert second.written == [1]


async def test_a_write_has_enough_at_some_number_of_frames() -> None:
    """However much more is coming, no socket's frames wait for more than so many each."""
    writes = Writes(FakeClock())
    sockets = [_Socket(writes) for _ in range(3)]
    for _ in range(3 * FRAMES_A_WRITE):
        for socket in sockets:
            socket.send()
        await _turns(1)
    assert sockets[0].written
    assert all(FRAMES_A_WRITE <= count <= FRAMES_A_WRITE + 1 for count in sockets[0].written)


async def test_no_frame_waits_longer_than_its_bound() -> None:
    """A loop that is never done writes all the same when the time is up."""
    clock = FakeClock()
    writes = Writes(clock)
    socket, others = _Socket(writes), [_Socket(writes) for _ in range(64)]
    for each in (socket, *others):
        each.send()
    for _ in range(5):
        socket.send()
        await _turns(1)
    assert socket.written == []
    clock.advance(WAIT_MAX_S)
    await _turns(1)
    assert socket.written == [6]


async def test_one_connections_fault_keeps_nobody_elses_frames_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Sockets are written to in one go: the ones after a broken one, too."""
    writes = Writes(FakeClock())
    broken, whole = _Broken(writes), _Socket(writes)
    broken.send()
    whole.send()
    await _turns(TURNS_UNTIL_WRITTEN)
    assert whole.written == [1]
    assert "cannot be written to" in caplog.text
