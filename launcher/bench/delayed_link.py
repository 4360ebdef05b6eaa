"""A link with a round trip: two TUN devices, one in a network namespace, and packets carried late between them.

A relay of bytes would not do: it acknowledges at once what has not arrived, so TCP on both sides
would not know of the delay. Here TCP's own packets are late. Linux, as root, with `ip`.

python -m launcher.bench.delayed_link NAMESPACE DELAY_S      until it is ended; prints `up` first
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

__all__ = ["FAR", "NAMESPACE", "delayed_link", "is_possible", "main"]

NAMESPACE = "seedance-bench"
NEAR, FAR = "10.77.77.1", "10.77.77.2"
_DEVICE = Path("/dev/net/tun")
# linux/if_tun.h
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x4004_54CA, 0x0001, 0x1000
_PACKET_BYTES_MAX = 2048
_PACKETS_AT_ONCE = 64


def is_possible() -> bool:
    """Whether this machine lets us have such a link."""
    return os.geteuid() == 0 and _DEVICE.exists() and shutil.which("ip") is not None


def _ip(arguments: str) -> None:
    subprocess.run(["ip", *arguments.split()], check=True)


def _tun(name: str) -> int:
    device = os.open(_DEVICE, os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH", name.encode(), _IFF_TUN | _IFF_NO_PI))
    return device


def _carrier(
    loop: asyncio.AbstractEventLoop, source: int, sink: int, delay_s: float
) -> Callable[[], None]:
    def carry() -> None:
        for _ in range(_PACKETS_AT_ONCE):
            try:
                packet = os.read(source, _PACKET_BYTES_MAX)
            except BlockingIOError:
                return
            loop.call_later(delay_s, os.write, sink, packet)

    return carry


async def main(namespace: str, delay_s: float) -> None:
    """Make the devices and carry packets, each way `delay_s` late, until cancelled."""
    near, far = _tun("sdbench0"), _tun("sdbench1")
    _ip(f"link set sdbench1 netns {namespace}")
    for where, address, name in (
        ("", NEAR, "sdbench0"),
        (f"-n {namespace} ", FAR, "sdbench1"),
    ):
        _ip(f"{where}addr add {address}/24 dev {name}")
        _ip(f"{where}link set {name} up txqueuelen 10000")
    loop = asyncio.get_running_loop()
    for source, sink in ((near, far), (far, near)):
        loop.add_reader(source, _carrier(loop, source, sink, delay_s))
    sys.stdout.write("up\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


@contextlib.contextmanager
def delayed_link(round_trip_s: float) -> Iterator[None]:
    """Processes in `NAMESPACE` have the address `FAR`, half a round trip away, inside the block."""
    _ip(f"netns add {NAMESPACE}")
    try:
        argv = [sys.executable, "-m", "launcher.bench.delayed_link", NAMESPACE]
        with subprocess.Popen(
            [*argv, str(round_trip_s / 2)], stdout=subprocess.PIPE, text=True
        ) as link:
            try:
                assert link.stdout is not None  # noqa: S101 - asked for above
                if link.stdout.readline() != "up\n":
                    raise OSError("the link did not come up")
                yield
            finally:
                link.terminate()
    finally:
        _ip(f"netns del {NAMESPACE}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], float(sys.argv[2])))
