"""Whatever breaks between client and instances, text and bill are those of an undisturbed run (§4)."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.fake_upstream import text_of
from tests.support.session_world import WindowedClient, World
from tests.support.told_usage import stream_bills

# Tokens as models have them: words, code points cut in two or four, paragraphs, nothing at all.
TOKENS = (
    b"one",
    b" two",
    b"\xf0\x9f",
    b"\x98\x80",
    b"\xf0",
    b"\x9f",
    b"\x8c",
    b"\xb6",
    b".\n\n",
    b"",
)
SCRIPT = st.lists(st.sampled_from(TOKENS), min_size=1, max_size=60)
# What happens between two faults: engine steps, frames read, whether the client acknowledges, and
# whether the gateways get to write to the store.
CALM = st.tuples(st.integers(0, 9), st.integers(0, 9), st.booleans(), st.booleans())
FAULTS = st.sampled_from(
    (
        *("cut", "cut and move", "gateway dies", "gateway dies, client moves", "taken over"),
        *("moved while connected", "calls break", "instance dies", "away for a while", "none"),
        "given up",
    )
)
ROUNDS_MAX = 400


class Run:
    """One example: a client that asks once, and a world in which things break."""

    def __init__(self, script: list[bytes]) -> None:
        self.world = World(lambda _: script)
        self.client = WindowedClient()
        self.home = 0
        self.swept = False
        self.given_up = False

    async def calm(self, steps: int, frames: int, ack: bool, commit: bool) -> None:
        """A while without faults."""
        await self.world.step(steps)
        self.client.read(frames)
        if ack:
            await self.client.ack()
        if commit:
            await self.world.commit()

    async def fault(self, what: str) -> None:
        """Something breaks."""
        here, there = self.home, 1 - self.home
        match what:
            case "cut" | "cut and move":
                self.client.cut()
                await self.resume(here if what == "cut" else there)
            case "gateway dies" | "gateway dies, client moves":
                self.kill_gateway()
                await self.resume(here if what == "gateway dies" else there)
            case "taken over" | "moved while connected":
                # The old socket stays open, and is ignored.
                await self.resume(here if what == "taken over" else there)
            case "calls break":
                for name in self.world.cluster.instances:
                    self.world.cluster.cut(name)
            case "instance dies":
                self.kill_instance()
            case "given up":
                await self.give_up()
            case "away for a while":
                self.client.cut()
                await self.world.step(5)
                self.world.clock.advance(9)
                await self.resume(there)

    async def resume(self, index: int) -> None:
        self.home = index
        await self.client.resume(self.world.gateways[index])

    async def give_up(self) -> None:
        """The client wants no more, perhaps while a new owner hears again what the store had not."""
        if self.client.connected:
            self.given_up = True
            await self.client.send(type="cancel", id="s")

    def kill_gateway(self) -> None:
        self.world.gateways[self.home].crash()
        self.world.gateways[self.home] = self.world.gateway()

    def kill_instance(self) -> None:
        first = next(n for n, i in self.world.cluster.instances.items() if i.alive)
        self.world.cluster.kill(first)
        for name, instance in self.world.cluster.instances.items():
            instance.alive = instance.alive or name != first

    async def finish(self) -> None:
        """Let everything work from now on, until the end has arrived and is acknowledged."""
        client, heard = self.client, 0
        for _ in range(ROUNDS_MAX):
            await self.calm(3, 1_000, ack=True, commit=True)
            if "s" in client.ends:
                break
            if client.socket.close_code is not None:
                await self.resume(self.home)
            # A stream that finds no instance at once looks again after a real tenth of a second.
            await asyncio.sleep(0.01 if client.last_seq == heard else 0)
            heard = client.last_seq
        for _ in range(3):
            await self.calm(3, 1_000, ack=True, commit=True)
        # The client has the end; what it costs may still have to be asked of an instance.
        for owner in self.world.gateways[self.home].registry.owners:
            for _ in range(ROUNDS_MAX):
                if not owner.machine.streams.live:
                    break
                await self.calm(3, 1_000, ack=True, commit=True)
                await asyncio.sleep(0.01)
        await self.world.commit()

    async def bill_of_the_dead(self) -> None:
        """The gateway died after `done` had left and before its next commit: somebody sweeps up."""
        self.swept = True
        for _ in range(20):
            self.world.clock.advance(10)
            await self.world.gateways[1 - self.home].registry.sweep()
            await self.world.commit()


async def play(script: list[bytes], rounds: list[Any], *, stream: bool) -> None:
    run = Run(script)
    client = run.client
    client.connect(run.world.gateways[0])
    client.read()
    await client.generate("s", stream=stream)
    # Before the request is stored a dying gateway may lose it: then the client asks again.
    await run.world.commit()
    for calm, fault in rounds:
        await run.calm(*calm)
        await run.fault(fault)
    await run.finish()
    assert client.errors == []
    assert "s" in client.ends, "it ends, also for who gives no more credit"
    end = client.ends["s"]
    text = client.texts["s"].decode() if stream else end["text"]
    counted = end["usage"]["completion_tokens"]
    if run.given_up and (end["type"], end["finish_reason"]) == ("done", "cancelled"):
        assert text_of(script).decode().startswith(text)
    else:
        assert (end["type"], end["finish_reason"]) == ("done", "stop")
        assert text == text_of(script).decode()
        assert counted == framed_tokens(script)
    assert not stream or client.tokens.get("s", 0) == counted
    # Who gave up while no instance had the request owes nothing; whether an instance once had it is all the same.
    owes = bool(end["usage"]["prompt_tokens"])
    if owes and not stream_bills(run.world.memory.usage):
        await run.bill_of_the_dead()
    bills = stream_bills(run.world.memory.usage)
    if owes:
        assert {bill["id"] for bill in bills} == {f"{client.session}/s/stream_finished"}
    for bill in bills:
        billed = bill["completion_tokens"]
        assert billed <= counted if run.swept else billed == counted
        assert owes or not bill["prompt_tokens"]
    run.world.close()


def framed_tokens(script: list[bytes]) -> int:
    """Tokens up to the last one that brought text."""
    texts = [text_of(script, n) for n in range(len(script) + 1)]
    return max((n for n in range(1, len(texts)) if texts[n] != texts[n - 1]), default=0)


@settings(max_examples=150)
@given(script=SCRIPT, rounds=st.lists(st.tuples(CALM, FAULTS), max_size=6), stream=st.booleans())
def test_text_and_bill_are_exact(script: list[bytes], rounds: list[Any], stream: bool) -> None:
    """Cuts, take-overs, dead gateways and dead instances change no byte and no bill (CASES 62, 63)."""
    asyncio.run(play(script, rounds, stream=stream))
