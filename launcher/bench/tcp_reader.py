"""A client at the far end of a link: reads frames, acknowledges as an SDK does, tells how late they were.

python -m launcher.bench.tcp_reader LISTEN_HOST FRAMES FRAME_BYTES
"""

from __future__ import annotations

import json
import socket
import struct
import sys
import time

__all__ = ["STAMP", "read"]

# Every frame begins with the time it was handed to the socket, in ns of the machine's monotonic clock.
STAMP = struct.Struct("!Q")
_ACK_EVERY = 8
_ACK = b'{"type":"ack","seq":123456}'


def read(host: str, frames: int, size: int) -> list[int]:
    """Delays in ns, frame by frame, of one connection that is taken on `host`."""
    with socket.create_server((host, 0)) as server:
        sys.stdout.write(f"{server.getsockname()[1]}\n")
        sys.stdout.flush()
        sock, _ = server.accept()
    delays: list[int] = []
    waiting = b""
    with sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while len(delays) < frames and (data := sock.recv(1 << 16)):
            now = time.monotonic_ns()
            waiting += data
            while len(waiting) >= size:
                delays.append(now - STAMP.unpack_from(waiting)[0])
                waiting = waiting[size:]
                if len(delays) % _ACK_EVERY == 0:
                    sock.send(_ACK)
    return delays


if __name__ == "__main__":
    sys.stdout.write(json.dumps(read(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))
