"""How much of a WebSocket's text the kernel may hold on its way to a client.

The kernel would let the buffer of a client that does not read grow to megabytes, and its streams
would pause as late as that. A fixed small one would starve a client that is far away, since what is
under way must be kept until it is acknowledged. So it is what the client's distance needs at the
fastest pace of a session (docs/benchmarks.md has the figures).
"""

from __future__ import annotations

import socket
import struct

__all__ = ["SEND_BUFFER_MAX", "SEND_BUFFER_MIN", "round_trip_s", "send_buffer_for"]

SEND_BUFFER_MIN, SEND_BUFFER_MAX = 32 * 1024, 256 * 1024
# 64 streams of 100 frames a second with 130 bytes each are 0.83 MB/s; half as much again for bursts.
BYTES_PER_S = 1_250_000
# struct tcp_info of linux/tcp.h: `tcpi_rtt` is a u32 of microseconds after 68 bytes.
_TCP_INFO = getattr(socket, "TCP_INFO", None)
_RTT = struct.Struct("=68xI")


def round_trip_s(sock: socket.socket) -> float:
    """The kernel's estimate of the way there and back, 0 where it tells none."""
    if _TCP_INFO is None:
        return 0.0
    try:
        (microseconds,) = _RTT.unpack(sock.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _RTT.size))
    except (OSError, struct.error):
        return 0.0
    return float(microseconds) / 1e6


def send_buffer_for(round_trip_s: float) -> int:
    """Bytes for `SO_SNDBUF`."""
    needed = int(round_trip_s * BYTES_PER_S)
    return min(max(needed, SEND_BUFFER_MIN), SEND_BUFFER_MAX)
