"""Domain and protobuf agree."""

from __future__ import annotations

import pytest

from mesh.canary import BUCKETS, CanaryPhase, CanaryState, Counts, Tally
from mesh.membership import EVERY_CLASS, Instance, Load
from mesh.rpc.convert import (
    canary_from_pb,
    canary_to_pb,
    counts_from_pb,
    counts_to_pb,
    instance_from_pb,
    instance_to_pb,
)
from seedance.v2 import router_pb2


def test_instance_survives_the_wire() -> None:
    """What goes out comes back, load and its age included."""
    instance = Instance(
        *("a", "h:1", ("m", "n"), "high-perf", 2.0, True, Load(1, 2, 3, 4, 5.5, 6.5), "s", 4096),
        canary=True,
        report=9,
        prefixes=frozenset({1, 2**32 - 1}),
        lapsed=True,
    )
    message = instance_to_pb(instance, load_age_ms=7)
    assert instance_from_pb(message) == instance
    assert message.load_age_ms == 7


def test_what_is_left_out_has_its_default() -> None:
    """No class means every class, no weight means 1, no report means an unknown load."""
    instance = instance_from_pb(router_pb2.Instance(id="a"))
    assert (instance.instance_class, instance.weight, instance.load) == (EVERY_CLASS, 1.0, None)


def test_no_prefixes_is_not_the_same_as_no_word_of_them() -> None:
    """An empty digest says that nothing is cached; none at all says nothing new."""
    for prefixes in (None, frozenset[int]()):
        instance = Instance("a", "h:1", prefixes=prefixes)
        assert instance_from_pb(instance_to_pb(instance)).prefixes == prefixes


@pytest.mark.parametrize("phase", CanaryPhase)
def test_a_canarys_state_survives_the_wire(phase: CanaryPhase) -> None:
    """Every phase, with its reason."""
    state = CanaryState(2**60, phase, 10_000, "slow")
    assert canary_from_pb(canary_to_pb(state)) == state


def test_a_router_without_canaries_is_idle() -> None:
    """What an older router leaves out means that nobody goes to a canary unasked."""
    assert canary_from_pb(router_pb2.Membership().canary) == CanaryState()


def test_counts_survive_the_wire_and_are_bounded() -> None:
    """Both groups come back; a longer or shorter histogram is brought to our length."""
    tally = Tally(3, 1)
    tally.first_token(0.2)
    counts = Counts(canary=tally, stable=Tally(5, 0))
    assert counts_from_pb(counts_to_pb(counts)) == counts
    odd = router_pb2.CanaryTally(first_tokens=[1] * (BUCKETS + 7))
    read = counts_from_pb(router_pb2.CanaryCounts(canary=odd))
    assert read.canary.first_tokens == [1] * BUCKETS
    assert read.stable == Tally()
