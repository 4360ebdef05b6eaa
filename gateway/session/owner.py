"""The host of one session's machine: carries out what it asks, for as long as this gateway owns it."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Protocol, TypeVar

from gateway.session.checkpoint import Checkpointer
from gateway.session.generation import Generation
from gateway.session.identity import SessionIdentity
from gateway.session.journal import Journal, Opening
from gateway.session.paid import generation_of
from gateway.session.presence import StoreState
from gateway.store.base import SessionWrite
from gateway.tenants.desk import Permit
from seedance.protocol.delivery import LinkState
from seedance.protocol.effects import (
    CancelUpstream,
    CloseLink,
    Effect,
    Fenced,
    Finished,
    Grant,
    OpenUpstream,
    RecoverUpstream,
    Send,
    SessionOver,
)
from seedance.protocol.errors import CloseCode, SeedanceError
from seedance.protocol.events import (
    LinkDown,
    Refused,
    SessionEvent,
    Stored,
    StoreLevel,
    Tick,
)
from seedance.protocol.frames import Done, ErrorFrame, Generate, Token
from seedance.protocol.log import Entry
from seedance.protocol.session import SessionMachine, SessionState

if TYPE_CHECKING:
    from gateway.deps import GatewayDeps
    from gateway.session.registry import SessionRegistry

__all__ = ["SOON_S", "Carrier", "OwnerState", "SessionOwner"]

# Who is asked within this time needs no other deadline before it: none of a session's is shorter, and to
# compute them is a quarter of what an acknowledgement costs.
SOON_S = 1.0
T = TypeVar("T")


class Carrier(Protocol):
    """The connection that carries a session now."""

    @property
    def idle(self) -> bool:
        """Whether everything sent has left the process."""
        ...

    @property
    def piece_at(self) -> float | None:
        """When a piece of a message came whose rest is still on its way; None: there was none."""
        ...

    @property
    def traceparent(self) -> str:
        """What the client's upgrade request said; empty: nothing."""
        ...

    def send(self, effect: Send) -> None:
        """Hand a frame to the transport."""
        ...

    def close(self, code: CloseCode, reason: str) -> None:
        """Close the connection; nothing of it reaches the session any more."""
        ...


class OwnerState(Enum):
    """Whether this gateway owns the session, is writing down its end, or has let go."""

    OWNING = "owning"
    CLOSING = "closing"
    GONE = "gone"


# By a name of its own: to look a member up in its enum costs ten times a global (Python 3.11).
_OWNING, _GONE = OwnerState.OWNING, OwnerState.GONE
_LIVE = SessionState.LIVE


class SessionOwner:
    """Holds a session's machine, its generations, its journal and its connection."""

    def __init__(
        self,
        identity: SessionIdentity,
        epoch: int,
        machine: SessionMachine,
        registry: SessionRegistry,
    ) -> None:
        self.identity = identity
        self.epoch = epoch
        self.guessed = False  # the epoch: the store was away when it was raised
        self.machine = machine
        self.deps: GatewayDeps = registry.deps
        self.state = _OWNING
        self.carrier: Carrier | None = None
        self.armed_at = float("inf")
        self.journal = Journal(identity, machine, self._opening, self.deps.usage)
        self._registry = registry
        self._checkpointer: Checkpointer = registry.checkpointer
        self.place = self._checkpointer.turns.place()
        self._generations: dict[str, Generation] = {}
        self.pumping = False
        # Of the request that the machine is being asked for.
        self._permit: Permit | None = None

    def step(self, event: SessionEvent) -> None:
        """Give the machine an event and do what it asks."""
        self._act(self.machine.step, event)

    def acknowledged(self, seq: int) -> None:
        """As `step(Ack(seq))`, which comes with every few tokens."""
        self._act(self.machine.acknowledged, seq)

    def _act(self, take: Callable[[T, float], list[Effect]], what: T) -> None:
        if self.state is _GONE:
            return
        now = self.deps.clock.monotonic()
        for effect in take(what, now):
            self._do(effect)
        if not self.journal.marked and self.machine.state is _LIVE:
            self._checkpointer.mark(self)
        if self.armed_at > now + SOON_S:
            self._arm(now)

    def ask(self, frame: Generate) -> None:
        """A request, if its tenant may make one more; an id that the session has is no new one (§3)."""
        if not self.machine.streams.knows(frame.id):
            try:
                self._permit = self.deps.tenants.admit(self.identity.tenant, frame.request)
            except SeedanceError as refusal:
                self.deps.metrics.rejected.labels(refusal.code.value).inc()
                self.step(Refused(refusal, frame.id))
                return
        try:
            self.step(frame)
        finally:
            _give_back(self._permit)  # where the session itself would not have it
            self._permit = None

    def hear(self, event: SessionEvent) -> None:
        """As `step`, for what instances say: its text leaves in the next round."""
        for effect in self.machine.step(event, self.deps.clock.monotonic()):
            self._do(effect)
        self.pump_soon()

    def pump_soon(self) -> None:
        """Let text leave in the next round."""
        if not self.pumping:
            self.pumping = True
            self._registry.pump_soon(self)

    def pump(self, now: float) -> None:
        """Let text leave. In the usual case, text behind text, no deadline moves."""
        self.pumping = False
        if self.state is _GONE:
            return
        machine = self.machine
        quiet = machine.delivery.log.entries and machine.delivery.pressure.calm
        carrier, journal = self.carrier, self.journal
        for effect in machine.pump(now):
            if type(effect) is Entry and type(effect.frame) is Token and carrier is not None:
                carrier.send(effect)
            else:
                self._do(effect)
                carrier = self.carrier
        if machine.state is _LIVE and not journal.marked:
            self._checkpointer.mark(self)
        if not (quiet and machine.delivery.pressure.calm):
            self._arm(now)

    def on_time(self, _now: float) -> None:
        """A deadline of the machine may have come (called by the timer wheel)."""
        at = self.carrier
        self.step(Tick(at.idle, at.piece_at) if at else Tick())

    def _arm(self, now: float) -> None:
        at = None if self.machine.over else self.machine.deadline(now)
        if at is not None and self.state is _OWNING:
            self._registry.timers.arm(self, at)

    def attach(self, carrier: Carrier, event: SessionEvent) -> None:
        """Let this connection carry the session; an older one is told that it was taken over."""
        older, self.carrier = self.carrier, None
        if older is not None:
            older.close(CloseCode.TAKEN_OVER, "taken over by a newer connection")
        self.carrier = carrier
        self.journal.renew()
        self.step(event)
        if self._checkpointer.state is not StoreState.THERE:
            self.store_level(committed=False)

    def detach(self, carrier: Carrier) -> None:
        """The connection is gone; if it is not the one that carries the session, nothing happens."""
        if self.carrier is carrier:
            self._carried_no_more()

    def _carried_no_more(self) -> None:
        self.carrier = None
        self.journal.renew()  # from now on its time is running out
        self.step(LinkDown())

    def _do(self, effect: Effect) -> None:
        match effect:
            case Send(frame):
                if self.carrier is not None:
                    self.carrier.send(effect)
                if isinstance(frame, (Done, ErrorFrame)) and frame.id is not None:
                    self.journal.touch(frame.id)
            case OpenUpstream(stream, credit):
                self._open(stream, credit)
            case (
                Grant(stream) | RecoverUpstream(stream) | CancelUpstream(stream) | Finished(stream)
            ):
                if stream in self._generations:
                    _tell(self._generations[stream], effect)
            case CloseLink(code, reason):
                self._close(code, reason)
            case Fenced():
                self.fenced()
            case SessionOver():
                self._over()

    def _over(self) -> None:
        self._registry.forget(self)
        # What nobody but this connection knew leaves no trace.
        known = bool(self._generations) or self.journal.written
        self.state = OwnerState.CLOSING if known else _GONE
        if known:
            self._checkpointer.mark(self)

    def _open(self, stream: str, credit: int) -> None:
        machine = self.machine.streams.live[stream]
        carried = self.carrier.traceparent if self.carrier is not None else ""
        opening = Opening(
            machine.wants,
            machine.fingerprint,
            self.deps.clock.wall_ms(),
            machine.wants.traceparent or carried,
            reused=self.machine.streams.forgets,
        )
        permit, self._permit = self._permit or self.deps.tenants.adopt(self.identity.tenant), None
        generation = self._generations[stream] = generation_of(self, machine, opening, permit)
        self.journal.touch(stream)
        # With the store away nothing waits for it (§4.4).
        machine.stored = self._checkpointer.state is not StoreState.THERE
        generation.open(credit)

    def adopt(self, stream: str, opening: Opening) -> None:
        """A stream of a former owner, out of the store."""
        machine = self.machine.streams.live[stream]
        permit = self.deps.tenants.adopt(self.identity.tenant)
        self._generations[stream] = generation_of(self, machine, opening, permit)

    def _opening(self, stream: str) -> Opening | None:
        return self._generations[stream].opening if stream in self._generations else None

    def _close(self, code: CloseCode, reason: str) -> None:
        carrier, self.carrier = self.carrier, None
        if carrier is not None:
            carrier.close(code, reason)
            self._carried_no_more()

    def take_write(self) -> SessionWrite | None:
        """What the store has to be told."""
        if self.machine.state is SessionState.PROVISIONAL or self.state is _GONE:
            return None
        return self.journal.take(self.epoch, detached=self.machine.delivery.link is LinkState.DOWN)

    def stored(self, write: SessionWrite) -> None:
        """A write is in the store."""
        self.journal.stored(write)
        self.guessed = self.guessed and write.epoch != self.epoch
        for stream in write.streams:
            if stream.ended is not None and stream.id in self._generations:
                self._generations.pop(stream.id).release()
        if write.closed:
            for generation in self._generations.values():
                generation.release()
            self._generations.clear()
            self.state = _GONE
            return
        last = write.entries[-1].seq if write.entries else max(0, write.acked - 1)
        opened, clock = _opened(write), self.deps.clock
        if opened:
            self.step(Stored(last, clock.wall_ms(), opened))
        else:
            effects, tick_at = self.machine.stored(last, clock.wall_ms(), clock.monotonic())
            for effect in effects:
                self._do(effect)
            if tick_at is not None and self.state is _OWNING:
                self._registry.timers.arm(self, tick_at)

    def not_stored(self, write: SessionWrite) -> None:
        """The store is away: nobody waits for it, and everything is written when it is back (§4.4)."""
        self.journal.rewrite()
        self.step(Stored(0, self.deps.clock.wall_ms(), _opened(write)))

    def store_level(self, *, committed: bool) -> None:
        """The store came or went."""
        self.step(StoreLevel(committed, self.deps.clock.wall_ms()))

    def fenced(self) -> None:
        """Another owner has the session: let go of everything without touching it (§4.6)."""
        # Whose client came later nobody knows of a guess: it may ask again, and is then the newest.
        code = CloseCode.TRY_AGAIN_LATER if self.guessed else CloseCode.TAKEN_OVER
        self._let_go(code, "the session is owned by another gateway")

    def failed(self) -> None:
        """A fault of ours: let go, so that the client resumes from what the store has."""
        self._let_go(CloseCode.INTERNAL_ERROR, "the session failed on this gateway")

    def _let_go(self, code: CloseCode, reason: str) -> None:
        self._registry.forget(self)
        self.journal.let_go()
        self.abandon()
        carrier, self.carrier = self.carrier, None
        if carrier is not None:
            carrier.close(code, reason)

    def abandon(self) -> None:
        """Stop listening to the instances; they go on until their credit is used up."""
        self.state = _GONE
        self._registry.timers.disarm(self)
        for generation in self._generations.values():
            generation.abandon()
        self._generations.clear()


def _tell(
    generation: Generation, effect: Grant | RecoverUpstream | CancelUpstream | Finished
) -> None:
    match effect:
        case Grant(_, tokens):
            generation.grant(tokens)
        case RecoverUpstream(_, credit):
            generation.recover(credit)
        case CancelUpstream():
            generation.cancel()
        case Finished():
            generation.finish(effect)


def _opened(write: SessionWrite) -> tuple[str, ...]:
    return tuple([stream.id for stream in write.streams if stream.opened is not None])


def _give_back(permit: Permit | None) -> None:
    if permit is not None:
        permit.close()
