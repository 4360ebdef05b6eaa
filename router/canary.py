"""The router's part of a canary: its state, the gateways' counts, and the roll-back. Pure."""

from __future__ import annotations

from mesh.canary import CanaryPhase, CanaryState, Counts, Tally
from router.policy.canary import verdict

__all__ = ["CanaryDesk"]

# Counts of so many gateways are kept; one more pushes out the one that was heard of longest ago.
GATEWAYS_MAX = 256


class CanaryDesk:
    """Owns the state. Each change begins the counting anew, with the others' last figures as a base.

    A router that has just started learns the state from the first gateway that tells it: the
    revisions are times of the wall clock, so that a later life's changes have higher ones.
    """

    def __init__(self) -> None:
        self.state = CanaryState()
        self._counts: dict[str, Counts] = {}
        self._base = Tally()

    def run(self, share: int, wall_ms: int) -> None:
        """Give the canary a share of the keys (0: only who asks)."""
        self._move(CanaryPhase.RUNNING if share else CanaryPhase.IDLE, share, "", wall_ms)

    def roll_back(self, reason: str, wall_ms: int) -> None:
        """Send nobody there any more."""
        self._move(CanaryPhase.ROLLED_BACK, 0, reason, wall_ms)

    def report(self, gateway: str, known: CanaryState, counts: Counts) -> bool:
        """Take what a gateway has counted since `known`; whether the state changed by that."""
        adopted = known.revision > self.state.revision
        if adopted:
            self.state = known
            self._counts.clear()
        if known.revision == self.state.revision:
            self._counts.pop(gateway, None)
            self._counts[gateway] = counts
            if len(self._counts) > GATEWAYS_MAX:
                del self._counts[next(iter(self._counts))]
        return adopted

    def judge(self, pause_p99_ms: float, wall_ms: int) -> bool:
        """Roll back if that is what the counts and the longest pause say; whether it came to that."""
        if self.state.phase is not CanaryPhase.RUNNING:
            return False
        counts = self.counts()
        stable = Tally.sum([counts.stable, self._base])
        reason = verdict(counts.canary, stable, pause_p99_ms)
        if reason:
            self.roll_back(reason, wall_ms)
        return bool(reason)

    def counts(self) -> Counts:
        """All gateways' together, of this revision."""
        return Counts(
            canary=Tally.sum(counts.canary for counts in self._counts.values()),
            stable=Tally.sum(counts.stable for counts in self._counts.values()),
        )

    def _move(self, phase: CanaryPhase, share: int, reason: str, wall_ms: int) -> None:
        stable = self.counts().stable
        if stable.ended:
            self._base = stable
        self._counts.clear()
        revision = max(self.state.revision + 1, wall_ms)
        self.state = CanaryState(revision, phase, share, reason)
