"""What the hop adds to a token's way, at half load and at more than the gateway can carry."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

from launcher.bench.figures import Figure, percentile
from launcher.bench.targets.streams import Seen, direct, gateway_mesh, through_gateway

__all__ = ["coalesced", "latency"]

FULL_S, HALF_S, OVERLOAD_S, COALESCED_S = 4.0, 6.0, 9.0, 5.0
MS_PER_S = 1_000
# Streams, and the most that may be added at the median and at the 99th percentile, in ms.
ADDED_MAX_MS = {64: (1.0, 4.0), 512: (4.0, 12.0)}
OVERLOAD_STREAMS, QUEUE_MAX_MS = 64, 25.0
# Between the first and the last third: more than chance, less than a queue that grows.
GROWTH_MAX = 1.5
COALESCE_MS = 4
COALESCED_MIN = {64: 300_000, 512: 200_000}


async def latency(data: Path) -> AsyncIterator[Figure]:
    """The added latency at half of what was measured as the full load; then overload."""
    async with gateway_mesh(data) as mesh:
        for streams, most in ADDED_MAX_MS.items():
            full = await through_gateway(mesh, streams, 0, FULL_S, watch=False)
            dt_ms = streams / (full.tokens_per_s / 2) * MS_PER_S
            through = await through_gateway(mesh, streams, dt_ms, HALF_S)
            past = await direct(mesh, streams, dt_ms, HALF_S)
            pairs = [
                (percentile(through.late_s, share) * MS_PER_S, percentile(past, share) * MS_PER_S)
                for share in (0.5, 0.99)
            ]
            added = [mine - theirs for mine, theirs in pairs]
            (p50, past_p50), (p99, past_p99) = pairs
            yield Figure(
                f"added to direct gRPC, {streams} streams at half of the full load",
                f"p50 ≤ {most[0]:g} ms, p99 ≤ {most[1]:g} ms",
                f"p50 {added[0]:.2f} ms, p99 {added[1]:.2f} ms ({p50:.2f} / {p99:.2f} beside "
                f"{past_p50:.2f} / {past_p99:.2f}; {through.tokens_per_s:,.0f} tokens/s, "
                f"{through.cpu_s / through.wall_s:.2f} of a core)",
                all(a <= b for a, b in zip(added, most, strict=True)),
            )
        yield _overload(await through_gateway(mesh, OVERLOAD_STREAMS, 0, OVERLOAD_S))


def _overload(seen: Seen) -> Figure:
    p99 = percentile(seen.late_s, 0.99) * MS_PER_S
    third = len(seen.late_s) // 3
    first, last = (
        percentile(part, 0.5) * MS_PER_S for part in (seen.late_s[:third], seen.late_s[-third:])
    )
    return Figure(
        f"overload, {OVERLOAD_STREAMS} streams: age of what arrives (the client's own queue included)",
        f"p99 ≤ {QUEUE_MAX_MS:g} ms, no growth",
        f"p99 {p99:.1f} ms; median of the first third {first:.1f} ms, of the last {last:.1f} ms "
        f"({seen.tokens_per_s:,.0f} tokens/s, {seen.cpu_s / seen.wall_s:.2f} of a core)",
        p99 <= QUEUE_MAX_MS and last <= first * GROWTH_MAX,
    )


async def coalesced(data: Path) -> AsyncIterator[Figure]:
    """Deltas of up to 4 ms in one frame: tokens by the gateway's CPU time."""
    async with gateway_mesh(data, ("--coalesce-ms", str(COALESCE_MS))) as mesh:
        for streams, least in COALESCED_MIN.items():
            seen = await through_gateway(mesh, streams, 0, COALESCED_S, watch=False)
            yield Figure(
                f"deltas coalesced ≤ {COALESCE_MS} ms, {streams} streams",
                f"≥ {least:,} tokens/s a core",
                f"{seen.tokens_per_core_s:,.0f} ({seen.us_per_token:.2f} µs a token, "
                f"{seen.tokens / seen.frames:.1f} tokens a frame; {seen.tokens_per_s:,.0f} tokens/s "
                f"came for {seen.cpu_s / seen.wall_s:.2f} of a core)",
                seen.tokens_per_core_s >= least,
            )
