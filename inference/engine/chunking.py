"""How many prompt tokens a step takes beside running streams. The table is in docs/engine.md."""

from __future__ import annotations

from inference.engine.limits import EngineLimits
from inference.engine.step_cost import StepCost

__all__ = ["allowance", "piece"]

# Before the machine is measured; a chunk of 64 is felt by nobody much on any.
UNMEASURED = 64
# Chunks are cut in this grain, and never below two of it.
GRAIN = 16
SMALLEST = 32
# Where decoding alone (nearly) breaks the promise, prompts may still add this share to it: a machine
# that cannot keep the promise would gain nothing by crawling through its prompts.
SHARE_MIN = 0.25


def allowance(limits: EngineLimits, cost: StepCost, *, decodes: int) -> int:
    """Prompt tokens that one step may take, for all prompts together, budget aside.

    `decodes`: streams that get a token in it.
    """
    if not decodes:
        return limits.step_tokens_max
    most = limits.prefill_chunk_busy_max
    if not cost.known:
        return most or UNMEASURED
    decode_s = cost.decode_s(decodes)
    left_s = max(limits.itl_target_ms / 1e3 - decode_s, SHARE_MIN * decode_s)
    within = min(cost.prefill_within(left_s), limits.step_tokens_max)
    chunk = max(int(within) // GRAIN * GRAIN, SMALLEST)
    return chunk if most is None else min(chunk, most)


def piece(remaining: int, allowed: int) -> int:
    """How much of a prompt's `remaining` tokens to take now, in equal pieces: no crumb is left over."""
    pieces = -(-remaining // allowed)
    return -(-remaining // pieces)
