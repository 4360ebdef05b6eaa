"""What a load balancer hears from a gateway."""

from __future__ import annotations

import asyncio

import pytest

from gateway.agent import agent_answer, serving_agent
from gateway.connections import Connections
from gateway.handshakes import Handshakes
from launcher.ports import free_port
from mesh.clock import SystemClock


def test_the_share_is_told_until_the_drain() -> None:
    """`up ready N%` while it serves; `drain` once it parts from its clients."""
    connections, handshakes = Connections(10), Handshakes()
    assert agent_answer(connections, handshakes, 0.0) == "up ready 100%"
    for _ in range(50):
        handshakes.took(0.070, 0.0)
    assert agent_answer(connections, handshakes, 0.0) == "up ready 50%"
    connections.draining = True
    assert agent_answer(connections, handshakes, 0.0) == "drain"


async def test_a_connection_is_answered_with_one_line() -> None:
    """HAProxy connects, sends nothing, and reads a line to its end."""
    port = free_port()
    async with serving_agent("127.0.0.1", port, Connections(1), Handshakes(), SystemClock()):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await reader.read() == b"up ready 100%\n"
        writer.close()
        await writer.wait_closed()


async def test_a_port_in_use_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2 and the flag that helps; port 0 means that nobody asked for an agent."""
    async with serving_agent("127.0.0.1", 0, Connections(1), Handshakes(), SystemClock()):
        pass
    server = await asyncio.start_server(lambda _r, w: w.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with pytest.raises(SystemExit) as ended:
        async with serving_agent("127.0.0.1", port, Connections(1), Handshakes(), SystemClock()):
            pass
    server.close()
    assert ended.value.code == 2
    assert "choose another with --agent-port" in capsys.readouterr().err
