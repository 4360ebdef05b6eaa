"""The short form of `make bench-metering`: everything on the way to the ledger fails once, and nothing drifts."""

from __future__ import annotations

import pytest

from launcher.bench.metering import run

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]


def test_the_ledger_is_the_oracles() -> None:
    """5,000 events, a tenth twice, in disorder; kills of consumers and store, a flush: no drift in any mode."""
    outcome = run(5_000, seed=7)
    assert outcome.differences == []
    assert len(outcome.faults) == 6
