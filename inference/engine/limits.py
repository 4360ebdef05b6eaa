"""The engine's named bounds, with the defaults of a small CPU instance."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["EngineLimits"]


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """Bounds of one engine.

    `batch_max` sequences decode in one step and `step_tokens_max` tokens are computed in it at
    most. While others decode, a step prefills at most `prefill_chunk_busy_max` tokens: a longer
    chunk is felt as a stutter by every running stream. `queue_max` requests wait before more are
    told `overloaded`, to come back after `retry_after_ms`. Without a call a generation keeps its
    blocks for `attach_ttl_s` and its transcript for `transcript_ttl_s` (contract §7); of ended
    generations at most `transcripts_max` are remembered. With `prefix_cache`, KV blocks that nobody
    holds are kept for requests that begin alike.
    """

    batch_max: int = 64
    step_tokens_max: int = 256
    prefill_chunk_busy_max: int = 64
    queue_max: int = 1024
    retry_after_ms: int = 1000
    attach_ttl_s: float = 10.0
    transcript_ttl_s: float = 180.0
    transcripts_max: int = 4096
    prefix_cache: bool = True

    def __post_init__(self) -> None:
        if not 1 <= self.batch_max <= self.step_tokens_max:
            raise ValueError("`step_tokens_max` must be at least `batch_max`, and that at least 1")
        if self.prefill_chunk_busy_max < 1:
            raise ValueError("`prefill_chunk_busy_max` must be at least 1")
