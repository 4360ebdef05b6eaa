"""The tenants at this gateway: who may ask for what now, and what the mesh's other gateways leave it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from gateway.signed_tokens import KeySet
from gateway.store.base import StoreUnavailableError
from gateway.store.leases import Leases
from gateway.tenants.allowance import Allowance, Limit
from gateway.tenants.bucket import Standing
from gateway.tenants.model import NO_TENANTS, Tenant, TenantBook
from gateway.tenants.quota import LoadFactor
from gateway.upstream.base import Upstream
from mesh.clock import Clock, SystemClock
from mesh.watched_file import WatchedFile
from seedance.protocol.errors import ErrorCode, SeedanceError
from seedance.protocol.request import GenerateRequest

__all__ = ["RENEW_EVERY_S", "Permit", "Tenants"]

_log = logging.getLogger("gateway.tenants")

RENEW_EVERY_S = 1.0
# A tenant that is new here makes the next renewal come sooner, but not in a flood.
RENEW_AT_MOST_EVERY_S = 0.05


class Permit:
    """A request that was let in: it counts until it is closed, once."""

    def __init__(self, allowance: Allowance, streams: int) -> None:
        self._allowance = allowance
        self._streams = streams

    def close(self) -> None:
        """It is over."""
        self._allowance.streams -= self._streams
        self._streams = 0


class Tenants:
    """Answers without waiting for anybody, by the slices that `leases` has lent this gateway.

    `file` is the tenants file; None: nobody has limits. `gateways` is how many gateways the mesh is
    configured with: until the first slices have come, each takes its even part. `leases` None: this
    gateway is the only one. `jwks` is followed as the tenants file is.
    """

    def __init__(
        self,
        file: WatchedFile[TenantBook] | None = None,
        clock: Clock | None = None,
        leases: Leases | None = None,
        gateways: int = 1,
        jwks: WatchedFile[KeySet] | None = None,
    ) -> None:
        self._file = file
        self._jwks = jwks
        self._clock = clock or SystemClock()
        self._leases = leases
        self._share = 1.0 / gateways
        self._allowances: dict[str, Allowance] = {}
        self._load = LoadFactor(self._clock.monotonic())
        self._renewed_at = self._clock.monotonic()
        self._news = asyncio.Event()
        self._away = False

    @property
    def book(self) -> TenantBook:
        """The file as it is in force."""
        return NO_TENANTS if self._file is None else self._file.value

    @property
    def jwks(self) -> KeySet | None:
        """The keys of signed tokens as they are in force; None: there are no such tokens."""
        return None if self._jwks is None else self._jwks.value

    def tenant(self, name: str) -> Tenant:
        """The tenant as the file has it."""
        return self.book.tenant(name)

    def of(self, name: str) -> Allowance:
        """What the tenant has at this gateway. Tenants come from the configuration, so they are few."""
        found = self._allowances.get(name)
        if found is None:
            tenant, now = self.tenant(name), self._clock.monotonic()
            found = self._allowances[name] = Allowance(tenant, self._share, now)
            self._news.set()
        return found

    # ------------------------------------------------------------ admission

    def may_use(self, name: str, model: str) -> bool:
        """Whether the model is on the tenant's list, or there is no list."""
        models = self.tenant(name).models
        return not models or model in models

    def admit(
        self,
        name: str,
        request: GenerateRequest,
        streams: int = 1,
        more: Sequence[GenerateRequest] = (),
    ) -> Permit:
        """Let a request in, of so many streams; `more`: its further prompts. Raises `SeedanceError`.

        `model_not_found`: the tenant may not use that model; `rate_limited`: it is over a limit, with
        the time after which it is not.
        """
        if not self.may_use(name, request.model):
            models = ", ".join(sorted(self.tenant(name).models))
            raise SeedanceError(
                ErrorCode.MODEL_NOT_FOUND, f"`model` must be one of {models}", field="model"
            )
        allowance = self.of(name)
        text_bytes = sum(_text_bytes(one) for one in (request, *more))
        allowance.admit(streams, text_bytes, self._clock.monotonic())
        return Permit(allowance, streams)

    def standings(self, name: str) -> dict[Limit, Standing]:
        """What the tenant's rates leave it at this gateway now."""
        return self.of(name).standings(self._clock.monotonic())

    def adopt(self, name: str) -> Permit:
        """A stream that was let in at another gateway goes on here: it counts, and is not refused."""
        allowance = self.of(name)
        allowance.streams += 1
        return Permit(allowance, 1)

    @contextmanager
    def connection(self, name: str) -> Iterator[bool]:
        """Count a WebSocket while it is open; whether there may be one more."""
        allowance = self.of(name)
        connected = allowance.connect()
        try:
            yield connected
        finally:
            allowance.connections -= connected

    # ------------------------------------------------------------ housekeeping

    async def run(self, upstream: Upstream) -> None:
        """Follow the file, the load of `upstream` and the other gateways, for ever."""
        while True:
            try:
                async with asyncio.timeout(RENEW_EVERY_S):
                    await self._news.wait()
            except TimeoutError:
                pass
            self._news.clear()
            if await asyncio.to_thread(self._refresh):
                self._reread()
            await self.renew(upstream)
            await asyncio.sleep(RENEW_AT_MOST_EVERY_S)

    def _refresh(self) -> bool:
        """Look at both files, on a thread: a long one takes a while. Whether the tenants are new."""
        if self._jwks is not None:
            self._jwks.refresh()
        return self._file is not None and self._file.refresh()

    async def close(self) -> None:
        """Give back connections."""
        if self._leases is not None:
            await self._leases.close()

    def _reread(self) -> None:
        now = self._clock.monotonic()
        for name, allowance in self._allowances.items():
            allowance.become(self.tenant(name), now)

    async def renew(self, upstream: Upstream) -> None:
        """Fetch the slices. With the store away the ones of the last time hold on."""
        now = self._clock.monotonic()
        period_s = max(now - self._renewed_at, RENEW_AT_MOST_EVERY_S)
        self._renewed_at = now
        factor = self._load.observe(upstream.pressure(), now)
        asking = [(a, a.wants(factor, period_s)) for a in self._allowances.values()]
        wants = [want for _, own in asking for want in own]
        slices = [want.total for want in wants]
        if self._leases is not None and wants:
            try:
                slices = await self._leases.renew(wants)
            except StoreUnavailableError:
                self._is_away(away=True)
                return
            self._is_away(away=False)
        now = self._clock.monotonic()
        for allowance, own in asking:
            mine, slices = slices[: len(own)], slices[len(own) :]
            allowance.lend(mine, now)

    def _is_away(self, *, away: bool) -> None:
        if away is not self._away:
            self._away = away
            said = (
                "the store is away: limits stay divided as they are"
                if away
                else "the store is back"
            )
            _log.warning("%s", said)


def _text_bytes(request: GenerateRequest) -> int:
    prompt = len((request.prompt or "").encode(errors="surrogatepass"))
    return prompt + sum(len(m.content.encode(errors="surrogatepass")) for m in request.messages)
