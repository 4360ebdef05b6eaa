"""Back-pressure and cancellation from a client's socket to the engine's batch, and back."""

from __future__ import annotations

import asyncio
import statistics

from tests.support.gateway_under_test import wire
from tests.support.scripts import script_messages
from tests.support.waiting import SURELY_S, wait_until
from tests.support.whole_path import cancel_by_cutting, whole_path

TOKENS = 2000
WORDS = ["wörd ".encode(), b"\xf0\x9f", b"\x98\x80 "]
TEXT = b"".join(WORDS).decode() * TOKENS
WINDOW_MAX = 128
CANCELS = 50


async def test_a_stalled_reader_loses_nothing_and_costs_nothing() -> None:
    """CASES 43: no `ack`, no credit, no compute; with the next `ack` it goes on, deltas merged."""
    async with whole_path(heartbeat_stream_s=3) as path, wire(path.gateway.url) as client:
        await client.send(type="generate", id="a", messages=script_messages(WORDS, repeat=TOKENS))
        await client.until("token")
        stream = path.gateway.registry.owners[0].machine.streams.live["a"]
        await wait_until(lambda: path.running == 0)
        at_rest = len(stream.text.token_ids)
        # What is ahead of the client is its window, and the credit that the window was worth.
        assert at_rest < 3 * WINDOW_MAX
        assert stream.text.waiting_tokens <= WINDOW_MAX
        # The last frame that fits says how things stand, and it is not a numbered one.
        await client.until("pressure", level="throttle")
        while not any(frame["type"] == "done" for frame in client.seen):
            await client.send(type="ack", seq=client.last_seq + 1)
            await client.read()
        assert client.text() == TEXT
        numbers = [frame["seq"] for frame in client.seen if "seq" in frame]
        assert numbers == list(range(1, len(numbers) + 1))
        counted = [f.get("tokens", 1) for f in client.seen if f["type"] == "token"]
        assert sum(counted) == 3 * TOKENS
        assert max(counted) > 1
        assert client.seen[-1]["usage"]["completion_tokens"] == 3 * TOKENS


async def test_a_stalled_reader_slows_nobody() -> None:
    """Beside one that never acknowledges, another stream runs to its end."""
    async with (
        whole_path() as path,
        wire(path.gateway.url) as stalled,
        wire(path.gateway.url, windowed=False) as quick,
    ):
        messages = script_messages(WORDS, repeat=TOKENS)
        await stalled.send(type="generate", id="a", messages=messages)
        await stalled.until("token")
        await wait_until(lambda: path.running == 0)
        await quick.send(messages=messages)
        await quick.until("done")
        assert quick.text() == TEXT
        stalled.connection.transport.abort()


async def test_a_cut_client_frees_its_blocks() -> None:
    """CASES 26: with `on_disconnect: cancel` the socket's end is the generation's, 50 of 50."""
    async with whole_path() as path:
        took = [await cancel_by_cutting(path) for _ in range(CANCELS)]
    # The bound of the contract is checked by the heavy run; here a busy machine may be late.
    assert statistics.median(took) < 0.1


async def test_a_cancelled_stream_frees_its_blocks() -> None:
    """`cancel` on a live connection does the same, and the session goes on."""
    async with whole_path() as path, wire(path.gateway.url) as client:
        for number in range(CANCELS):
            name = f"s{number}"
            messages = script_messages([b"x "], dt_ms=1, repeat=100_000)
            await client.send(type="generate", id=name, messages=messages)
            await client.until("token", id=name)
            await client.send(type="cancel", id=name)
            done = await client.until("done", id=name)
            assert done["finish_reason"] == "cancelled"
            assert done["usage"]["completion_tokens"] < 100
            await client.send(type="ack", seq=client.last_seq + 1)
            async with asyncio.timeout(SURELY_S):
                await wait_until(lambda: not path.running and not path.blocks_used)
