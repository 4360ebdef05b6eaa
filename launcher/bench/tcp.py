"""What TCP's options do to a stream of small frames: Nagle, and the size of the send buffer.

python -m launcher.bench.tcp            the tables of docs/benchmarks.md, in a minute

Frames of a token leave at an even pace; how late each arrives at a reader that acknowledges every
eighth one is counted beyond half a round trip. Over loopback, and over links that are 50 and 200 ms
there and back where this machine lets us have them (root, Linux).
"""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

from gateway.send_buffer import send_buffer_for
from launcher.bench.delayed_link import FAR, NAMESPACE, delayed_link, is_possible
from launcher.bench.tcp_reader import STAMP

__all__ = ["Load", "Options", "lateness", "main"]

FRAME_BYTES = 130
NS_PER_S, NS_PER_MS = 1_000_000_000, 1_000_000
ROUND_TRIPS_S = (0.0, 0.05, 0.2)
SEND_BUFFERS = (16 * 1024, 32 * 1024, 128 * 1024)
DISCARD_BYTES = 64 * 1024
READ_WITHIN_S = 60.0


@dataclass(frozen=True, slots=True)
class Load:
    """`streams` streams of `rate` frames a second; what is due at a turn leaves in one write."""

    streams: int
    rate: int
    seconds: float

    @property
    def turns(self) -> int:
        """Writes in all."""
        return int(self.rate * self.seconds)


@dataclass(frozen=True, slots=True)
class Options:
    """`send_buffer` 0: the kernel's own tuning."""

    nagle: bool = False
    send_buffer: int = 0


ONE = Load(streams=1, rate=100, seconds=3)
MANY = Load(streams=64, rate=100, seconds=3)


@contextlib.contextmanager
def _reader(round_trip_s: float, load: Load) -> Iterator[tuple[subprocess.Popen[str], str, int]]:
    """A reader's process, its host and its port."""
    host = FAR if round_trip_s else "127.0.0.1"
    inside = ["ip", "netns", "exec", NAMESPACE] if round_trip_s else []
    frames = str(load.turns * load.streams)
    argv = [sys.executable, "-m", "launcher.bench.tcp_reader", host, frames, str(FRAME_BYTES)]
    with subprocess.Popen([*inside, *argv], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None  # noqa: S101 - asked for above
        yield process, host, int(process.stdout.readline())


def _discard(sock: socket.socket) -> None:
    with contextlib.suppress(BlockingIOError):
        while sock.recv(DISCARD_BYTES, socket.MSG_DONTWAIT):
            pass


def _send(sock: socket.socket, load: Load) -> None:
    """Write what is due at each turn; a full buffer makes the frames late, not fewer."""
    begin = time.monotonic_ns()
    filler = b"x" * (FRAME_BYTES - STAMP.size)
    for turn in range(load.turns):
        due = begin + turn * NS_PER_S // load.rate
        while (left := due - time.monotonic_ns()) > 0:
            time.sleep(left / NS_PER_S)
        sock.sendall((STAMP.pack(due) + filler) * load.streams)
        _discard(sock)


def lateness(round_trip_s: float, load: Load, options: Options) -> tuple[float, float]:
    """(p50, p99) of the frames' delay beyond half a round trip, in ms."""
    with (
        _reader(round_trip_s, load) as (process, host, port),
        socket.create_connection((host, port)) as sock,
    ):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, int(not options.nagle))
        if options.send_buffer:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, options.send_buffer)
        _send(sock, load)
        delays = sorted(json.loads(process.communicate(timeout=READ_WITHIN_S)[0]))
    half_ms = round_trip_s / 2 * 1_000
    p50, p99 = (delays[int(share * (len(delays) - 1))] / NS_PER_MS for share in (0.5, 0.99))
    return p50 - half_ms, p99 - half_ms


def _swallowed(send_buffer: int) -> int:
    """Bytes that the kernel takes for a reader that never reads."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        sender = socket.create_connection(server.getsockname())
        silent, _ = server.accept()
    with sender, silent:
        if send_buffer:
            sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
        sender.setblocking(False)
        taken = 0
        with contextlib.suppress(BlockingIOError):
            while True:
                taken += sender.send(b"x" * FRAME_BYTES * 8)
    return taken


def _link(round_trip_s: float) -> contextlib.AbstractContextManager[None]:
    return delayed_link(round_trip_s) if round_trip_s else contextlib.nullcontext()


def _tell_nagle(round_trip_s: float) -> None:
    for nagle in (True, False):
        p50, p99 = lateness(round_trip_s, ONE, Options(nagle))
        print(
            f"| {round_trip_s * 1e3:.0f} ms | {'on' if nagle else 'off'} | {p50:.1f} | {p99:.1f} |"
        )


def _tell_buffers(round_trip_s: float) -> None:
    ours = send_buffer_for(round_trip_s)
    sizes = {f"{size // 1024} KiB": size for size in SEND_BUFFERS}
    sizes |= {f"**ours: {ours // 1024} KiB**": ours, "the kernel's own": 0}
    for name, size in sizes.items():
        p50, p99 = lateness(round_trip_s, MANY, Options(send_buffer=size))
        kept = _swallowed(size) // 1024
        print(f"| {round_trip_s * 1e3:.0f} ms | {name} | {p50:.1f} | {p99:.1f} | {kept} KiB |")


def main() -> None:
    """Print both tables."""
    trips = ROUND_TRIPS_S if is_possible() else ROUND_TRIPS_S[:1]
    print("| round trip | Nagle | p50 late, ms | p99 late, ms |\n| --- | --- | ---: | ---: |")
    for trip in trips:
        with _link(trip):
            _tell_nagle(trip)
    print("\n| round trip | send buffer | p50 late, ms | p99 late, ms | a stalled reader holds |")
    print("| --- | --- | ---: | ---: | ---: |")
    for trip in trips[1:] or trips:
        with _link(trip):
            _tell_buffers(trip)


if __name__ == "__main__":
    main()
