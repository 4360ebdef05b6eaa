"""What a step costs on this machine, learnt from the steps themselves."""

from __future__ import annotations

__all__ = ["Line", "StepCost"]

# The newest observation's weight: what was learnt fades over some tens of steps.
NEWEST = 0.05
# Before it has seen so many, a line believes everything; after, a stall counts this often at most.
FEW, STALL = 8, 3.0
# Spread of x, relative to its mean, below which it says nothing about the slope.
SPREAD_MIN = 0.05


class Line:
    """A straight line through noisy points (x, y >= 0), the newer the weightier.

    It never falls, and never starts below zero. While all points had about the same x, it is taken
    to be flat below and through the origin above: the dearer of the two.
    """

    def __init__(self) -> None:
        self._count = 0
        self._x = self._y = self._xx = self._xy = 0.0

    @property
    def known(self) -> bool:
        """Whether there was a point."""
        return self._count > 0

    def observe(self, x: float, y: float) -> None:
        """One more point."""
        if self._count >= FEW:
            y = min(y, STALL * self.at(x))
        self._count += 1
        weight = max(NEWEST, 1 / self._count)
        dx, dy = x - self._x, y - self._y
        self._x += weight * dx
        self._y += weight * dy
        self._xx = (1 - weight) * (self._xx + weight * dx * dx)
        self._xy = (1 - weight) * (self._xy + weight * dx * dy)

    def at(self, x: float) -> float:
        """The line's y."""
        return max(self._y + self._slope(x > self._x) * (x - self._x), 0.0)

    def reach(self, y: float) -> float:
        """The largest x that costs no more than y; 0 when nothing does, infinite when all do."""
        slope = self._slope(y > self._y)
        if slope > 0:
            return max(self._x + (y - self._y) / slope, 0.0)
        return float("inf") if y >= self._y else 0.0

    def _slope(self, above: bool) -> float:
        steepest = self._y / self._x if self._x else 0.0
        if self._xx < (SPREAD_MIN * self._x) ** 2:
            return steepest if above else 0.0
        return min(max(self._xy / self._xx, 0.0), steepest)


class StepCost:
    """Seconds of a step by how many sequences decode in it and how many prompt tokens it takes."""

    def __init__(self) -> None:
        self._decode = Line()
        self._prefill = Line()

    @property
    def known(self) -> bool:
        """Whether both parts have been measured."""
        return self._decode.known and self._prefill.known

    def observe(self, decodes: int, prefill_tokens: int, seconds: float) -> None:
        """A step took so long."""
        if not prefill_tokens:
            self._decode.observe(decodes, seconds)
        elif not decodes:
            self._prefill.observe(prefill_tokens, seconds)
        elif self._decode.known:
            self._prefill.observe(prefill_tokens, max(seconds - self.decode_s(decodes), 0.0))

    def decode_s(self, batch: int) -> float:
        """A step that decodes so many sequences and nothing else."""
        return self._decode.at(batch)

    def batch_within(self, seconds: float) -> float:
        """How many sequences decode together in a step of that length."""
        return self._decode.reach(seconds)

    def prefill_s(self, tokens: int) -> float:
        """What so many prompt tokens add to a step."""
        return self._prefill.at(tokens)

    def prefill_within(self, seconds: float) -> float:
        """How many prompt tokens add no more than that to a step."""
        return self._prefill.reach(seconds)
