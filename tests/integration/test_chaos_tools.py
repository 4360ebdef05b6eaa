"""What the chaos is made of: it must be able to break things, and to see that they are broken."""

from __future__ import annotations

import asyncio
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from seedance.protocol.frames import Usage
from tests.chaos.plan import KILLS, KINDS, plan
from tests.chaos.relay import running_relay
from tests.chaos.traffic import Outcome
from tests.chaos.verdict import differs, misbilled
from tests.chaos.wall_clock import WallClocks
from tests.support.waiting import SURELY_S, wait_until

NAMES = ("store-0", "router-0", "metering-0", "inference-0", "inference-1", "gateway-0")
CALM = Outcome("calm", "s0", "one two three", Usage(5, 0, 3), "stop")


def test_a_seed_decides_everything() -> None:
    """Run n of a seed is the same in a longer chaos; kinds come in turn; another seed is another."""
    short, long = list(plan(3, 10, KINDS, NAMES)), list(plan(3, 50, KINDS, NAMES))
    assert long[:10] == short
    assert [fault.kind for fault in short] == [KINDS[i % len(KINDS)] for i in range(10)]
    assert list(plan(4, 10, KINDS, NAMES)) != short


def test_kills_strike_their_kind() -> None:
    """Each kind of kill aims at a process of that kind."""
    aims = {fault.kind: fault.target for fault in plan(1, 50, KILLS, NAMES)}
    assert set(aims) == set(KILLS)
    for kind, target in aims.items():
        assert target.startswith(kind.removeprefix("kill-").replace("instance", "inference"))


@pytest.mark.parametrize(
    ("text", "usage", "reason"),
    [
        ("one two", Usage(5, 0, 3), "stop"),  # lost
        ("one two two three", Usage(5, 0, 3), "stop"),  # twice
        ("two one three", Usage(5, 0, 3), "stop"),  # out of order
        ("one two three", Usage(5, 0, 4), "stop"),  # billed more
        ("one two three", Usage(6, 0, 3), "stop"),
        ("one two three", Usage(5, 0, 3), "cancelled"),
        ("one two three", None, None),
    ],
)
def test_what_differs_is_seen(text: str, usage: Usage | None, reason: str | None) -> None:
    """A text, a usage or an end that is not the calm run's is a failure."""
    assert differs(Outcome("calm", "s1", text, usage, reason), CALM)


def test_what_is_equal_passes() -> None:
    """An equal stream passes, whatever of its prompt was cached; an error never does."""
    assert not differs(Outcome("calm", "s1", CALM.text, Usage(5, 4, 3), "stop"), CALM)
    assert differs(Outcome("calm", "s1", CALM.text, Usage(5, 0, 3), "stop", "unavailable"), CALM)


def test_bills_must_be_there_once_and_exact() -> None:
    """No bill, two bills and a bill of other figures than the client was told are failures."""
    assert not misbilled([CALM], {"s0": [(5, 3)]})
    for bills in ({}, {"s0": [(5, 3), (5, 3)]}, {"s0": [(5, 4)]}, {"s1": [(5, 3)]}):
        assert "s0" in misbilled([CALM], bills)


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_a_wall_clock_is_set_while_the_process_runs(tmp_path: Path) -> None:
    """A process whose clock is stepped sees another wall time, and the same monotonic one."""
    clocks = WallClocks(tmp_path)
    program = (
        "import time; input(); a = time.time(), time.monotonic(); print(flush=True); input();"
        "b = time.time(), time.monotonic(); print(round((b[0]-a[0]) - (b[1]-a[1])))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=clocks.environment,
    ) as process:
        process.stdin.write("\n")
        process.stdin.flush()
        process.stdout.readline()
        clocks.step(process.pid, 7_200)
        clocks.step(process.pid, -3_600)
        said, _ = process.communicate("\n", timeout=20)
    assert said.strip() == "3600"


@pytest.mark.parametrize("count", [0, 1, 1_000])
async def test_a_relay_cuts_at_the_byte(count: int) -> None:
    """After the bytes that a cut allows nothing passes any more, and the connection ends."""

    async def talk(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.wait_for(go_on.wait(), SURELY_S)
        writer.write(b"x" * 5_000)
        await writer.drain()
        writer.close()

    class Always(random.Random):
        """Cuts after `count` bytes, with FIN, so that every byte that passed arrives."""

        def randint(self, _least: int, most: int) -> int:
            return most

        def choice(self, ends: list) -> object:
            return ends[0]

    go_on = asyncio.Event()
    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    async with server, running_relay(Always()) as relay:
        relay.target = f"{host}:{port}"
        reader, writer = await asyncio.open_connection(*relay.address.rsplit(":", 1))
        await wait_until(lambda: any(p._writers for p in relay._passages))
        await wait_until(lambda: all(len(p._writers) == 2 for p in relay._passages))
        assert relay.cut(Always(), count) == 1
        go_on.set()
        assert await asyncio.wait_for(reader.read(), SURELY_S) == b"x" * count
        writer.close()
