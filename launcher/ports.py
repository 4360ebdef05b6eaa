"""Ports on this machine: which are free, and a clear word when one is not."""

from __future__ import annotations

import socket
from collections.abc import Iterable

__all__ = ["free_port", "is_free", "next_free_ports"]

PORT_MAX = 65_535


def is_free(port: int, host: str = "127.0.0.1") -> bool:
    """Whether a server could listen there now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As servers do: a port that only holds finished connections counts as free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def free_port(host: str = "127.0.0.1", taken: Iterable[int] = ()) -> int:
    """A port of the kernel's choice that is in nobody's use and not in `taken`."""
    avoid = set(taken)
    while True:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.bind((host, 0))
            port: int = probe.getsockname()[1]
        if port not in avoid:
            return port


def next_free_ports(first: int, count: int, host: str = "127.0.0.1") -> list[int]:
    """The next `count` free ports from `first` on. Raises `OSError` when the range ends before."""
    found: list[int] = []
    for port in range(first, PORT_MAX + 1):
        if len(found) == count:
            break
        if is_free(port, host):
            found.append(port)
    if len(found) < count:
        raise OSError(f"no {count} free ports from {first} on")
    return found
