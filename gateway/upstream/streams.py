"""The streams of one shared call: what is to be sent for them, and who hears what arrives.

No gRPC here: frames go into an outbox that the call empties, responses are handed in as they come.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from enum import Enum
from functools import partial
from itertools import islice
from typing import TypeVar

from gateway.upstream.base import Attach, Open, StreamListener
from gateway.upstream.wire import (
    accepted_from_pb,
    attach_to_pb,
    error_from_pb,
    finish_reason_from_pb,
    open_to_pb,
    pressure_from_pb,
    timing_from_pb,
    tokens_from_pb,
    usage_from_pb,
)
from seedance.protocol.errors import ErrorCode, SeedanceError
from seedance.protocol.pressure import FREE, Pressed, PressureLevel
from seedance.v2 import inference_pb2 as pb

__all__ = ["CallStreams", "Handle"]

_log = logging.getLogger("gateway.upstream")

T = TypeVar("T")

STREAM_ID_MAX = 2**32 - 1
# Frames that wait for the transport. Credit is merged per stream and never counts; over this an
# open is refused, because the instance does not take what it has been sent.
OUTBOX_FRAMES_MAX = 4096
REQUEST_BYTES_MAX = 2 * 1024 * 1024
# A newer owner attaches at once, or goes to another instance: as long as a generation without a call
# keeps its blocks (§7).
ORPHANED_S = 10.0


class _State(Enum):
    """A stream's life at this end."""

    OPENING = "opening"
    RUNNING = "running"  # the instance has taken it
    ENDED = "ended"  # done or failed; its generation is not released yet
    FORGOTTEN = "forgotten"  # released, abandoned, or the call broke


_NEXT = {
    _State.OPENING: {_State.RUNNING, _State.ENDED, _State.FORGOTTEN},
    _State.RUNNING: {_State.RUNNING, _State.ENDED, _State.FORGOTTEN},
    _State.ENDED: {_State.FORGOTTEN},
    _State.FORGOTTEN: set[_State](),
}


class Handle:
    """`StreamHandle` of one stream of one call."""

    def __init__(
        self, streams: CallStreams, stream_id: int, instance: str, listener: StreamListener
    ) -> None:
        self.stream_id = stream_id
        self.listener = listener
        self._streams = streams
        self._instance = instance
        self._state = _State.OPENING

    @property
    def instance(self) -> str:
        """The instance's id."""
        return self._instance

    @property
    def live(self) -> bool:
        """Whether something may still be heard."""
        return self.running or self._state is _State.OPENING

    @property
    def running(self) -> bool:
        """Whether the instance has taken it, and it has not ended."""
        return self._state is _State.RUNNING

    def add_credit(self, tokens: int) -> None:
        """Let the engine send this many more."""
        if self.live and tokens > 0:
            self._streams.send_credit(self.stream_id, tokens)

    def cancel(self) -> None:
        """End it; `on_done` with `cancelled` follows unless it has ended."""
        if self.live:
            self._streams.send(pb.ClientFrame(stream_id=self.stream_id, cancel=pb.Cancel()))

    def release(self) -> None:
        """Its end is in the store: the instance may forget it."""
        if self._state is not _State.FORGOTTEN:
            self._streams.send(pb.ClientFrame(stream_id=self.stream_id, release=pb.Release()))
            self.forget()

    def abandon(self) -> None:
        """Stop listening; who has the generation now goes on, and what nobody has ends later."""
        if self._state is not _State.FORGOTTEN:
            self.forget()
            self._streams.let_go(self.stream_id)

    def taken(self) -> None:
        """The instance has accepted it."""
        self._become(_State.RUNNING)

    def end(self) -> None:
        """Nothing more comes; `release` may still be said."""
        self._become(_State.ENDED)
        self._streams.drop(self)

    def forget(self) -> None:
        """Nothing more comes and nothing more is said."""
        self._become(_State.FORGOTTEN)
        self._streams.drop(self)

    def _become(self, state: _State) -> None:
        assert state in _NEXT[self._state], (self._state, state)  # noqa: S101 - our own bug
        self._state = state


class CallStreams:
    """All streams of one call. `wake` is called when there is something to send.

    `pressed` is what the instance asked for last.
    """

    def __init__(self, instance: str, wake: Callable[[], None]) -> None:
        self.pressed = FREE
        self._instance = instance
        self._wake = wake
        self._live: dict[int, Handle] = {}
        # Openings, which may be large, and what is said of a stream whose opening waits here; for all others
        # nothing waits behind them.
        self._outbox: list[pb.ClientFrame] = []
        self._unsent: set[int] = set()
        self._urgent: list[pb.ClientFrame] = []
        self._credit: dict[int, int] = {}
        self._last_id = 0

    def __len__(self) -> int:
        return len(self._live)

    # ------------------------------------------------------------ towards the instance

    def open(self, spec: Open | Attach, listener: StreamListener) -> Handle:
        """A new stream that begins, continues or takes over a generation.

        Raises `SeedanceError` (`overloaded`) when too much waits to be sent.
        """
        if len(self._outbox) >= OUTBOX_FRAMES_MAX:
            raise SeedanceError(ErrorCode.OVERLOADED, "the instance takes no more requests now")
        stream_id = self._new_id()
        handle = Handle(self, stream_id, self._instance, listener)
        self._live[stream_id] = handle
        self._unsent.add(stream_id)
        self.send(
            open_to_pb(stream_id, spec) if isinstance(spec, Open) else attach_to_pb(stream_id, spec)
        )
        return handle

    def send(self, frame: pb.ClientFrame) -> None:
        """Queue a frame; what is queued within one turn of the loop leaves as one message."""
        (self._outbox if frame.stream_id in self._unsent else self._urgent).append(frame)
        self._wake()

    def send_credit(self, stream_id: int, tokens: int) -> None:
        """Queue credit; what a stream is given before the next message is one frame."""
        self._credit[stream_id] = self._credit.get(stream_id, 0) + tokens
        self._wake()

    def take_request(self) -> pb.StreamRequest | None:
        """The next message to send, each stream's frames in order; None: nothing waits."""
        urgent, self._urgent = self._urgent, []
        size = count = 0
        for frame in self._outbox:
            size += frame.ByteSize()
            if count and size > REQUEST_BYTES_MAX:
                break
            count += 1
        frames, self._outbox = urgent + self._outbox[:count], self._outbox[count:]
        self._unsent = {frame.stream_id for frame in self._outbox}
        credit, self._credit = self._credit, {}
        for stream_id, tokens in credit.items():
            if stream_id in self._unsent:
                # A stream's credit must not overtake its `open`.
                self._credit[stream_id] = tokens
            elif stream_id in self._live:
                frames.append(pb.ClientFrame(stream_id=stream_id, credit=pb.Credit(tokens=tokens)))
        return pb.StreamRequest(frames=frames) if frames else None

    def let_go(self, stream_id: int) -> None:
        """Nobody listens here any more: end the generation unless a newer owner has it by then.

        The instance sees this call as its listener for as long as the call lives, and would hold its
        blocks. Once another one has attached, what this stream says is not heard.
        """
        asyncio.get_running_loop().call_later(ORPHANED_S, self._end_orphan, stream_id)

    def _end_orphan(self, stream_id: int) -> None:
        self.send(pb.ClientFrame(stream_id=stream_id, cancel=pb.Cancel()))
        self.send(pb.ClientFrame(stream_id=stream_id, release=pb.Release()))

    def hand_over(self, count: int) -> None:
        """Break so many running streams off, so that they are looked for elsewhere.

        Their instance forgets them: whoever asks it for one is told that it does not know it, not that it
        was cancelled.
        """
        running = (handle for handle in self._live.values() if handle.running)
        for handle in list(islice(running, count)):
            handle.cancel()
            handle.release()
            _tell_broken(handle)

    def drop(self, handle: Handle) -> None:
        """The stream is not live any more."""
        self._live.pop(handle.stream_id, None)

    def _new_id(self) -> int:
        while True:
            self._last_id = self._last_id % STREAM_ID_MAX + 1
            if self._last_id not in self._live:
                return self._last_id

    # ------------------------------------------------------------ from the instance

    def receive(self, response: pb.StreamResponse) -> None:
        """Handle one message as one batch: beginnings, then tokens, then ends.

        Raises `ValueError` for what no instance of ours would send.
        """
        ends = [frame for frame in response.frames if not self._begin(frame)]
        find = self._live.get
        for stream_id, tokens in tokens_from_pb(response.tokens):
            handle = find(stream_id)
            if handle is not None:
                try:
                    handle.listener.on_tokens(tokens)
                except Exception:  # noqa: BLE001 - as in `_tell`, whose call would cost as much again
                    self._failed(handle)
        for frame in ends:
            self._end(frame)

    def break_all(self) -> None:
        """The call is over: every live stream hears it, once."""
        for handle in list(self._live.values()):
            handle.forget()
            _tell_broken(handle)

    def _begin(self, frame: pb.ServerFrame) -> bool:
        kind = frame.WhichOneof("frame")
        if kind == "pressure":
            self._press(pressure_from_pb(frame.pressure))
        elif kind == "accepted":
            handle = self._live.get(frame.stream_id)
            if handle is not None:
                handle.taken()
                self._tell(handle, handle.listener.on_accepted, accepted_from_pb(frame.accepted))
                if handle.live and self.pressed is not FREE:
                    self._tell_pressure(handle)
        return kind in ("pressure", "accepted")

    def _press(self, pressed: Pressed) -> None:
        self.pressed = pressed if pressed[0] is not PressureLevel.NONE else FREE
        for handle in list(self._live.values()):
            self._tell_pressure(handle)

    def _tell_pressure(self, handle: Handle) -> None:
        level, reason = self.pressed
        self._tell(handle, partial(handle.listener.on_pressure, level), reason)

    def _end(self, frame: pb.ServerFrame) -> None:
        kind = frame.WhichOneof("frame")
        handle = self._live.get(frame.stream_id)
        if handle is None or kind not in ("done", "error"):
            return
        handle.end()
        listener = handle.listener
        try:
            if kind == "done":
                done = frame.done
                reason = finish_reason_from_pb(done.finish_reason)
                listener.on_done(reason, usage_from_pb(done.usage), timing_from_pb(done.timing))
            else:
                given = frame.error.HasField("usage")
                usage = usage_from_pb(frame.error.usage) if given else None
                listener.on_error(error_from_pb(frame.error), usage)
        except Exception:  # noqa: BLE001 - one stream's fault must not take the call's others with it
            _log.exception("a stream failed at its end")

    def _tell(self, handle: Handle, hear: Callable[[T], None], what: T) -> None:
        try:
            hear(what)
        except Exception:  # noqa: BLE001 - one stream's fault must not take the call's others with it
            self._failed(handle)

    def _failed(self, handle: Handle) -> None:
        _log.exception("a stream failed; it is cancelled")
        handle.cancel()
        handle.release()


def _tell_broken(handle: Handle) -> None:
    try:
        handle.listener.on_broken()
    except Exception:  # noqa: BLE001 - one stream's fault must not take the call's others with it
        _log.exception("a stream failed while its call broke")
