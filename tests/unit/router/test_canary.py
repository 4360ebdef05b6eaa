"""The router's part of a canary: state, counts, roll-back."""

from __future__ import annotations

from mesh.canary import CanaryPhase, CanaryState, Counts, Tally
from router.canary import GATEWAYS_MAX, CanaryDesk

BAD = Counts(canary=Tally(10, 10), stable=Tally(1_000, 1))
WELL = Counts(canary=Tally(10, 0), stable=Tally(1_000, 1))


def _running(share: int = 100) -> CanaryDesk:
    desk = CanaryDesk()
    desk.run(share, 1_000)
    return desk


def test_gateways_add_up() -> None:
    """What two gateways have seen is one figure; a report replaces the one before."""
    desk = _running()
    for _ in range(2):
        desk.report("g0", desk.state, WELL)
        desk.report("g1", desk.state, WELL)
    assert desk.counts().canary.ended == 20
    assert desk.counts().stable == Tally(2_000, 2)


def test_a_bad_canary_is_rolled_back() -> None:
    """The verdict is in the state, under a higher revision, and is not changed by later reports."""
    desk = _running()
    before = desk.state
    desk.report("g0", desk.state, BAD)
    assert desk.judge(0.0, 2_000)
    assert desk.state.phase is CanaryPhase.ROLLED_BACK
    assert desk.state.revision > before.revision
    assert desk.state.reason.startswith("error rate")
    assert not desk.report("g0", before, WELL)
    assert not desk.judge(99.0, 3_000)


def test_counts_belong_to_a_revision() -> None:
    """What was counted before the share changed says nothing about the canary since."""
    desk = _running()
    before = desk.state
    desk.run(5_000, 2_000)
    desk.report("g0", before, BAD)
    assert desk.counts().canary.ended == 0
    assert not desk.judge(0.0, 3_000)


def test_at_100_percent_the_others_of_before_are_the_measure() -> None:
    """With nobody left to compare with, the last figures of the others stand."""
    desk = _running()
    desk.report("g0", desk.state, WELL)
    desk.run(10_000, 2_000)
    desk.report("g0", desk.state, Counts(canary=Tally(10, 10)))
    assert desk.judge(0.0, 3_000)


def test_a_new_router_learns_the_state() -> None:
    """The higher revision counts, whoever has it; an old one changes nothing."""
    old = _running(5_000)
    old.roll_back("by hand", 2_000)
    new = CanaryDesk()
    assert new.report("g0", old.state, Counts())
    assert new.state == old.state
    assert not new.report("g1", CanaryState(5, CanaryPhase.RUNNING, 1), WELL)
    assert new.state == old.state


def test_revisions_rise_by_a_clock_that_stands_still() -> None:
    """CASES 116: two changes in one millisecond, or after the clock was set back, are two revisions."""
    desk = _running()
    first = desk.state.revision
    desk.run(200, 1_000)
    desk.run(300, 0)
    assert desk.state.revision == first + 2


def test_gateways_are_bounded() -> None:
    """Of more gateways than fit those heard of longest ago are forgotten."""
    desk = _running()
    for n in range(GATEWAYS_MAX + 5):
        desk.report(f"g{n}", desk.state, WELL)
    assert desk.counts().canary.ended == 10 * GATEWAYS_MAX


def test_only_a_running_canary_is_judged() -> None:
    """Idle, there are no counts; a pause is nobody's fault yet."""
    desk = CanaryDesk()
    assert not desk.judge(1_000.0, 1)
    desk.run(100, 2)
    assert desk.judge(1_000.0, 3)
    desk.run(0, 4)
    assert desk.state.phase is CanaryPhase.IDLE
