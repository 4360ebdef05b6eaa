"""How a case is timed: the best of several rounds, beside a yardstick timed in the same round.

A shared machine makes single figures drift by half. The yardstick is the cheapest honest thing a
program would do per token: `json.dumps` of its frame. What is reported is the ratio to it, which
drifts far less, so that two runs on two machines can be compared.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Case", "Result", "measure", "yardstick"]

ROUNDS = 7
NS_PER_US = 1_000

_FRAME = {
    "type": "token",
    "seq": 123,
    "id": "s1",
    "offset": 4_567,
    "delta": " quantum",
    "timestamp": 1_760_000_000_000,
}


@dataclass(frozen=True, slots=True)
class Case:
    """`run(n)` does the work for `n` tokens (or frames, or choices: `unit`); `prepare(n)` is not timed."""

    name: str
    unit: str
    count: int
    run: Callable[[int], None]
    prepare: Callable[[int], None] = lambda _count: None
    finish: Callable[[], None] = lambda: None


@dataclass(frozen=True, slots=True)
class Result:
    """Microseconds per unit, and the ratio to the yardstick (below 1: cheaper)."""

    case: Case
    us: float
    ratio: float


def yardstick(count: int) -> None:
    """Encode a token frame with the standard library, `count` times."""
    for _ in range(count):
        json.dumps(_FRAME)


def _ns_each(run: Callable[[int], None], count: int) -> float:
    begin = time.process_time_ns()
    run(count)
    return (time.process_time_ns() - begin) / count


def measure(case: Case) -> Result:
    """The best round of the case and of the yardstick, interleaved."""
    few = max(1, case.count // 10)
    case.prepare(few)
    case.run(few)
    own, base = [], []
    for _ in range(ROUNDS):
        base.append(_ns_each(yardstick, case.count))
        case.prepare(case.count)
        own.append(_ns_each(case.run, case.count))
    case.finish()
    return Result(case, min(own) / NS_PER_US, min(own) / min(base))
