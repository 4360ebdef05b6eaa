"""Where the time of a generation goes."""

from __future__ import annotations

from dataclasses import dataclass

from seedance.protocol.frames import Timing

__all__ = ["Marks"]


@dataclass(slots=True)
class Marks:
    """Instants of one generation, in seconds of the engine's clock; None: not (yet) reached.

        arrival → prepare_start → prepared → first_step → prefilled → first_token → first_sent … end
         queue      preprocess      queue      prefill    first_decode    egress

    Each is set once, by whoever is there: the service (arrival, preparation, first_sent) or the
    engine.
    """

    arrival: float
    prepare_start: float
    prepared: float
    first_step: float | None = None
    prefilled: float | None = None
    first_token: float | None = None
    first_sent: float | None = None
    end: float | None = None

    def timing(self, now: float) -> Timing:
        """The six parts, adding up to `ttft_ms`; one that was never finished ends with the generation."""
        end = now if self.end is None else max(self.end, self.first_sent or 0.0)
        first_step = end if self.first_step is None else self.first_step
        prefilled = end if self.prefilled is None else self.prefilled
        first_token = end if self.first_token is None else self.first_token
        first_sent = end if self.first_sent is None else self.first_sent
        queue_s = (self.prepare_start - self.arrival) + (first_step - self.prepared)
        return Timing(
            queue_ms=queue_s * 1e3,
            preprocess_ms=(self.prepared - self.prepare_start) * 1e3,
            prefill_ms=(prefilled - first_step) * 1e3,
            first_decode_ms=(first_token - prefilled) * 1e3,
            # Nothing comes from another machine; what comes from the CPU tier is part of the step.
            cache_sync_ms=0.0,
            egress_ms=(first_sent - first_token) * 1e3,
            ttft_ms=(first_sent - self.arrival) * 1e3,
            total_ms=(end - self.arrival) * 1e3,
        )
