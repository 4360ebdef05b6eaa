"""Who is more urgent, and who gives way."""

from __future__ import annotations

from collections.abc import Iterable

from inference.engine.sequence import Sequence, SequenceState

__all__ = ["rank", "victim"]

Rank = tuple[int, float, float, int]


def rank(sequence: Sequence) -> Rank:
    """Sort key, most urgent first; unique, so that the order is total.

    By priority, in a class by soft deadline (none: last), then by arrival. Each time a sequence
    loses its blocks it rises by a class: sequences that never lost theirs can take those of one of
    priority p at most p + 1 times.
    """
    return (
        sequence.priority - sequence.preemptions,
        sequence.deadline,
        sequence.arrival,
        sequence.id,
    )


def victim(needy: Sequence | None, holders: Iterable[Sequence]) -> Sequence | None:
    """Whose blocks `needy` may have: a paused sequence's, else the least urgent one's after it.

    A paused sequence computes nothing, so that it loses only a recomputation that may never be
    needed. None: everybody who runs is more urgent (or `needy` is None: it does not run yet, and
    what does not run takes from nobody who does). So the most urgent always goes on, and no two
    take from each other in turns.
    """
    paused: Sequence | None = None
    running: Sequence | None = None
    for holder in holders:
        if holder is needy or not holder.block_table:
            continue
        if holder.state is SequenceState.PAUSED:
            if paused is None or rank(holder) > rank(paused):
                paused = holder
        elif running is None or rank(holder) > rank(running):
            running = holder
    if paused is not None:
        return paused
    if needy is not None and running is not None and rank(running) > rank(needy):
        return running
    return None
