"""Membership with leases."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mesh.membership import Instance, Load
from router.registry import Registry, RegistryFullError

A = Instance("a", "127.0.0.1:1", ("m",), start_id="1")
B = Instance("b", "127.0.0.1:2", ("m",), start_id="1")


def _ids(registry: Registry) -> list[str]:
    return [instance.id for instance in registry.snapshot().instances]


def test_a_lease_lasts_its_time_from_the_latest_report() -> None:
    """One lease after its latest report, not a moment sooner, nobody knows a member's load."""
    registry = Registry(3.0, 10)
    registry.register(A, now=0.0)
    registry.register(replace(A, load=Load(running=1)), now=2.0)
    assert not registry.expire(now=4.99)
    assert registry.expire(now=5.0)
    assert not registry.expire(now=5.1)
    (member,) = registry.snapshot().instances
    assert member == replace(A, lapsed=True)
    assert registry.register(replace(A, load=Load(running=2)), now=6.0)
    (member,) = registry.snapshot().instances
    assert (member.lapsed, member.load) == (False, Load(running=2))


def test_who_never_comes_back_is_forgotten() -> None:
    """CASES 78: one that has lapsed stays for a hundred leases: its way to us may be cut, no more."""
    registry = Registry(3.0, 10)
    registry.register(A, now=0.0)
    registry.expire(now=300.0)
    assert _ids(registry) == ["a"]
    registry.expire(now=300.1)
    assert _ids(registry) == []


def test_a_new_instance_at_the_address_replaces_one_that_lapsed() -> None:
    """An address belongs to whoever registers from it: the one that has lapsed is not there."""
    registry = Registry(3.0, 1)
    registry.register(A, now=0.0)
    registry.expire(now=3.0)
    registry.register(replace(B, address=A.address), now=4.0)
    assert _ids(registry) == ["b"]


def test_revision_rises_only_with_change() -> None:
    """A renewal that says nothing new is no change; news of load is."""
    registry = Registry(3.0, 10)
    assert registry.register(A, 0.0)
    first = registry.revision
    assert not registry.register(A, 1.0)
    assert registry.revision == first
    assert registry.register(replace(A, load=Load(running=1)), 1.5)
    assert registry.revision == first + 1


def test_snapshot_is_in_order_and_dated() -> None:
    """Members come by id with the time of their report."""
    registry = Registry(3.0, 10)
    registry.register(B, 1.0)
    registry.register(A, 2.0)
    assert _ids(registry) == ["a", "b"]
    assert [member.reported_at for member in registry.snapshot().members] == [2.0, 1.0]


def test_leaving_is_at_once() -> None:
    """A member that leaves is out with that call, and leaving twice changes nothing."""
    registry = Registry(3.0, 10)
    registry.register(A, 0.0)
    assert registry.leave("a", "1")
    assert not registry.leave("a", "1")
    assert _ids(registry) == []


def test_the_old_process_cannot_remove_its_successor() -> None:
    """What a replaced process says while it drains or leaves does not touch the new one."""
    registry = Registry(3.0, 10)
    registry.register(A, 0.0)
    successor = replace(A, start_id="2", address="127.0.0.1:9")
    registry.register(successor, 1.0)
    assert not registry.register(replace(A, draining=True), 1.5)
    assert not registry.leave("a", "1")
    assert registry.snapshot().instances == (successor,)


def test_bound_of_instances() -> None:
    """One instance too many is refused; those inside may renew."""
    registry = Registry(3.0, 1)
    registry.register(A, 0.0)
    registry.register(A, 0.5)
    with pytest.raises(RegistryFullError):
        registry.register(B, 1.0)
