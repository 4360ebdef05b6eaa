"""Whether nothing was lost, doubled, reordered or billed wrongly."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from sqlalchemy import create_engine, select

from metering.store.tables import USAGE
from tests.chaos.traffic import Outcome

__all__ = ["Ledger", "differs", "misbilled"]


def differs(outcome: Outcome, calm: Outcome) -> str:
    """What is wrong with a stream, beside the undisturbed one; empty: nothing."""
    if outcome.error:
        return f"ended with {outcome.error}"
    if outcome.digest != calm.digest:
        pairs = zip(outcome.text, calm.text, strict=False)
        same = next((at for at, (ours, theirs) in enumerate(pairs) if ours != theirs), "rest")
        lengths = f"{len(outcome.text)} characters instead of {len(calm.text)}"
        return f"{lengths}, the first difference at {same}; {outcome.digest} is not {calm.digest}"
    if outcome.finish_reason != calm.finish_reason:
        return f"finish_reason {outcome.finish_reason} instead of {calm.finish_reason}"
    ours, theirs = outcome.usage, calm.usage
    if ours is None or theirs is None:
        return "ended without usage"
    # How much of the prompt was cached depends on who died before.
    if (ours.prompt_tokens, ours.completion_tokens) != (
        theirs.prompt_tokens,
        theirs.completion_tokens,
    ):
        return f"usage {ours} instead of {theirs}"
    return ""


class Ledger:
    """Metering's database, read from outside."""

    def __init__(self, path: Path) -> None:
        self._engine = create_engine(f"sqlite:///file:{path}?mode=ro&uri=true")

    def bills(self, streams: Iterable[str]) -> dict[str, list[tuple[int, int]]]:
        """Prompt and completion tokens of each stream's bills."""
        query = select(USAGE.c.stream, USAGE.c.prompt_tokens, USAGE.c.completion_tokens).where(
            USAGE.c.stream.in_(list(streams))
        )
        found: dict[str, list[tuple[int, int]]] = {}
        with self._engine.connect() as connection:
            for stream, prompt, completion in connection.execute(query):
                found.setdefault(stream, []).append((prompt, completion))
        return found

    def close(self) -> None:
        """Let the file go."""
        self._engine.dispose()


def misbilled(
    outcomes: Iterable[Outcome], bills: Mapping[str, list[tuple[int, int]]]
) -> dict[str, str]:
    """What is wrong with the bills, by stream: each must be there once, and be what its client saw."""
    wrong = {}
    for outcome in outcomes:
        billed = bills.get(outcome.stream, [])
        told = outcome.usage
        if told is None:
            continue  # its verdict says so already
        if billed != [(told.prompt_tokens, told.completion_tokens)]:
            wrong[outcome.stream] = (
                f"billed (prompt, completion) {billed}, told {told.prompt_tokens}, "
                f"{told.completion_tokens}"
            )
    return wrong
