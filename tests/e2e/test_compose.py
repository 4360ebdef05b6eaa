"""`docker compose up` answers: the promises of the mesh, kept by containers and the real model."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from mesh.telemetry.names import HOPS, TRACE_EDGES
from seedance import SeedanceClient
from tests.support.browser import CHROMIUM, browser_page
from tests.support.waiting import wait_until_sync

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
# The first build installs torch and fetches the model.
UP_S = 1_200
STREAM_S = 120

pytestmark = [pytest.mark.compose, pytest.mark.timeout(UP_S + STREAM_S)]

GATEWAY = "ws://localhost:8080/v2/infer"
JAEGER = "http://127.0.0.1:16686"
# Its greedy answer has a wide margin: no rounding of another CPU turns it.
HAMLET = [{"role": "user", "content": "Who wrote Hamlet?"}]
STORY = [{"role": "user", "content": "Tell me a long story about a lighthouse."}]
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


def test_the_sdk_gets_a_streamed_answer() -> None:
    """A client of this machine streams a sensible answer from port 8080, without a key."""
    with SeedanceClient(GATEWAY) as client:
        stream = client.chat(messages=HAMLET, temperature=0, max_tokens=32)
        chunks = [chunk.delta for chunk in stream]
    assert len(chunks) > 2
    assert "Shakespeare" in "".join(chunks)


def test_a_browser_gets_a_streamed_answer() -> None:
    """The page at port 8080 streams an answer in a real browser, and measures it."""
    if CHROMIUM is None:
        pytest.skip("needs Chromium")
    with browser_page() as page:
        page.goto("http://localhost:8080/")
        page.get_by_label("Message").fill(HAMLET[0]["content"])
        page.keyboard.press("Enter")
        answer = page.locator(".message:not(.mine)")
        expect(answer.locator(".metrics")).to_contain_text("tokens/s", timeout=STREAM_S * 1000)
        expect(answer.locator(".text")).not_to_be_empty()


def _readme_example(language: str) -> str:
    """The README's first example in a language, as it stands."""
    fence = re.search(rf"^```{language}\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)
    assert fence is not None
    return fence[1]


def test_the_python_example_streams() -> None:
    """The README's Python example, pasted unchanged, prints an answer as it comes."""
    argv = [sys.executable, "-c", _readme_example("python")]
    with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, bufsize=0) as process:
        assert process.stdout is not None
        first, more = process.stdout.read(4), process.stdout.read(4)
        # Its answer may be as long as the model's context; that it streams has been seen.
        process.kill()
    assert first
    assert more


def test_the_browser_example_streams() -> None:
    """The README's JavaScript example, pasted unchanged into a page, shows an answer."""
    if CHROMIUM is None:
        pytest.skip("needs Chromium")
    with browser_page() as page:
        page.goto("http://localhost:8080/healthz")
        page.evaluate(f"() => {{ document.body.replaceChildren();\n{_readme_example('js')} }}")
        page.wait_for_function(
            "() => document.body.textContent.length > 20", timeout=STREAM_S * 1000
        )


def _story(kill_after: int | None = None) -> str:
    """A long answer; in its middle the gateway may die."""
    text = ""
    with SeedanceClient(GATEWAY) as client:
        stream = client.chat(messages=STORY, temperature=0, max_tokens=96, ignore_eos=True)
        for count, chunk in enumerate(stream, 1):
            text += chunk.delta
            if count == kill_after:
                _compose("kill", "--signal", "KILL", "gateway-0")
    return text


def test_a_killed_gateway_costs_no_byte() -> None:
    """CASES 62: kill -9 of gateway-0 in mid-stream: the text goes on from gateway-1, byte for byte."""
    whole = _story()
    try:
        assert _story(kill_after=10) == whole
    finally:
        _compose("up", "--detach", "--wait", "gateway-0")


def _spans() -> list[dict[str, Any]]:
    """Jaeger's spans of the trace, each with the `hop` that reported it."""
    try:
        with urllib.request.urlopen(f"{JAEGER}/api/traces/{TRACE_ID}", timeout=5) as reply:
            trace = json.load(reply)["data"][0]
    except urllib.error.HTTPError:
        return []
    hops = {key: process["serviceName"] for key, process in trace["processes"].items()}
    return [{**span, "hop": hops[span["processID"]]} for span in trace["spans"]]


def test_one_trace_holds_every_hop() -> None:
    """CASES 104: gateway, router, inference, store and metering are in the client's own trace."""
    with SeedanceClient(GATEWAY) as client:
        client.chat(messages=HAMLET, max_tokens=8, traceparent=TRACEPARENT, stream=False)
    wait_until_sync(lambda: {span["hop"] for span in _spans()} >= set(HOPS), within_s=30)
    spans = {span["spanID"]: span for span in _spans()}
    edges = {
        (parent["hop"], parent["operationName"], span["hop"], span["operationName"])
        for span in spans.values()
        for reference in span["references"]
        if (parent := spans.get(reference["spanID"]))
    }
    assert {(a, b.value, c, d.value) for a, b, c, d in TRACE_EDGES} <= edges
