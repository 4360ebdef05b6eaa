"""What goes wrong, and when: a seed decides everything, so that a run can be had again."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

__all__ = ["KILLS", "KINDS", "Fault", "plan"]

KILLS = ("kill-gateway", "kill-instance", "kill-router", "kill-metering", "kill-store")
KINDS = (*KILLS, "freeze", "cut", "flush", "clock")

# When, after the streams began. They take one to three seconds.
AFTER_MAX_S = 1.0
FREEZE_S = (0.05, 2.5)
# One freeze in twenty outlasts the session's 15 s of silence and the calls' keepalive: who was
# frozen finds that others have taken its work (CASES 55).
LONG_FREEZE_SHARE, LONG_FREEZE_S = 0.05, 18.0
CUT_BYTES_MAX = 12_000
# A wall clock that was wrong for long, or is set a little (CASES 116); seconds.
CLOCK_STEPS_S = (-86_400, -3_600, -10, -1, 1, 10, 30, 3_600, 86_400)
# The store's is the clock of every time-to-live. A step forward is time that has passed, to it:
# within `resume_ttl` nothing may be lost, beyond it sessions are over by the contract (§4.7).
STORE_CLOCK_STEPS_S = (-3_600, -10, -1, 1, 10, 30, 60)


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong in one run.

    `target` is a process, or empty. `amount` is what the kind asks for: seconds of a freeze, bytes
    until a cut, seconds of a clock's step.
    """

    run: int
    kind: str
    target: str
    after_s: float
    amount: float

    def __str__(self) -> str:
        """For people."""
        at = f" at {self.after_s:.3f} s"
        return f"run {self.run}: {self.kind} {self.target}{at}, amount {self.amount:g}"


def _fault(rng: random.Random, run: int, kind: str, names: Sequence[str]) -> Fault:
    target, amount = "", 0.0
    services = [name for name in names if not name.startswith("store")]
    match kind:
        case "kill-gateway" | "kill-instance" | "kill-router" | "kill-metering" | "kill-store":
            wanted = {"instance": "inference"}.get(kind[5:], kind[5:])
            target = rng.choice([name for name in names if name.startswith(wanted)])
        case "freeze":
            target = rng.choice(list(names))
            long = rng.random() < LONG_FREEZE_SHARE
            amount = LONG_FREEZE_S if long else rng.uniform(*FREEZE_S)
        case "cut":
            amount = rng.randrange(CUT_BYTES_MAX)
        case "clock":
            target = rng.choice(list(names))
            steps = CLOCK_STEPS_S if target in services else STORE_CLOCK_STEPS_S
            amount = rng.choice(steps)
    return Fault(run, kind, target, rng.uniform(0, AFTER_MAX_S), amount)


def plan(seed: int, runs: int, kinds: Sequence[str], names: Sequence[str]) -> Iterator[Fault]:
    """The faults of a seed: the kinds in turn, everything else by the dice of the run's own number.

    Run `n` is the same whatever `runs` is.
    """
    for run in range(runs):
        yield _fault(random.Random(f"{seed}/{run}"), run, kinds[run % len(kinds)], names)
