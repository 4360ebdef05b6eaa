"""No address takes the place of all others: how much each may hold at once (§3, 4429)."""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache

__all__ = ["AddressLimit", "Networks", "holder_of", "is_within"]

Networks = Sequence[ipaddress.IPv4Network | ipaddress.IPv6Network]

# Whoever has one address of IPv6 usually has the 2^64 beside it.
IPV6_PREFIX = 64


@lru_cache(maxsize=4096)  # a connection asks four times
def holder_of(address: str) -> str:
    """Who is counted: an IPv4 address, an IPv6 network of 64 bits, or the text itself when neither."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.ip_network((found, IPV6_PREFIX), strict=False))


def is_within(address: str, networks: Networks) -> bool:
    """Whether an address is of one of the networks."""
    return bool(networks) and any(ipaddress.ip_address(address) in net for net in networks)


class AddressLimit:
    """Counts what each address holds; over `limit` it gets no more. A limit of 0: as much as it likes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._held)

    def admits(self, address: str) -> bool:
        """Whether the address may hold one more."""
        return not self._limit or self._held[holder_of(address)] < self._limit

    def enter(self, address: str) -> None:
        """The address holds one more."""
        self._held[holder_of(address)] += 1

    def leave(self, address: str) -> None:
        """The address holds one less."""
        holder = holder_of(address)
        self._held[holder] -= 1
        if not self._held[holder]:
            del self._held[holder]
