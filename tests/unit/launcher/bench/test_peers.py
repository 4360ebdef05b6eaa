"""The bench against other servers: its figures, its table, and its client on a real socket."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from launcher.bench.peers.clients import Ask, Load, measure_round, sse_client
from launcher.bench.peers.figures import Round, Timing, percentile, table
from seedance.protocol.errors import ErrorCode, SeedanceError
from tests.support.openai_server import openai_server


def test_percentiles_are_measured_values() -> None:
    """Nearest rank: a p99 of ten is the largest, not something in between."""
    values = [float(n) for n in range(10, 0, -1)]
    assert (percentile(values, 0.5), percentile(values, 0.99), percentile(values, 0)) == (5, 10, 1)
    assert math.isnan(percentile([], 0.5))


def _timing(begun: float, *arrivals: float, finished: bool = True) -> Timing:
    timing = Timing(begun, finished=finished)
    for arrival in arrivals:
        timing.heard(arrival)
    return timing


def test_a_round_counts_what_came() -> None:
    """Tokens over the wall, gaps within a request, and a wait without end as long as it was."""
    timings = [_timing(0, 0.1, 0.2, 0.4), _timing(0, finished=False)]
    measured = Round("a", 2, 0.0, 2.0, timings, failures=1)
    assert measured.tokens_per_s == 1.5
    assert measured.ttft_ms(0.5) == 100
    assert measured.ttft_ms(0.99) == 2000
    assert round(measured.gap_ms(0.99)) == 200
    assert measured.finished == "1/2, 1 failed"


def test_the_table_relates_each_server_to_the_first() -> None:
    """Ratios within one number of streams; every line has as many cells as the head."""
    ours = Round("ours", 4, 0.0, 1.0, [_timing(0, 0.1, 0.2)])
    other = Round("other", 4, 0.0, 2.0, [_timing(0, 0.2, 0.4)])
    lines = table([ours, other])
    assert len({line.count("|") for line in lines}) == 1
    assert "| 4 | other | 1 | 0.50 | 200 | 200 | 2.00 |" in lines[3]


async def test_the_client_measures_a_server() -> None:
    """Each client's requests one after the other, all clients at once, usage by the server's count."""
    async with openai_server() as server:
        server.plan.dt_s = 0.01
        port = int(server.url.rsplit(":", 1)[1].removesuffix("/v1"))
        measured = await measure_round("fake", sse_client(port, "m", 9), Load(3, 2, 10.0))
        assert measured.finished == "6/6"
        assert all(t.tokens == 3 and len(t.arrivals) == 3 for t in measured.timings)
        assert 5 < measured.gap_ms(0.5) < 500
        assert server.open_max == 3
        prompts = [body["messages"][0]["content"] for _, body in server.requests]
        assert len(set(prompts)) == 7


async def test_a_refusal_is_a_failure_and_not_the_end() -> None:
    """What our own client raises is counted as what the others' sockets do."""
    asked = 0

    async def ask(_prompt: str, timing: Timing) -> None:
        nonlocal asked
        asked += 1
        if asked == 2:
            raise SeedanceError(ErrorCode.OVERLOADED, "later")
        timing.finished = True

    @asynccontextmanager
    async def client() -> AsyncIterator[Ask]:
        yield ask

    measured = await measure_round("fake", client, Load(1, 3, 5.0))
    assert measured.finished == "2/3, 1 failed"


async def test_a_round_ends_in_time() -> None:
    """A server that is too slow costs the limit, and no more."""
    async with openai_server() as server:
        port = int(server.url.rsplit(":", 1)[1].removesuffix("/v1"))
        client = sse_client(port, "m", 9)
        server.plan.dt_s = 0.1
        cut = await measure_round("fake", client, Load(2, 50, 0.7))
        done, _, asked = cut.finished.partition("/")
        assert int(done) < int(asked)
        assert cut.ended - cut.begun < 5
