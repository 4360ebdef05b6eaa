"""What a gateway makes of the router's snapshots."""

from __future__ import annotations

from dataclasses import replace

from gateway.upstream.membership import Members, Snapshot
from mesh.canary import CanaryPhase, CanaryState
from mesh.membership import Instance, Load

A, B, C = (Instance(name, f"127.0.0.1:{n}", ("m",), load=Load(1)) for n, name in enumerate("abc"))


def _ids(members: Members, now: float) -> list[str]:
    return [instance.id for instance in members.current(now)]


def _snapshot(router: str, *instances: Instance) -> Snapshot:
    return Snapshot(router, 3.0, instances)


def test_a_snapshot_replaces_the_one_before() -> None:
    """Under one router what is missing is gone at once."""
    members = Members()
    members.apply(_snapshot("r1", B, A), 0.0)
    assert _ids(members, 0.0) == ["a", "b"]
    members.apply(_snapshot("r1", B), 1.0)
    assert _ids(members, 1.0) == ["b"]


def test_a_new_router_does_not_empty_the_mesh() -> None:
    """Under a new start id what is missing stays for two leases, then goes."""
    members = Members()
    members.apply(_snapshot("r1", A, B), 0.0)
    members.apply(_snapshot("r2"), 10.0)
    assert _ids(members, 10.0) == ["a", "b"]
    members.apply(_snapshot("r2", B), 12.0)
    assert _ids(members, 12.0) == ["a", "b"]
    members.apply(_snapshot("r2", B), 16.0)
    assert _ids(members, 16.0) == ["b"]


def test_who_registered_again_may_leave_again() -> None:
    """An instance that the new router knows has no grace left."""
    members = Members()
    members.apply(_snapshot("r1", A), 0.0)
    members.apply(_snapshot("r2", A), 1.0)
    members.apply(_snapshot("r2"), 2.0)
    assert _ids(members, 2.0) == []


def test_a_silent_router_changes_nothing_but_loads() -> None:
    """CASES 78: with the router away members stay, and stale load reports are forgotten."""
    members = Members()
    members.apply(_snapshot("r1", A), 0.0)
    assert members.current(1.0)[0].load == Load(1)
    stale = members.current(1_000.0)
    assert [i.id for i in stale] == ["a"]
    assert stale[0].load is None


def test_prefixes_stay_until_there_are_others() -> None:
    """A snapshot that says nothing of an instance's prefixes leaves them as they were."""
    members = Members()
    members.apply(_snapshot("r1", replace(A, prefixes=frozenset({1})), B), 0.0)
    members.apply(_snapshot("r1", replace(A, load=Load(5)), B), 1.0)
    assert members.current(1.0)[0] == replace(A, load=Load(5), prefixes=frozenset({1}))
    members.apply(_snapshot("r1", replace(A, prefixes=frozenset()), B), 2.0)
    assert members.current(2.0)[0].prefixes == frozenset()
    members.apply(_snapshot("r1", B), 3.0)
    members.apply(_snapshot("r1", A, B), 4.0)
    assert members.current(4.0)[0].prefixes is None


def test_a_new_router_does_not_revive_a_canary() -> None:
    """The state with the higher revision stands, and a router that lacks it is told."""
    members = Members()
    stopped = CanaryState(7, CanaryPhase.ROLLED_BACK, 0, "slow")
    members.apply(Snapshot("r1", 3.0, (A,), stopped), 0.0)
    assert not members.news_for_router
    members.apply(Snapshot("r2", 3.0, (A,), CanaryState()), 1.0)
    assert (members.canary, members.news_for_router) == (stopped, True)
    newer = CanaryState(8, CanaryPhase.RUNNING, 100)
    members.apply(Snapshot("r2", 3.0, (A,), newer), 2.0)
    assert (members.canary, members.news_for_router) == (newer, False)
