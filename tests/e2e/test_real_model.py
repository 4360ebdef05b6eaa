"""The default model behind the whole mesh: answers, mixed company, and nothing left behind."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator

import grpc
import pytest
import websockets

from seedance import AsyncSeedanceClient
from seedance.protocol.errors import ErrorCode, SeedanceError
from seedance.v2 import inference_pb2 as pb
from seedance.v2 import inference_pb2_grpc as pb_grpc
from tests.support.mesh import LocalMesh, local_mesh
from tests.support.waiting import SURELY_S, wait_until_sync

pytestmark = [pytest.mark.e2e, pytest.mark.model, pytest.mark.timeout(180)]

COMPANY = 13
ANSWER_TOKENS = 40
SEEN_CHARACTERS = 10


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalMesh]:
    """A mesh with the default model, one instance."""
    folder = tmp_path_factory.mktemp("model")
    with local_mesh(folder, "--instances", "1", engine="native") as running:
        yield running


def _describe(mesh: LocalMesh) -> pb.DescribeResponse:
    with grpc.insecure_channel(mesh.named("inference-0").address) as channel:
        return pb_grpc.InferenceStub(channel).Describe(pb.DescribeRequest(), timeout=SURELY_S)


def test_a_question_is_answered_sensibly(mesh: LocalMesh) -> None:
    """The real model knows who wrote Hamlet, through `seedance chat`."""
    argv = [sys.executable, "-m", "launcher", "chat", "--url", mesh.ws, "--temperature", "0"]
    # Its greedy answer has a wide margin: no rounding of another CPU turns it.
    question = "Who wrote Hamlet?"
    done = subprocess.run([*argv, question], capture_output=True, text=True, timeout=60, check=True)
    assert "Shakespeare" in done.stdout


SYNC_SNIPPET = """
from seedance import SeedanceClient
client = SeedanceClient("ws://localhost:{port}/v1/chat")
stream = client.chat(messages=[{{"role": "user", "content": "你好，请用一句话介绍量子计算"}}], temperature=0.3, stream=True)
for chunk in stream:
    print(chunk.delta, end="", flush=True)
"""


def test_the_python_snippet_prints_an_answer(mesh: LocalMesh) -> None:
    """The article's Python lines work as they stand: text appears while it is made."""
    port = mesh.url.rsplit(":", 1)[1]
    argv = [sys.executable, "-W", "error", "-c", SYNC_SNIPPET.format(port=port)]
    # The answer has no bound but the context: it is enough to see that it comes.
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as said:
        try:
            assert len(said.stdout.read(SEEN_CHARACTERS)) == SEEN_CHARACTERS, said.stderr.read()
        finally:
            said.kill()


async def _plain(url: str, body: dict[str, object]) -> str:
    """What a browser does with no SDK: send the bare form, join the deltas."""
    text = ""
    async with websockets.connect(url) as socket:
        await socket.send(json.dumps(body))
        async for message in socket:
            frame = json.loads(message)
            text += frame.get("delta", "")
            if frame["type"] in {"done", "error"}:
                break
    return text


def test_the_plain_browser_form_streams(mesh: LocalMesh) -> None:
    """`?mode=concurrent&instance=high-perf` and the bare form, with the article's model name."""
    body = {
        "model": "seedance-llm-7b",
        "stream": True,
        "messages": [{"role": "user", "content": "Say hello."}],
        "max_tokens": 12,
    }
    assert asyncio.run(_plain(f"{mesh.ws}?mode=concurrent&instance=high-perf", body)).strip()


def test_an_unknown_model_is_said_so(mesh: LocalMesh) -> None:
    """A name that is neither served nor an alias is `model_not_found`."""

    async def ask() -> None:
        async with AsyncSeedanceClient(mesh.ws) as client:
            stream = client.chat(messages=[{"role": "user", "content": "x"}], model="gpt-9")
            async for _ in stream:
                pass

    with pytest.raises(SeedanceError) as refused:
        asyncio.run(ask())
    assert refused.value.code is ErrorCode.MODEL_NOT_FOUND


async def _answer(client: AsyncSeedanceClient, number: int) -> tuple[str, str, int]:
    stream = client.chat(
        messages=[{"role": "user", "content": f"Name {number} animals."}],
        temperature=0,
        max_tokens=ANSWER_TOKENS,
        ignore_eos=True,
    )
    text = "".join([chunk.delta async for chunk in stream])
    return text, stream.finish_reason, stream.usage.completion_tokens


async def _slow_answer(client: AsyncSeedanceClient) -> tuple[str, int]:
    """A reader that rests after every chunk."""
    stream = client.chat(
        messages=[{"role": "user", "content": "Count."}],
        temperature=0,
        max_tokens=ANSWER_TOKENS,
        ignore_eos=True,
    )
    text = ""
    async for chunk in stream:
        text += chunk.delta
        await asyncio.sleep(0.1)
    return stream.finish_reason, stream.usage.completion_tokens


async def _cancelled_answer(client: AsyncSeedanceClient) -> tuple[str, int]:
    stream = client.chat(
        messages=[{"role": "user", "content": "Tell a long story."}],
        max_tokens=1000,
        ignore_eos=True,
    )
    chunks = 0
    async for _ in stream:
        chunks += 1
        if chunks == 5:
            stream.cancel()
    return stream.finish_reason, stream.usage.completion_tokens


async def _too_long(client: AsyncSeedanceClient, context: int) -> SeedanceError:
    stream = client.chat(messages=[{"role": "user", "content": "word " * context}])
    with pytest.raises(SeedanceError) as refused:
        async for _ in stream:
            pass
    return refused.value


def test_sixteen_in_mixed_company(mesh: LocalMesh) -> None:
    """13 answers, a slow reader, a cancelled and an over-long one: each ends as it should."""
    # A client that another test killed may come back for its stream: its blocks are kept.
    wait_until_sync(lambda: _describe(mesh).load.running == 0, within_s=20)
    before = _describe(mesh).load.free_blocks
    context = _describe(mesh).context_length

    async def together() -> list[object]:
        async with AsyncSeedanceClient(mesh.ws) as client:
            return await asyncio.gather(
                *(_answer(client, number) for number in range(COMPANY)),
                _slow_answer(client),
                _cancelled_answer(client),
                _too_long(client, context),
            )

    *answers, slow, cancelled, too_long = asyncio.run(together())
    assert all(a[1:] == ("length", ANSWER_TOKENS) for a in answers)
    assert all(a[0] for a in answers)
    assert slow == ("length", ANSWER_TOKENS)
    assert cancelled[0] == "cancelled"
    assert 5 <= cancelled[1] < 1000
    assert too_long.code is ErrorCode.CONTEXT_LENGTH_EXCEEDED
    assert str(context) in too_long.message

    def idle() -> bool:
        load = _describe(mesh).load
        return load.running == load.waiting == 0 and load.free_blocks == before

    wait_until_sync(idle, within_s=5)


def test_alone_or_in_company_the_same_text(mesh: LocalMesh) -> None:
    """Greedy text does not depend on who else is in the batch."""

    async def alone() -> str:
        async with AsyncSeedanceClient(mesh.ws) as client:
            return (await _answer(client, 3))[0]

    async def crowd() -> list[str]:
        async with AsyncSeedanceClient(mesh.ws) as client:
            answers = await asyncio.gather(*(_answer(client, 3) for _ in range(16)))
            return [text for text, _, _ in answers]

    assert set(asyncio.run(crowd())) == {asyncio.run(alone())}
