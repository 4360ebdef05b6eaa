"""What one tenant may have at this gateway now, and what it has: its buckets, counts and slices."""

from __future__ import annotations

import math
from enum import Enum
from typing import TYPE_CHECKING

from gateway.store.leases import LEASE_TTL_S, Want
from gateway.tenants.bucket import Standing, TokenBucket
from gateway.tenants.model import Rate, Tenant
from gateway.tenants.pacer import CreditPacer
from gateway.tenants.quota import quota
from seedance.protocol.errors import ErrorCode, SeedanceError

if TYPE_CHECKING:
    from gateway.tenants.upstream import TenantStream

__all__ = ["STREAMS_RETRY_MS", "Allowance", "Limit"]

# When a stream of the tenant's ends is not known: come back after a while.
STREAMS_RETRY_MS = 1000
# What was asked for of late, told to the store, forgets half of itself with each renewal.
FADES = 0.5


class Limit(Enum):
    """What is limited, as it is called in the store and in messages."""

    REQUESTS = "requests per second"
    TOKENS = "tokens per second"
    BYTES = "bytes per second"
    CONNECTIONS = "connections at once"
    STREAMS = "streams at once"


# Of what a gateway would have if all had alike, it has at least this part of a rate: the first
# request at a gateway must not wait until the slices have moved. Of a count it would be of no use.
SURE_PART = 0.1
# Others may hold nearly all of a limit until their leases end, when a gateway has come, gone or come back.
# At the pace of what is left the wait would be minutes.
LENT_AGAIN_MS = round(LEASE_TTL_S * 1000)
# What a slice may lack of a whole number for having been written as a decimal.
_ROUNDING = 1e-6

_RATES = (Limit.REQUESTS, Limit.TOKENS, Limit.BYTES)


class Allowance:
    """One tenant at one gateway. `share` is the part of every limit that this gateway begins with."""

    def __init__(self, tenant: Tenant, share: float, now: float) -> None:
        self.tenant = tenant
        self.connections = 0
        self.streams = 0
        self.pacer: CreditPacer[TenantStream] = CreditPacer()
        self._requests: TokenBucket | None = None
        self._share = share
        self._factor = 0.0
        self._slices: dict[Limit, float] = {}
        self._asked = dict.fromkeys(Limit, 0.0)
        self._told = dict.fromkeys(Limit, 0.0)
        self.become(tenant, now)

    def become(self, tenant: Tenant, now: float) -> None:
        """The file was read again: what is in a bucket stays, as far as it fits."""
        self.tenant = tenant
        self._slices = {}
        self._adjust(now)

    # ------------------------------------------------------------ asked for

    def admit(self, streams: int, text_bytes: int, now: float) -> None:
        """One request more, of so many streams and so much text.

        Raises `SeedanceError` (`rate_limited`) that says when to come again; then nothing is taken.
        """
        self._asked[Limit.REQUESTS] += 1
        if self.streams + streams > self._whole(Limit.STREAMS):
            self._asked[Limit.STREAMS] += streams
            raise self._refusal(Limit.STREAMS, STREAMS_RETRY_MS)
        text = self.pacer.bytes
        waits_ms = {
            Limit.BYTES: 0 if text is None else self._soon(Limit.BYTES, text.wait_ms(0, now)),
            Limit.REQUESTS: 0
            if self._requests is None
            else self._soon(Limit.REQUESTS, self._requests.wait_ms(1, now)),
        }
        longest = max(waits_ms, key=lambda limit: waits_ms[limit])
        if waits_ms[longest]:
            raise self._refusal(longest, waits_ms[longest])
        if self._requests is not None:
            self._requests.take(1, now)
        if text is not None:
            text.spend(text_bytes, now)
            self._asked[Limit.BYTES] += text_bytes
        self.streams += streams

    def connect(self) -> bool:
        """One connection more, if there may be one."""
        if self.connections + 1 > self._whole(Limit.CONNECTIONS):
            self._asked[Limit.CONNECTIONS] += 1
            return False
        self.connections += 1
        return True

    def made(self, tokens: int, text_bytes: int) -> None:
        """So much was made for it (`pacer` keeps the pace)."""
        self._asked[Limit.TOKENS] += tokens
        self._asked[Limit.BYTES] += text_bytes

    def standings(self, now: float) -> dict[Limit, Standing]:
        """How full the buckets of requests and of tokens are, of those that it has."""
        buckets = {Limit.REQUESTS: self._requests, Limit.TOKENS: self.pacer.tokens}
        return {limit: bucket.standing(now) for limit, bucket in buckets.items() if bucket}

    def _soon(self, limit: Limit, wait_ms: int) -> int:
        lent_out = self._slice(limit) < SURE_PART * self._share * self._total(limit)
        return min(wait_ms, LENT_AGAIN_MS) if lent_out else wait_ms

    def _refusal(self, limit: Limit, retry_after_ms: int) -> SeedanceError:
        message = f"the limit of {limit.value} ({self._total(limit):g}) is reached"
        return SeedanceError(ErrorCode.RATE_LIMITED, message, retry_after_ms=retry_after_ms)

    # ------------------------------------------------------------ slices

    def wants(self, factor: float, period_s: float) -> list[Want]:
        """What to ask the store for, after `period_s` under the load `factor`.

        Rates are divided as the file has them: if each gateway told what the load makes of one here, they
        would divide different sums, and the smallest might find all of its own lent.
        """
        self._factor = factor
        return [
            Want(
                self.tenant.name,
                limit.name.lower(),
                total / self._swing(limit),
                self._demand(limit, period_s) / self._swing(limit),
                SURE_PART if limit in _RATES else 0.0,
                whole=limit not in _RATES,
                gateways=round(1 / self._share),
            )
            for limit in Limit
            if (total := self._total(limit)) < math.inf
        ]

    def _demand(self, limit: Limit, period_s: float) -> float:
        asked, self._asked[limit] = self._asked[limit], 0.0
        if limit is Limit.TOKENS:
            asked += min(self.pacer.wanted, self._total(limit) * period_s)
        now = asked / period_s if limit in _RATES else asked
        self._told[limit] = max(now, FADES * self._told[limit])
        return self._told[limit] + {
            Limit.CONNECTIONS: self.connections,
            Limit.STREAMS: self.streams,
        }.get(limit, 0)

    def lend(self, slices: list[float], now: float) -> None:
        """The slices, in the order in which `wants` asked for them."""
        limits = [limit for limit in Limit if self._total(limit) < math.inf]
        lent = zip(limits, slices, strict=True)
        self._slices = {limit: part * self._swing(limit) for limit, part in lent}
        self._adjust(now)

    def _rate(self, limit: Limit) -> Rate | None:
        limits = self.tenant.limits
        rates = {
            Limit.REQUESTS: limits.requests,
            Limit.TOKENS: limits.tokens,
            Limit.BYTES: limits.bytes,
        }
        return rates.get(limit)

    def _swing(self, limit: Limit) -> float:
        """By how much the load has moved a limit; 1: not at all."""
        rate = self._rate(limit)
        return 1.0 if rate is None else self._total(limit) / rate.base

    def _total(self, limit: Limit) -> float:
        """The whole mesh's; infinite: there is no limit."""
        if limit in _RATES:
            rate = self._rate(limit)
            return math.inf if rate is None else quota(rate, self._factor)
        limits = self.tenant.limits
        count = limits.connections if limit is Limit.CONNECTIONS else limits.streams
        return math.inf if count is None else count

    def _slice(self, limit: Limit) -> float:
        total = self._total(limit)
        return self._slices.get(limit, total * self._share)

    def _whole(self, limit: Limit) -> float:
        """A count's slice: nobody can use a part of a connection."""
        found = self._slice(limit)
        return found if found == math.inf else math.floor(found + _ROUNDING)

    def _adjust(self, now: float) -> None:
        self._requests = self._bucket(self._requests, Limit.REQUESTS, now)
        self.pacer.tokens = self._bucket(self.pacer.tokens, Limit.TOKENS, now)
        self.pacer.bytes = self._bucket(self.pacer.bytes, Limit.BYTES, now)

    def _bucket(self, bucket: TokenBucket | None, limit: Limit, now: float) -> TokenBucket | None:
        rate = self._rate(limit)
        if rate is None:
            return None
        mine = self._slice(limit)
        # Of a burst this gateway has the same part as of the rate, and at least one request's worth.
        burst = max(1.0, rate.burst * mine / self._total(limit))
        if bucket is None:
            return TokenBucket(mine, burst, now)
        bucket.adjust(mine, burst, now)
        return bucket
