"""`docker compose up` answers: the promises of the mesh, kept by containers and the real model."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from seedance import SeedanceClient

ROOT = Path(__file__).resolve().parents[2]
# The first build installs torch and fetches the model.
UP_S = 1_200
STREAM_S = 120

pytestmark = [pytest.mark.compose, pytest.mark.timeout(UP_S + STREAM_S)]

GATEWAY = "ws://localhost:8080/v2/infer"
JAEGER = "http://127.0.0.1:16686"
QUESTION = [{"role": "user", "content": "Count from one to twenty in words."}]
TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
TRACEPARENT = f"00-{TRACE_ID}-00f067aa0ba902b7-01"


def _compose(*arguments: str, within_s: int = 120) -> None:
    subprocess.run(["docker", "compose", *arguments], cwd=ROOT, check=True, timeout=within_s)


def _engine_answers() -> bool:
    if shutil.which("docker") is None:
        return False
    asked = subprocess.run(["docker", "version"], capture_output=True, timeout=20, check=False)
    return asked.returncode == 0


@pytest.fixture(scope="module", autouse=True)
def containers() -> Iterator[None]:
    """The whole file's mesh, built, up and healthy; nothing of it is left behind."""
    if not _engine_answers():
        pytest.skip("no Docker engine answers here")
    _compose("down", "--volumes", "--remove-orphans")
    try:
        _compose("up", "--detach", "--build", "--wait", within_s=UP_S)
        yield
    finally:
        _compose("down", "--volumes", "--remove-orphans")


def _answer() -> str:
    with SeedanceClient(GATEWAY) as client:
        return "".join(chunk.delta for chunk in client.chat(QUESTION, temperature=0, max_tokens=96))


def test_the_sdk_gets_a_streamed_answer() -> None:
    """A client of this machine streams from port 8080, without a key."""
    with SeedanceClient(GATEWAY) as client:
        stream = client.chat(messages=QUESTION, temperature=0, max_tokens=48)
        chunks = [chunk.delta for chunk in stream]
    assert len(chunks) > 8
    assert "three" in "".join(chunks).lower()
