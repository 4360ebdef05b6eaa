"""What the engine needs of a model: a `Runner` that computes steps, a `Preparer` that reads requests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from inference.engine.plan import Sampled, StepPlan
from seedance.protocol.request import GenerateRequest

__all__ = ["ModelInfo", "Prepared", "Preparer", "Runner"]


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What is served.

    `context_length`: longest prompt and answer together. `aliases`: other names it answers to.
    `sliding_window`: every layer of a token at position p reads the keys and values of positions
    p - sliding_window + 1 to p alone; None when some layer reads all. `cold_blocks`: blocks for
    which the runner has room in its CPU tier.
    """

    name: str
    aliases: tuple[str, ...]
    context_length: int
    vocab_size: int
    eos_token_ids: frozenset[int]
    block_size: int
    total_blocks: int
    sliding_window: int | None = None
    cold_blocks: int = 0


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request turned into tokens.

    `token_bytes` maps an answer's token id to its bytes (empty for control tokens): per request,
    because the script engine's ids mean something else in each. `first_ms` and `dt_ms` pace a
    played script (0: as fast as possible) and are 0 for a real model. `length`: where a script
    ends with `stop`; None for a real model. `vocab_size`: ids below it exist for this request;
    None: the model's vocabulary. `counted`: where somebody else turns the prompt into tokens, how
    many they are and how many of them were cached, as far as is known by now.
    """

    prompt_ids: list[int]
    token_bytes: Callable[[int], bytes]
    first_ms: float = 0.0
    dt_ms: float = 0.0
    length: int | None = None
    vocab_size: int | None = None
    counted: Callable[[], tuple[int, int]] | None = None


class Preparer(Protocol):
    """Turns requests into tokens; called from worker threads, so it must be thread-safe."""

    def prepare(self, request: GenerateRequest) -> Prepared:
        """Render the template and tokenize. Raises `SeedanceError` for what cannot be read."""
        ...


class Runner(Protocol):
    """A model that computes steps; every method is called from the engine's one thread."""

    @property
    def info(self) -> ModelInfo:
        """What is served."""
        ...

    def run(self, plan: StepPlan) -> list[Sampled]:
        """Compute one step; one `Sampled` for each row with `sample`, in the rows' order.

        A row's result must not depend on the other rows of the step. The plan's copies are made
        first, in their order, and have been made also when the step then fails.
        """
        ...

    def release(self, sequence_id: int) -> None:
        """The sequence has ended: forget what is kept for it. Its blocks are the engine's."""
        ...

    def close(self) -> None:
        """Give back threads and memory."""
        ...
