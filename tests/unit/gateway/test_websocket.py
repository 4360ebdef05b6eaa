"""A connection between its socket and its session."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from gateway.subprotocols import BinarySpeech
from gateway.tickets import Principal
from gateway.websocket import Connection
from seedance.protocol.envelope import seal
from tests.support.session_world import FakeSocket, WindowedClient, World


class _PoliteSocket(FakeSocket):
    """Counts how often others were given their turn."""

    def __init__(self) -> None:
        super().__init__()
        self.turns = 0

    def send_bytes(self, data: bytes) -> None:
        """What is said does not matter here."""

    async def give_way(self) -> None:
        self.turns += 1
        await super().give_way()


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World(lambda *_: [b"some ", b"words ", b"of ", b"text"])
    yield made
    made.close()


@pytest.mark.parametrize(
    ("messages", "turns"),
    [
        ([bytes((byte,)) for byte in seal(b"")], 8),  # one byte per message
        ([seal(b"") * 100], 100),
        ([seal(b"") * 2 + b"\xca"], 2),
    ],
)
async def test_others_have_their_turn(world: World, messages: list[bytes], turns: int) -> None:
    """After each message, though it be a piece of an envelope, and after each envelope in one."""
    gateway, socket = world.gateways[0], _PoliteSocket()
    said = BinarySpeech(socket, asyncio.get_running_loop(), compressed=False)
    connection = Connection(
        gateway.deps,
        gateway.registry,
        socket,
        Principal("local"),
        windowed=True,
        affinity="local|test",
        speech=said,
    )
    connection.open()
    for message in messages:
        await connection.on_message(message)
    assert socket.turns == turns
    connection.gone()


async def test_an_acknowledgement_is_dealt_with_where_it_arrives(world: World) -> None:
    """Alone it needs no task of its own; while an earlier message is dealt with, it waits its turn."""
    client = WindowedClient()
    client.connect(world.gateways[0])
    await client.generate("a")
    await world.commit()
    await world.step(3)
    client.read()
    assert client.connection is not None
    log = client.connection._owner.machine.delivery.log
    assert len(log.entries) > 1
    ack = f'{{"type":"ack","seq":{client.last_seq + 1}}}'.encode()
    client.connection._hearing = True
    assert not client.socket.on_small(ack)
    client.connection._hearing = False
    assert not client.socket.on_small(b'{"type":"ping"}')
    assert client.socket.on_small(ack)
    assert not log.entries
