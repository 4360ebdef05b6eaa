"""Kill any one process at any moment: the text and the bill stay exact. Real processes, kill -9."""

from __future__ import annotations

import asyncio
import json
import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import websockets

from seedance import SeedanceClient
from tests.support.mesh import LocalMesh, local_mesh
from tests.support.scripts import SPLIT_WORDS, script_messages
from tests.support.waiting import SURELY_S, wait_until_sync

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

REPEAT = 25
TEXT = (b"".join(SPLIT_WORDS) * REPEAT).decode()
TOKENS = len(SPLIT_WORDS) * REPEAT
# Hundreds of them are `make chaos KINDS=kill-gateway`.
GATEWAY_KILLS = 8


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalMesh]:
    """One mesh for the file: every test puts back what it killed."""
    with local_mesh(tmp_path_factory.mktemp("mesh")) as running:
        yield running


def _usage(mesh: LocalMesh, gateway: str = "gateway-1") -> dict[str, int]:
    url = f"http://{mesh.named(gateway).address}/v1/usage"
    with urllib.request.urlopen(url, timeout=SURELY_S) as reply:
        return json.load(reply)["total"]


def _stream_while(mesh: LocalMesh, kill_after: int, name: str, dt_ms: float = 5) -> tuple[str, int]:
    """Stream the script and kill `name` after so many chunks; the text and the tokens billed."""
    text = ""
    killed = 0
    with SeedanceClient(mesh.ws) as client:
        stream = client.chat(messages=script_messages(SPLIT_WORDS, dt_ms=dt_ms, repeat=REPEAT))
        for count, chunk in enumerate(stream, 1):
            text += chunk.delta
            if count == kill_after:
                killed = mesh.kill(name)
        billed = stream.usage.completion_tokens
    mesh.back(name, killed)
    return text, billed


def _ready(mesh: LocalMesh) -> None:
    """Wait until every gateway says that it can serve."""

    def all_ready() -> bool:
        try:
            for gateway in mesh.processes("gateway"):
                urllib.request.urlopen(f"http://{gateway.address}/readyz", timeout=2).close()
        except (OSError, websockets.InvalidMessage):  # not yet there, or just dying
            return False
        return len(mesh.processes("gateway")) == 2

    wait_until_sync(all_ready, within_s=30)


def test_a_killed_gateway_costs_no_byte(mesh: LocalMesh) -> None:
    """CASES 62: time and again a gateway dies mid-stream; the SDK resumes on the other, text identical."""
    before = _usage(mesh)["completion_tokens"]
    for run in range(GATEWAY_KILLS):
        _ready(mesh)
        text, billed = _stream_while(mesh, kill_after=5 + 7 * run, name="gateway-0")
        assert text == TEXT, f"run {run}"
        assert billed == TOKENS, f"run {run}"

    def all_billed() -> bool:
        return _usage(mesh)["completion_tokens"] - before >= GATEWAY_KILLS * TOKENS

    wait_until_sync(all_billed, within_s=10)
    assert _usage(mesh)["completion_tokens"] - before == GATEWAY_KILLS * TOKENS


@pytest.mark.parametrize("name", ["router-0", "metering-0", "store-0"])
def test_a_killed_companion_is_not_noticed(mesh: LocalMesh, name: str) -> None:
    """Router, metering and store may die mid-stream: text and usage are those of a calm run."""
    _ready(mesh)
    before = _usage(mesh)["requests"]
    assert _stream_while(mesh, kill_after=40, name=name) == (TEXT, TOKENS)
    wait_until_sync(lambda: _counted(mesh) == before + 1, within_s=20)


def test_a_killed_instance_costs_no_byte(mesh: LocalMesh) -> None:
    """The stream goes on at the other instance: nothing lost, nothing twice, usage once."""
    _ready(mesh)
    for name in ("inference-0", "inference-1"):
        before = _usage(mesh)["requests"]
        assert _stream_while(mesh, kill_after=30, name=name) == (TEXT, TOKENS)
        wait_until_sync(lambda seen=before: _counted(mesh) == seen + 1, within_s=20)


async def _first_answer(url: str) -> str:
    """Dial until somebody listens, ask, and tell the type of the first frame about the stream."""
    while True:
        try:
            socket = await websockets.connect(url)
        except (OSError, websockets.InvalidMessage):  # not yet there, or just dying
            await asyncio.sleep(0.01)
            continue
        async with socket:
            await socket.send(json.dumps({"messages": script_messages([b"x"])}))
            kinds = [json.loads(await socket.recv())["type"] for _ in range(2)]
        return kinds[1]


def test_a_gateway_just_started_knows_its_instances(mesh: LocalMesh) -> None:
    """CASES 48: whoever connects the moment it listens is served, not told to come again."""
    _ready(mesh)
    url = f"ws://{mesh.named('gateway-0').address}/v2/infer"
    before = _usage(mesh)["requests"]
    pid = mesh.kill("gateway-0")
    assert asyncio.run(asyncio.wait_for(_first_answer(url), 20)) == "accepted"
    mesh.back("gateway-0", pid)
    # Its bill is written before another test counts.
    wait_until_sync(lambda: _counted(mesh) == before + 1, within_s=10)


def test_the_bill_survives_metering(mesh: LocalMesh) -> None:
    """A stream that ends while metering is dead is billed once, when metering is back."""
    _ready(mesh)
    before = _usage(mesh)["requests"]
    _stream_while(mesh, kill_after=TOKENS // 2, name="metering-0")
    wait_until_sync(lambda: _counted(mesh) == before + 1, within_s=20)


def _counted(mesh: LocalMesh) -> int:
    try:
        return _usage(mesh)["requests"]
    except OSError:
        return -1


def test_ctrl_c_leaves_no_process(tmp_path: Path) -> None:
    """After SIGINT every process of the mesh has ended and `mesh.json` lists none."""
    with local_mesh(tmp_path, "--gateways", "1", "--instances", "1") as running:
        pids = [
            p.pid
            for kind in ("store", "router", "inference", "metering", "gateway")
            for p in running.processes(kind)
        ]
        assert len(pids) == 5
        running.process.send_signal(signal.SIGINT)
        assert running.process.wait(timeout=25) == 0
        assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
    assert json.loads((tmp_path / "mesh.json").read_text()) == {"processes": []}
