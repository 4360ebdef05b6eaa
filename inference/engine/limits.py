"""The engine's named bounds, with the defaults of a small CPU instance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["EngineLimits"]


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """Bounds of one engine.

    `batch_max` sequences decode in one step and `step_tokens_max` tokens are computed in it at
    most. While others decode, a step prefills only what keeps it within `itl_target_ms`, the time
    between two tokens that running streams are promised, and `prefill_chunk_busy_max` at most:
    a longer chunk is felt as a stutter by every one of them. `queue_max` requests wait before more are
    told `overloaded`, as is one that has waited for `queue_ttl_s` and, beside `concurrent_max`
    others that wait, run or pause, one more; to come back after a time by the measured rate,
    `retry_after_ms` before there is one. Tenants share the engine by `tenant_weights` (1 where it
    says nothing). Without a call a generation keeps its
    blocks for `attach_ttl_s` and its transcript for `transcript_ttl_s` (contract §7); of ended
    generations at most `transcripts_max` are remembered. With `prefix_cache`, KV blocks that nobody
    holds are kept for requests of the tenant that begin alike; of all tenants as far as they begin
    like `public_prefix`, token ids that the operator has declared no secret.
    """

    batch_max: int = 64
    step_tokens_max: int = 256
    itl_target_ms: float = 45.0
    prefill_chunk_busy_max: int | None = None
    queue_max: int = 1024
    queue_ttl_s: float = 60.0
    concurrent_max: int | None = None
    retry_after_ms: int = 1000
    tenant_weights: Mapping[str, float] = field(default_factory=dict)
    attach_ttl_s: float = 10.0
    transcript_ttl_s: float = 180.0
    transcripts_max: int = 4096
    prefix_cache: bool = True
    public_prefix: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not 1 <= self.batch_max <= self.step_tokens_max:
            raise ValueError("`step_tokens_max` must be at least `batch_max`, and that at least 1")
        if self.prefill_chunk_busy_max is not None and self.prefill_chunk_busy_max < 1:
            raise ValueError("`prefill_chunk_busy_max` must be at least 1")
        if any(weight <= 0 for weight in self.tenant_weights.values()):
            raise ValueError("each of `tenant_weights` must be above 0")
