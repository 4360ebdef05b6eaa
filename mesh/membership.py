"""An instance of inference as the rest of the mesh sees it: what the router keeps and shares."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["EVERY_CLASS", "Instance", "Load"]

# An instance registered under this class serves every class (a local mesh has but one kind).
EVERY_CLASS = "*"


@dataclass(frozen=True, slots=True)
class Load:
    """A load report. `running` and `waiting` count sequences; blocks are KV blocks.

    `pause_p99_ms` is of the event loop's and the garbage collector's pauses; 0: not known yet.
    """

    running: int = 0
    waiting: int = 0
    free_blocks: int = 0
    total_blocks: int = 0
    tokens_per_s: float = 0.0
    pause_p99_ms: float = 0.0

    @property
    def sequences(self) -> int:
        """Running and waiting together: what the bounded load counts."""
        return self.running + self.waiting


@dataclass(frozen=True, slots=True)
class Instance:
    """One member.

    `id` is stable over restarts, `start_id` is not; `models` holds the model's own name first, then
    its aliases; `weight` is its share of keys relative to others, above 0; `load` None: unknown.
    `report` numbers its load reports; `prefixes` are the marks (`mesh.prefixes`) that its prefix
    cache holds, None: nothing new; `canary`: only canary traffic goes to it; `lapsed`: its lease
    ended without a word.
    """

    id: str
    address: str
    models: tuple[str, ...] = ()
    instance_class: str = EVERY_CLASS
    weight: float = 1.0
    draining: bool = False
    load: Load | None = None
    start_id: str = ""
    context_length: int = 0
    canary: bool = False
    report: int = 0
    prefixes: frozenset[int] | None = None
    lapsed: bool = False

    @property
    def offer(self) -> tuple[object, ...]:
        """What decides which keys it may take, apart from how busy it is."""
        return (self.models, self.instance_class, self.weight, self.draining, self.canary)
