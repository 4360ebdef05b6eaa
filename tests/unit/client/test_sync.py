"""The client for ordinary programs."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from seedance import SeedanceClient, SeedanceError
from seedance.client.stream import Completion
from seedance.protocol.reconnect import Backoff
from tests.support.scripted_gateway import TEXT, Script, ScriptedGateway

ROOT = Path(__file__).resolve().parents[3]
MESSAGES = [{"role": "user", "content": "hi"}]


@pytest.fixture
def gateway() -> Iterator[ScriptedGateway]:
    """A scripted gateway on a thread, which a blocking test can talk to."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    scripted = ScriptedGateway(Script(cuts=(10,)))
    asyncio.run_coroutine_threadsafe(scripted.__aenter__(), loop).result(5)
    yield scripted
    asyncio.run_coroutine_threadsafe(scripted.stop(), loop).result(5)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def test_an_interrupted_wait_is_over() -> None:
    """Ctrl-C ends what was waited for: left behind it would take the next chunk for nobody."""
    ended = threading.Event()
    # What was started in a shell's background ignores the key.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)

    async def wait() -> None:
        # The key is pressed while the caller waits, not while it is about to.
        await asyncio.sleep(0.1)
        os.kill(os.getpid(), signal.SIGINT)
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    with SeedanceClient("ws://127.0.0.1:9") as client:
        try:
            with pytest.raises(KeyboardInterrupt):
                client.wait_for(wait())
        finally:
            signal.signal(signal.SIGINT, before)
        assert ended.wait(5)


def test_iterating_resumes_and_ends(gateway: ScriptedGateway) -> None:
    """A plain `for` reads the whole text, through a cut, and then knows how it ended."""
    with SeedanceClient(gateway.url, backoff=Backoff(base_s=0.01)) as client:
        stream = client.chat(messages=MESSAGES, temperature=0.3, stream=True)
        assert "".join(chunk.delta for chunk in stream) == TEXT
        assert stream.finish_reason == "stop"
        assert stream.usage is not None
        assert stream.usage.prompt_tokens == 5
        assert stream.accepted is not None
        assert stream.id == gateway.generated[0]
        assert stream.timing is not None
    assert len(gateway.connections) == 2


def test_a_whole_answer(gateway: ScriptedGateway) -> None:
    """With `stream=False` the call gives the completion."""
    with SeedanceClient(gateway.url) as client:
        completion = client.chat(messages=MESSAGES, stream=False)
    assert isinstance(completion, Completion)
    assert completion.text == TEXT


def test_errors_are_raised_where_they_belong(gateway: ScriptedGateway) -> None:
    """A bad value is raised by the call, a closed client by the next one."""
    client = SeedanceClient(gateway.url)
    with pytest.raises(SeedanceError, match="temperature"):
        client.chat(messages=MESSAGES, temperature=9.0)
    client.close()
    client.close()
    with pytest.raises(SeedanceError, match="closed"):
        client.chat(messages=MESSAGES)


def test_leaving_a_stream_cancels_it(gateway: ScriptedGateway) -> None:
    """After its `with` a stream is cancelled, and the client goes on."""
    gateway.script = Script(pace_s=0.01)
    with SeedanceClient(gateway.url) as client:
        with client.chat(messages=MESSAGES) as stream:
            next(stream)
        rest = list(stream)
        assert stream.finish_reason == "cancelled"
        assert len(rest) < len(TEXT) / 3 - 1


def test_a_client_that_is_dropped_leaves_no_thread(gateway: ScriptedGateway) -> None:
    """Without `close` the thread ends with its client, which lives while a stream is read."""
    before = threading.active_count()
    stream = SeedanceClient(gateway.url, backoff=Backoff(base_s=0.01)).chat(messages=MESSAGES)
    assert "".join(chunk.delta for chunk in stream) == TEXT
    del stream
    assert threading.active_count() == before


def test_the_readme_snippet_ends_by_itself(gateway: ScriptedGateway) -> None:
    """The documented lines print the answer, and the program ends without a `close`."""
    snippet = f"""
from seedance import SeedanceClient
client = SeedanceClient("{gateway.base_url}/v1/chat")
stream = client.chat(messages=[{{"role": "user", "content": "你好，请用一句话介绍量子计算"}}], temperature=0.3, stream=True)
for chunk in stream:
    print(chunk.delta, end="", flush=True)
"""
    ran = subprocess.run(
        [sys.executable, "-X", "utf8", "-W", "error", "-c", snippet],
        cwd=ROOT,
        capture_output=True,
        timeout=20,
        check=False,
    )
    assert (ran.returncode, ran.stdout.decode(), ran.stderr.decode()) == (0, TEXT, "")


def test_the_protocol_needs_no_client() -> None:
    """A service that imports the contract does not load the SDK's WebSocket library."""
    code = "import sys, seedance.protocol.json_codec; print('websockets' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=True)
    assert ran.stdout.split() == [b"False"]


def test_pressure_is_told_on_the_clients_thread(gateway: ScriptedGateway) -> None:
    """The callback hears of the level while a plain program waits for text, and `pressure` holds it."""
    gateway.script.pressure = "throttle"
    gateway.script.cuts = ()
    heard: list[tuple[str, str, str]] = []

    def note(level: str, reason: str) -> None:
        heard.append((level, reason, threading.current_thread().name))

    with SeedanceClient(gateway.url, on_pressure=note) as client:
        assert client.pressure == "none"
        assert client.chat(messages=MESSAGES, stream=False).text == TEXT
        assert client.pressure == "throttle"
    assert heard == [("throttle", "scripted", "seedance client")]
