"""The real nginx and HAProxy with `deploy/edge`'s configurations, in front of real gateways."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import grpc
import grpc.aio
import pytest
from playwright.async_api import expect

from gateway.agent import serving_agent
from inference.instance import Instance
from launcher.ports import free_port
from seedance import AsyncSeedanceClient
from seedance.v2 import inference_pb2, inference_pb2_grpc
from tests.support.browser import CHROMIUM, open_page
from tests.support.edge import (
    CONFIGURATIONS,
    EDGES,
    Edge,
    free_edge_ports,
    program_of,
    running_edge,
    seconds_of,
)
from tests.support.fake_upstream import FakeCluster, FakeUpstream
from tests.support.gateway_under_test import running_gateway, wire
from tests.support.instance import SECRET, eventually, running_instance
from tests.support.scripts import SPLIT_WORDS, script, script_messages
from tests.support.service_process import ServiceProcess, running_service
from tests.support.valkey import TestStore
from tests.support.waiting import SURELY_S, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]

REPEAT = 60
TEXT = (b"".join(SPLIT_WORDS) * REPEAT).decode()
SILENCE_S = 45 + 15


@pytest.fixture(params=EDGES)
def program(request: pytest.FixtureRequest) -> str:
    """Each edge; skipped where Debian's package of that name is not installed."""
    if program_of(request.param) is None:
        pytest.skip(f"{request.param} is not installed: apt-get install {request.param}")
    return request.param


@dataclass
class Face:
    """An edge, and what stands behind it."""

    edge: Edge
    gateways: dict[str, ServiceProcess]
    instance: Instance

    async def server(self, **headers: str) -> str:
        """The gateway that a new WebSocket comes to."""
        url = f"{self.edge.url}/v2/infer"
        options = {"ssl": self.edge.tls, "additional_headers": headers}
        async with wire(url, greeting=False, **options) as client:
            return (await client.read())["server"]


@contextlib.asynccontextmanager
async def _face(program: str, folder: Path, store: TestStore) -> AsyncIterator[Face]:
    """Two gateways, one instance, one store, one edge."""
    ports = free_edge_ports()
    agents = [free_port(), free_port()]
    async with running_instance() as instance, contextlib.AsyncExitStack() as stack:
        gateways = {}
        for number in range(2):
            flags = ["--gateway-id", f"gateway-{number}", "--instances", instance.address]
            flags += ["--gateways", f"wss://127.0.0.1:{ports.https}", "--redis", store.url]
            flags += ["--anonymous-tenant", "local", "--trusted-proxies", "127.0.0.1"]
            flags += ["--agent-port", str(agents[number])]
            gateways[f"gateway-{number}"] = await stack.enter_async_context(
                running_service("gateway", *flags, env={"SEEDANCE_MESH_SECRET": SECRET})
            )
        addresses = [gateway.address for gateway in gateways.values()]
        edge = await stack.enter_async_context(
            running_edge(program, folder, ports, addresses, agents, instance.address)
        )
        yield Face(edge, gateways, instance)


async def _curl(face: Face, *arguments: str) -> tuple[list[str], list[float]]:
    """Lines of an answer, and when each came (seconds of the loop's clock)."""
    process = await asyncio.create_subprocess_exec(
        *("curl", "--silent", "--no-buffer", "--cacert", face.edge.authority.file, *arguments),
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    lines, times = [], []
    async for line in process.stdout:
        lines.append(line.decode().rstrip("\n"))
        times.append(asyncio.get_running_loop().time())
    assert await process.wait() == 0
    return lines, times


def _body(dt_ms: float, repeat: int) -> str:
    messages = script_messages([b"word "], dt_ms=dt_ms, repeat=repeat)
    return json.dumps({"model": "script", "messages": messages, "stream": True})


def _delta(line: str) -> str:
    (choice,) = json.loads(line.removeprefix("data: "))["choices"]
    return choice["delta"].get("content", "")


async def test_a_chat_passes_over_websocket_sse_and_http_2(
    program: str, tmp_path: Path, valkey: TestStore
) -> None:
    """The same text each way; SSE arrives as it is made, over HTTP/2; the edge logs no query (CASES 45, 108)."""
    async with _face(program, tmp_path, valkey) as face:
        authority = face.edge.authority.file
        for subprotocol in ("json", "proto"):
            async with AsyncSeedanceClient(
                face.edge.url, ca_cert=authority, subprotocol=subprotocol
            ) as client:
                done = await client.chat(
                    messages=script_messages(SPLIT_WORDS, repeat=REPEAT), stream=False
                )
            assert done.text == TEXT
        for version in ("--http1.1", "--http2"):
            lines, times = await _curl(
                face,
                *(version, "--write-out", "version %{http_version}\n", "--data", _body(20, 25)),
                *("--header", "Content-Type: application/json"),
                f"{face.edge.http}/v1/chat/completions?ticket=sk-XYZ",
            )
            data = [line for line in lines if line.startswith("data: ")]
            assert data[-1] == "data: [DONE]"
            assert "".join(map(_delta, data[:-1])) == "word " * 25
            assert lines[-1] == ("version 2" if version == "--http2" else "version 1.1")
            assert times[-1] - times[0] > 0.2, "the answer came in one piece"
    assert "sk-XYZ" not in face.edge.said.read_text()


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
async def test_a_browser_chats_through_it(program: str, tmp_path: Path, valkey: TestStore) -> None:
    """The page comes over HTTP/2, its WebSocket and Origin pass, and nothing on it goes wrong."""
    async with _face(program, tmp_path, valkey) as face:
        url = face.edge.http + "/"
        async with open_page(url, any_certificate=True) as (page, trouble):
            await expect(page.get_by_text("Connected", exact=True)).to_be_visible()
            await page.get_by_label("Message").fill(script(SPLIT_WORDS, dt_ms=2, repeat=REPEAT))
            await page.keyboard.press("Enter")
            answer = page.locator(".message:not(.mine)")
            await expect(answer.locator(".text")).to_have_text(TEXT.strip())
            assert trouble == []
    logged = face.edge.said.read_text()
    assert "GET / HTTP/2.0" in logged
    socket_over = {"haproxy": "HTTP/2.0", "nginx": "HTTP/1.1"}[program]  # RFC 8441, and not
    assert f"GET /v2/infer {socket_over}" in logged


async def test_a_client_comes_back_to_its_gateway(
    program: str, tmp_path: Path, valkey: TestStore
) -> None:
    """By its affinity cookie, else by its address; other cookies go to the other gateway too."""
    async with _face(program, tmp_path, valkey) as face:
        assert len({await face.server() for _ in range(6)}) == 1
        by_cookie = {}
        for number in range(24):
            cookie = f"seedance_affinity=client-{number}"
            by_cookie[cookie] = await face.server(Cookie=cookie)
        assert set(by_cookie.values()) == {"gateway-0", "gateway-1"}
        again = {cookie: await face.server(Cookie=cookie) for cookie in by_cookie}
        moved = [cookie for cookie in by_cookie if again[cookie] != by_cookie[cookie]]
        assert len(moved) <= 1  # a share of the ring's bound, where there are so few


async def _text_is_whole(face: Face, dt_ms: int, part: Callable[[], Awaitable[None]]) -> None:
    """Read an answer through the edge, while its gateway parts from the client in mid-stream."""
    text, number = "", 0
    async with AsyncSeedanceClient(face.edge.url, ca_cert=face.edge.authority.file) as client:
        messages = script_messages(SPLIT_WORDS, dt_ms=dt_ms, repeat=REPEAT)
        async for chunk in client.chat(messages=messages):
            text += chunk.delta
            number += 1
            if number == 20:
                await part()
    assert text == TEXT


async def test_a_killed_gateway_behind_it_costs_no_byte(
    program: str, tmp_path: Path, valkey: TestStore
) -> None:
    """CASES 62: `kill -9` in the middle of a stream; the SDK comes back through the edge and resumes."""
    async with _face(program, tmp_path, valkey) as face:
        carrier = face.gateways[await face.server()]
        await _text_is_whole(face, 5, carrier.kill)
        left = {name for name, gateway in face.gateways.items() if gateway is not carrier}
        assert {await face.server() for _ in range(4)} == left


async def test_a_draining_gateway_hands_its_clients_over(
    program: str, tmp_path: Path, valkey: TestStore
) -> None:
    """SIGTERM: `goaway` passes the edge, and the stream goes on at the other gateway, whole."""
    async with _face(program, tmp_path, valkey) as face:
        carrier = face.gateways[await face.server()]

        async def asked_to_go() -> None:
            carrier.send(signal.SIGTERM)

        await _text_is_whole(face, 10, asked_to_go)
        assert await carrier.stop() == 0


async def test_grpc_passes_to_an_instance(program: str, tmp_path: Path, valkey: TestStore) -> None:
    """HTTP/2 from end to end: `Describe` and a `Stream` call of a direct caller."""
    async with _face(program, tmp_path, valkey) as face:
        trusted = grpc.ssl_channel_credentials(_read(face.edge.authority.file))
        address = f"127.0.0.1:{face.edge.ports.grpc}"
        async with grpc.aio.secure_channel(address, trusted) as channel:
            stub = inference_pb2_grpc.InferenceStub(channel)
            known = await stub.Describe(inference_pb2.DescribeRequest(), timeout=SURELY_S)
            assert known.instance == "inference-0"
            call = stub.Stream()
            request = inference_pb2.GenerateRequest(prompt="no script", max_tokens=1)
            opened = inference_pb2.Open(request=request, generation="direct/1")
            frame = inference_pb2.ClientFrame(stream_id=1, open=opened)
            await call.write(inference_pb2.StreamRequest(frames=[frame]))
            async with asyncio.timeout(SURELY_S):
                assert (await call.read()) is not grpc.aio.EOF
            call.cancel()


def _read(file: str) -> bytes:
    return Path(file).read_bytes()


@pytest.mark.skipif(program_of("haproxy") is None, reason="haproxy is not installed")
async def test_a_slow_gateway_gets_less(tmp_path: Path) -> None:
    """With handshakes at 70 ms HAProxy halves the weight, and gives it back when they are quick again."""
    agent = free_port()
    async with running_gateway(FakeUpstream(FakeCluster())) as gateway:
        deps = gateway.deps
        async with (
            serving_agent("127.0.0.1", agent, gateway.connections, deps.handshakes, deps.clock),
            running_edge(
                "haproxy",
                tmp_path,
                free_edge_ports(),
                [f"127.0.0.1:{gateway.port}"] * 2,
                [agent, agent],
            ) as edge,
        ):
            await _weight_becomes(edge, 100)
            for _ in range(100):
                deps.handshakes.took(0.070, deps.clock.monotonic())
            await _weight_becomes(edge, 50)
            for _ in range(300):
                deps.handshakes.took(0.001, deps.clock.monotonic())
            await _weight_becomes(edge, 100)


@pytest.mark.skipif(program_of("haproxy") is None, reason="haproxy is not installed")
async def test_protocol_and_region_choose_the_gateways(tmp_path: Path) -> None:
    """By the maps: a region's WebSockets have gateways of their own, its HTTP/2 and all others have not."""
    (tmp_path / "regions.map").write_text("127.0.0.1/32 eu\n")
    (tmp_path / "pools.map").write_text("http/1.1/eu gateways_eu\n")
    async with (
        running_gateway(FakeUpstream(FakeCluster()), gateway_id="world") as world,
        running_gateway(FakeUpstream(FakeCluster()), gateway_id="eu") as eu,
        running_edge(
            "haproxy",
            tmp_path,
            free_edge_ports(),
            [f"127.0.0.1:{world.port}"] * 2,
            own=f"backend gateways_eu\n    server eu 127.0.0.1:{eu.port}\n",
        ) as edge,
    ):
        offered = ssl.create_default_context(cafile=edge.authority.file)
        offered.set_alpn_protocols(["http/1.1"])
        for tls in (edge.tls, offered):  # a client that names no protocol speaks HTTP/1.1
            async with wire(f"{edge.url}/v2/infer", greeting=False, ssl=tls) as client:
                assert (await client.read())["server"] == "eu"
        face = Face(edge, {}, None)
        for version, backend in (("--http1.1", "gateways_eu/"), ("--http2", "gateways/")):
            await _curl(face, version, f"{edge.http}/healthz")
            asked = f"GET /healthz HTTP/{'2.0' if backend == 'gateways/' else '1.1'}"
            await wait_until(lambda asked=asked: asked in edge.said.read_text())
            line = next(line for line in edge.said.read_text().splitlines() if asked in line)
            assert f" {backend}" in line


async def _weight_becomes(edge: Edge, weight: int) -> None:
    async def it_is() -> bool:
        return await _weight(edge) == weight

    await eventually(it_is, within_s=10)


async def _weight(edge: Edge) -> int:
    """What HAProxy gives `gateway-0` now."""
    reader, writer = await asyncio.open_unix_connection(edge.admin)
    writer.write(b"get weight gateways/gateway-0\n")
    answer = (await reader.read()).decode()
    writer.close()
    return int(answer.split()[0])


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("haproxy.cfg", "timeout tunnel"),
        ("nginx.conf", "proxy_read_timeout"),
        ("nginx.conf", "proxy_send_timeout"),
    ],
)
def test_an_edge_is_more_patient_than_a_gateway(file: str, name: str) -> None:
    """No time-out that cuts a silent WebSocket comes before the gateway's own ping and its 15 s (§2)."""
    times = seconds_of((CONFIGURATIONS / file).read_text(), name)
    assert times
    assert min(times) > SILENCE_S
