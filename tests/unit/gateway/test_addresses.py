"""Counting by address."""

from __future__ import annotations

import pytest

from gateway.addresses import AddressLimit, holder_of


def test_an_address_gets_its_share_and_no_more() -> None:
    """At the limit it is refused, others are not, and what it gives back it may take again."""
    limit = AddressLimit(2)
    for _ in range(2):
        assert limit.admits("192.0.2.1")
        limit.enter("192.0.2.1")
    assert not limit.admits("192.0.2.1")
    assert limit.admits("192.0.2.2")
    limit.leave("192.0.2.1")
    assert limit.admits("192.0.2.1")


def test_who_has_left_is_forgotten() -> None:
    """Addresses that hold nothing take no memory, however many have come."""
    limit = AddressLimit(1)
    for number in range(300):
        address = f"192.0.2.{number}"
        assert limit.admits(address)
        limit.enter(address)
        limit.leave(address)
    assert len(limit) == 0


def test_zero_is_no_limit() -> None:
    """Where the operator says so, an address may hold whatever there is."""
    limit = AddressLimit(0)
    for _ in range(5):
        limit.enter("192.0.2.1")
    assert limit.admits("192.0.2.1")


@pytest.mark.parametrize(
    ("address", "holder"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("a name", "a name"),
    ],
)
def test_a_network_of_ipv6_is_one_holder(address: str, holder: str) -> None:
    """Whoever has one address of IPv6 has the 2^64 beside it; text that is no address stands for itself."""
    assert holder_of(address) == holder
