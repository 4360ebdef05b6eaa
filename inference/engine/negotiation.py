"""What is promised to a request that says how much it expects and how long it may take."""

from __future__ import annotations

from dataclasses import dataclass

from inference.engine.answer import AnswerRules
from inference.engine.chunking import allowance
from inference.engine.gate import Gate
from inference.engine.limits import EngineLimits
from inference.engine.scheduler import Scheduler
from seedance.protocol.request import GenerateRequest

__all__ = ["Negotiator", "Promise"]

# One request's hurry may narrow the batch of all to this share, no further: on the machines that
# were measured a quarter of the batch still makes nine tenths of the tokens.
NARROWEST = 0.25


@dataclass(frozen=True, slots=True)
class Promise:
    """`batch_size`: at most so many decode beside it; `token_quota`: it ends with `length` there.

    `narrows`: the batch size is kept for its sake, not just the engine's own bound.
    """

    batch_size: int
    token_quota: int
    narrows: bool = False


class Negotiator:
    """Answers `expected_tokens` and `max_latency_ms` by the engine's own measured rates.

        max_latency = queue + prefill + tokens x step(batch)

    Only a request with a longest latency is promised anything but its own `max_tokens` and the
    engine's batch. The batch is the largest in which the expected tokens fit the time, or as many
    as are there now when none are told, within bounds (`NARROWEST`); the quota is the tokens that
    fit then, `min_tokens` at least. A prediction orders and bounds the work: a stream that is late
    still gets its quota. A continuation was promised already; whoever continues it says so in
    `max_tokens`.
    """

    def __init__(self, limits: EngineLimits, scheduler: Scheduler, gate: Gate) -> None:
        self._limits = limits
        self._scheduler = scheduler
        self._gate = gate

    def promise(
        self, request: GenerateRequest, rules: AnswerRules, prompt_tokens: int, now: float
    ) -> Promise:
        """What this request may count on if it comes in now."""
        limits, cost = self._limits, self._scheduler.cost
        if not request.max_latency_ms or not cost.known:
            return Promise(limits.batch_max, rules.max_tokens)
        left_s = request.max_latency_ms / 1e3 - self._wait_s(prompt_tokens, now)
        batch = self._batch(request.expected_tokens, left_s)
        step_s = cost.decode_s(batch)
        fitting = int(min(max(left_s, 0.0) / step_s, rules.max_tokens)) if step_s else None
        quota = rules.max_tokens if fitting is None else max(fitting, rules.min_tokens, 1)
        return Promise(batch, quota, narrows=True)

    def _batch(self, expected_tokens: int, left_s: float) -> int:
        most, places = self._limits.batch_max, self._scheduler.places
        there = min(places.running + places.waiting + 1, most)
        wanted = float(there)
        if expected_tokens:
            wanted = self._scheduler.cost.batch_within(max(left_s, 0.0) / expected_tokens)
        # Nobody who runs already makes room.
        fewest = max(int(most * NARROWEST), min(places.running + 1, most), 1)
        return int(min(max(wanted, fewest), most))

    def _wait_s(self, prompt_tokens: int, now: float) -> float:
        """Time to its first token: others' turns, then its prompt, chunk by chunk."""
        places, cost, limits = self._scheduler.places, self._scheduler.cost, self._limits
        is_full = places.running >= limits.batch_max
        queue_s = (places.waiting + is_full) * self._gate.period_s(now)
        chunk = allowance(limits, cost, decodes=places.running)
        chunks = -(-prompt_tokens // chunk)
        decode_s = cost.decode_s(places.running) if places.running else 0.0
        return queue_s + chunks * (decode_s + cost.prefill_s(min(chunk, prompt_tokens)))
