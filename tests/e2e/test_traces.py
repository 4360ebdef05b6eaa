"""One trace per generation, across every hop, from the client's traceparent on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest
import websockets

from mesh.telemetry.names import HOPS, TRACE_EDGES
from tests.support.collector import Collector, collector
from tests.support.mesh import LocalMesh, local_mesh
from tests.support.scripts import script_messages
from tests.support.waiting import wait_until_sync

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
TRACEPARENT = f"00-{TRACE_ID}-b7ad6b7169203331-01"
SECRET = "SECRET-4711"  # noqa: S105 - the word that must not be in a span


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LocalMesh, Collector]]:
    """A mesh that exports to a collector."""
    with collector() as kept:
        flags = ("--gateways", "1", "--instances", "1", "--otlp-endpoint", kept.endpoint)
        with local_mesh(tmp_path_factory.mktemp("traced"), *flags) as mesh:
            yield mesh, kept


async def _generate(url: str) -> dict[str, object]:
    frame = {
        "type": "generate",
        "id": "t1",
        "messages": script_messages([SECRET.encode(), b" b", b" c"]),
        "traceparent": TRACEPARENT,
    }
    async with websockets.connect(url) as socket:
        await socket.send(json.dumps(frame))
        accepted: dict[str, object] = {}
        async for text in socket:
            message = json.loads(text)
            if message["type"] == "accepted":
                accepted = message
            if message["type"] == "done":
                break
    return accepted


def test_one_trace_holds_every_hop(traced: tuple[LocalMesh, Collector]) -> None:
    """CASES 104: gateway, router, inference, store and metering share the client's trace id."""
    mesh, kept = traced
    accepted = asyncio.run(_generate(mesh.ws))
    assert str(accepted["traceparent"]).split("-")[1] == TRACE_ID

    def all_hops() -> bool:
        return {span.hop for span in kept.of_trace(TRACE_ID)} >= set(HOPS)

    wait_until_sync(all_hops, within_s=20)
    spans = kept.of_trace(TRACE_ID)
    by_id = {span.span_id: span for span in spans}
    edges = {
        (by_id[s.parent_id].hop, by_id[s.parent_id].name, s.hop, s.name)
        for s in spans
        if s.parent_id in by_id
    }
    for parent_hop, parent, hop, child in TRACE_EDGES:
        assert (parent_hop, parent.value, hop, child.value) in edges


def test_no_span_tells_what_was_said(traced: tuple[LocalMesh, Collector]) -> None:
    """CASES 82: the conversation is in no span, name or attribute."""
    mesh, kept = traced
    asyncio.run(_generate(mesh.ws))
    wait_until_sync(lambda: len(kept.spans), within_s=20)
    assert SECRET not in str(kept.spans)
