"""The client's half of a session, without I/O: what the SDK runs, and the simulation.

The host owns a socket, a clock and the user; it tells the machine what happened by `step(event,
now)`, does the effects that come back in their order, and calls again with `Tick` at `deadline()`.
Text comes out of it once: numbers below the window are dropped (§4.1), text is placed by its byte
offset (§4.5), and `accepted`, `done`, `error` of a stream count once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum

from seedance.protocol import client_events as on
from seedance.protocol.client_streams import ClientStreams
from seedance.protocol.errors import CLOSE_RETRY_RESUME, CloseCode, ErrorCode, SeedanceError
from seedance.protocol.frames import (
    SEQUENCED,
    Checkpoint,
    ClientFrame,
    Close,
    Done,
    ErrorFrame,
    GoAway,
    Ping,
    Pong,
    PressureFrame,
    Resume,
    Resumed,
    SequencedFrame,
    ServerFrame,
    SessionFrame,
)
from seedance.protocol.receive import ReceiveWindow
from seedance.protocol.reconnect import Backoff, Reconnect

__all__ = ["GREETING_S", "PING_SHARE", "ClientMachine", "ClientState"]

# How long a new socket may take to say its first word.
GREETING_S = 10.0
# The part of the session's time-out that may pass in silence before the client asks.
PING_SHARE = 1 / 3


class ClientState(Enum):
    """Where the client stands with its connection."""

    IDLE = "idle"  # no connection, and none wanted until there is work
    CONNECTING = "connecting"  # waiting to dial, dialling, or waiting for `session`
    RESUMING = "resuming"  # `resume` is sent, `resumed` not yet here
    OPEN = "open"  # frames go both ways
    CLOSED = "closed"  # the user closed it


_MOVES: dict[ClientState, frozenset[ClientState]] = {
    ClientState.IDLE: frozenset({ClientState.CONNECTING, ClientState.CLOSED}),
    ClientState.CONNECTING: frozenset(
        {ClientState.OPEN, ClientState.RESUMING, ClientState.IDLE, ClientState.CLOSED}
    ),
    ClientState.RESUMING: frozenset(
        {ClientState.OPEN, ClientState.CONNECTING, ClientState.IDLE, ClientState.CLOSED}
    ),
    ClientState.OPEN: frozenset({ClientState.CONNECTING, ClientState.IDLE, ClientState.CLOSED}),
    ClientState.CLOSED: frozenset(),
}


class _Timer(Enum):
    DIAL = "dial"  # the back-off is over
    LEAVE = "leave"  # the gateway drains: move on
    PING = "ping"  # the server was silent for a while: ask
    SILENCE = "silence"  # and did not answer: the connection is dead


# What a connection that will not be tried again means to those who wait for text.
_ERROR_OF_CLOSE: dict[int, tuple[ErrorCode, str]] = {
    CloseCode.NORMAL: (ErrorCode.UNAVAILABLE, "the server ended the session"),
    CloseCode.MESSAGE_TOO_BIG: (ErrorCode.BAD_REQUEST, "the request is larger than 1 MiB"),
    CloseCode.UNAUTHORIZED: (ErrorCode.UNAUTHORIZED, "the key was refused"),
    CloseCode.FORBIDDEN: (ErrorCode.UNAUTHORIZED, "this key or origin may not connect"),
    CloseCode.TAKEN_OVER: (ErrorCode.SESSION_EXPIRED, "another connection took the session over"),
    CloseCode.SESSION_UNKNOWN: (ErrorCode.SESSION_EXPIRED, "the session is gone"),
}
_GAVE_UP = (ErrorCode.UNAVAILABLE, "no gateway can be reached")
_NO_PRESSURE = PressureFrame("none", "")


def _reason(close_code: int, refusal: ErrorFrame | None) -> tuple[ErrorCode, str]:
    # What the server said in words is better than what its number means.
    if refusal is not None:
        return refusal.code, refusal.message
    unknown = (ErrorCode.INTERNAL, f"the server closed the connection with {close_code}")
    return _ERROR_OF_CLOSE.get(close_code, unknown)


def _resume(session: SessionFrame, last_seq: int, offsets: dict[str, int]) -> Resume:
    return Resume(session.session, session.token, last_seq, offsets)


def _ping(now: float) -> Ping:
    return Ping(int(now * 1000))


class ClientMachine:
    """One client session, over as many connections as it takes.

    `url` is the endpoint, `jitter` gives numbers evenly spread over [0, 1). `pressure` is what the server
    said last of how much less it asks for.
    """

    def __init__(
        self, url: str, *, jitter: Callable[[], float], backoff: Backoff | None = None
    ) -> None:
        self.pressure = _NO_PRESSURE
        self._state = ClientState.IDLE
        self._jitter = jitter
        self.reconnect = Reconnect(url, jitter, backoff or Backoff())
        self._session: SessionFrame | None = None
        self._window: ReceiveWindow[SequencedFrame] = ReceiveWindow(size=1)
        self._streams = ClientStreams()
        self._behind: set[str] = set()
        self._timers: dict[_Timer, float] = {}
        self._opened_at = 0.0
        self._refusal: ErrorFrame | None = None
        self._effects: list[on.Effect] = []

    @property
    def state(self) -> ClientState:
        """Where the client stands with its connection."""
        return self._state

    @property
    def session(self) -> SessionFrame | None:
        """What the server said of the session that holds, if one does."""
        return self._session

    def deadline(self) -> float | None:
        """When the host should call with `Tick`; None while there is nothing to wait for."""
        times = list(self._timers.values())
        ack_at = self._window.ack_deadline()
        if ack_at is not None and self._may_acknowledge():
            times.append(ack_at)
        return min(times, default=None)

    def step(self, event: on.Event, now: float) -> list[on.Effect]:
        """Take one event; gives the effects to be done, in order.

        Raises `SeedanceError` for a `Submit` that cannot be taken: `overloaded` with too many
        generations at once, `unavailable` once closed.
        """
        match event:
            case on.Received(frame, seq):
                self._received(frame, seq, now)
            case on.Connect():
                self._connect()
            case on.Submit():
                self._submit(event)
            case on.Abort(stream_id):
                connected = self._state is ClientState.OPEN and not self.reconnect.probing
                self._effects += self._streams.abort(stream_id, connected=connected)
            case on.Opened():
                self._opened(now)
            case on.Lost(close_code):
                self._lost(close_code, now)
            case on.Reading(stream_id, behind):
                (self._behind.add if behind else self._behind.discard)(stream_id)
            case on.Tick():
                self._tick(now)
            case on.Shut():
                self._shut()
        self._acknowledge(now)
        effects, self._effects = self._effects, []
        return effects

    # ------------------------------------------------------------ the user

    def _connect(self) -> None:
        if self._state is ClientState.IDLE:
            self._move(ClientState.CONNECTING)
            self._effects.append(on.Dial(self.reconnect.url))

    def _submit(self, event: on.Submit) -> None:
        if self._state is ClientState.CLOSED:
            raise SeedanceError(ErrorCode.UNAVAILABLE, "the client is closed")
        self._streams.add(event.frame)
        self._ask()
        self._connect()

    def _shut(self) -> None:
        if self._state is ClientState.CLOSED:
            return
        if self._state is ClientState.OPEN:
            self._send([Close()])
        if self._state is not ClientState.IDLE:
            self._effects.append(on.Hangup(CloseCode.NORMAL))
        self._end(ClientState.CLOSED, ErrorCode.UNAVAILABLE, "the client was closed")

    # ------------------------------------------------------------ the connection

    def _opened(self, now: float) -> None:
        if self._state is not ClientState.CONNECTING:
            return
        self._opened_at, self._refusal = now, None
        self._timers = {_Timer.SILENCE: now + GREETING_S}
        if self._session is not None and self._streams.unsettled:
            self._move(ClientState.RESUMING)
            self._send([_resume(self._session, self._window.base - 1, self._streams.offsets())])
        else:
            # Nothing is left to fetch from the old session: begin a new one.
            self._session = None
            self._effects += self._streams.lose_session(*_GAVE_UP)

    def _lost(self, close_code: int, now: float) -> None:
        if self._state in (ClientState.IDLE, ClientState.CLOSED):
            return
        self.pressure = _NO_PRESSURE
        if self._state is ClientState.OPEN:
            self.reconnect.lost(now - self._opened_at)
        else:
            self.reconnect.failed()
        if close_code == CloseCode.SESSION_UNKNOWN and self._session is not None:
            self._session = None
            self._effects += self._streams.lose_session(*_ERROR_OF_CLOSE[close_code])
            if self._streams:
                self._retry(now)
            else:
                self._end(ClientState.IDLE, *_ERROR_OF_CLOSE[close_code])
        elif close_code in CLOSE_RETRY_RESUME:
            if self._state is ClientState.RESUMING and self._streams and not self._streams.started:
                # There was only an end to tell: nobody has to wait for that.
                self._session = None
            self._retry(now)
        else:
            self._end(ClientState.IDLE, *_reason(close_code, self._refusal))

    def _retry(self, now: float) -> None:
        delay_s = self.reconnect.next_delay_s()
        if delay_s is None:
            self._end(ClientState.IDLE, *_GAVE_UP)
            return
        self._move(ClientState.CONNECTING)
        self._timers = {_Timer.DIAL: now + delay_s}

    def _end(self, state: ClientState, code: ErrorCode, message: str) -> None:
        self._effects += self._streams.fail(code, message)
        self._session = None
        self._behind.clear()
        self._timers.clear()
        self._move(state)

    def _tick(self, now: float) -> None:
        due = [timer for timer, at in self._timers.items() if at <= now]
        for timer in due:
            self._timers.pop(timer, None)
        if _Timer.SILENCE in due or _Timer.LEAVE in due:
            self._effects.append(on.Hangup(CloseCode.GOING_AWAY))
            self._lost(CloseCode.TIMEOUT if _Timer.SILENCE in due else CloseCode.GOING_AWAY, now)
        elif _Timer.DIAL in due:
            self._effects.append(on.Dial(self.reconnect.url))
        elif _Timer.PING in due:
            self._send([_ping(now)])

    # ------------------------------------------------------------ what comes in

    def _received(self, frame: ServerFrame, seq: int | None, now: float) -> None:
        if self._state in (ClientState.IDLE, ClientState.CLOSED):
            return
        self._heard(now)
        match frame:
            case SessionFrame() if self._state is ClientState.CONNECTING:
                # While resuming it is the provisional session that every connection is greeted with.
                self._window = ReceiveWindow(size=max(1, frame.window.max))
                self._open(frame, now)
            case Resumed(from_seq, session) if self._state is ClientState.RESUMING:
                self._window.restart(max(from_seq, self._window.base))
                self._open(session, now)
            case _ if not isinstance(frame, SEQUENCED):
                self._control(frame, now)
            case ErrorFrame(id=None):
                self._refusal = frame
        if isinstance(frame, SEQUENCED) and self._state is ClientState.OPEN:
            self._take(frame, seq, now)

    def _control(self, frame: ServerFrame, now: float) -> None:
        match frame:
            case Ping(t):
                self._send([Pong(t)])
            case Pong() if self._state is ClientState.OPEN:
                self._beat(now)
            case PressureFrame():
                self.pressure = frame
            case Checkpoint(sequence_id, ack_level="committed"):
                self._streams.committed(sequence_id)
            case GoAway(reconnect_ms=reconnect_ms):
                # Not all at the same moment: a drained process has thousands of us.
                self._timers[_Timer.LEAVE] = now + self._jitter() * reconnect_ms / 1000

    def _heard(self, now: float) -> None:
        if self._state is ClientState.OPEN and self._session is not None:
            quiet_s = self._session.heartbeat.session
            self._timers |= {_Timer.SILENCE: now + quiet_s, _Timer.PING: now + quiet_s * PING_SHARE}

    def _open(self, session: SessionFrame, now: float) -> None:
        self._session = session
        self.reconnect.learn(session.gateways)
        self._move(ClientState.OPEN)
        self._timers.clear()
        self._heard(now)
        self._send([_ping(now)] if self.reconnect.probing else self._streams.unheard())

    def _beat(self, now: float) -> None:
        if self.reconnect.breaker.beat():
            self._send(self._streams.unheard())
        elif self.reconnect.probing:
            self._send([_ping(now)])

    def _take(self, frame: SequencedFrame, seq: int | None, now: float) -> None:
        if seq is None:
            self._effects += self._streams.take(frame, self._window.base - 1)
            return
        first = self._window.base
        for number, ready in enumerate(self._window.receive(seq, frame, now), first):
            self.reconnect.progressed()
            self._effects += self._streams.take(ready, number)
            if isinstance(ready, Done | ErrorFrame) and ready.id is not None:
                self._behind.discard(ready.id)
                self._ask()

    # ------------------------------------------------------------ what goes out

    def _ask(self) -> None:
        """Send the generations whose turn it is, on a connection that need not prove itself first."""
        if self._state is ClientState.OPEN and not self.reconnect.probing:
            self._send(self._streams.waiting())

    def _may_acknowledge(self) -> bool:
        # No `ack` while a reader is behind: the server's window closes, and the engine rests.
        # One whose stream has ended, perhaps with its session, holds nobody back.
        return self._state is ClientState.OPEN and not self._streams.any_live(self._behind)

    def _acknowledge(self, now: float) -> None:
        ack_at = self._window.ack_deadline()
        if ack_at is not None and ack_at <= now and self._may_acknowledge():
            self._send([self._window.ack()])

    def _send(self, frames: Iterable[ClientFrame]) -> None:
        self._effects += map(on.Send, frames)

    def _move(self, state: ClientState) -> None:
        allowed = state is self._state or state in _MOVES[self._state]
        assert allowed, f"{self._state} to {state}"  # noqa: S101
        self._state = state
