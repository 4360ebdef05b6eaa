"""One generation for an HTTP request: exact over lost instances, bounded, billed as framed."""

from __future__ import annotations

from typing import Any

import pytest

import gateway.openai.run as run_module
from gateway.deps import GatewayDeps
from gateway.openai.account import Account, Caller
from gateway.openai.run import CREDIT_TOKENS, End, Generation
from gateway.upstream.base import NoInstanceError
from mesh.telemetry.tracing import Tracing
from seedance.protocol.errors import ErrorCode, SeedanceError
from seedance.protocol.request import ChatMessage, GenerateRequest
from tests.support.fake_upstream import FakeCluster, FakeUpstream, text_of
from tests.support.gateway_under_test import make_deps
from tests.support.told_usage import kept_events, stream_bills
from tests.support.waiting import wait_until

WORDS = [f"w{n} ".encode() for n in range(20)]
CALLER = Caller("acme", "acme/ada", "chat")


class Scene:
    """A gateway's collaborators on a cluster that plays `tokens`."""

    def __init__(self, tokens: list[bytes] | None = None) -> None:
        played = WORDS if tokens is None else tokens
        self.cluster = FakeCluster(lambda _: played)
        self.upstream = FakeUpstream(self.cluster)
        self.deps: GatewayDeps = make_deps(self.upstream, tracing=Tracing("gateway", "test"))

    def generation(self, credit: int | None = CREDIT_TOKENS, **fields: Any) -> Generation:
        request = GenerateRequest(messages=(ChatMessage("user", "hi"),), **fields)
        account = Account(self.deps, [request], CALLER)
        return Generation(self.deps, request, account, credit=credit)

    def bills(self) -> list[dict[str, Any]]:
        return stream_bills(kept_events(self.deps.usage.outbox))


async def read(generation: Generation, on_piece: Any = None) -> tuple[str, End]:
    text = ""
    while True:
        piece = await generation.next()
        if isinstance(piece, End):
            return text, piece
        text += piece.delta
        if on_piece is not None:
            on_piece()


@pytest.fixture(autouse=True)
def no_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "REOPEN_DELAYS_S", (0.0, 0.0, 0.0))


async def test_text_and_bill() -> None:
    """The pieces are the text; the bill names the prompt exactly and the tokens that were framed."""
    scene = Scene()
    generation = scene.generation()
    accepted = await generation.open()
    text, end = await read(generation)
    await generation.close()
    assert text.encode() == b"".join(WORDS)
    assert (end.finish_reason, end.usage.prompt_tokens, end.usage.completion_tokens) == (
        "stop",
        7,
        20,
    )
    (bill,) = scene.bills()
    assert bill["id"] == f"{bill['session']}/0/stream_finished"
    assert (bill["tenant"], bill["model"], bill["instance"]) == ("acme", "fake", accepted.instance)
    assert (bill["prompt_tokens"], bill["cached_tokens"], bill["completion_tokens"]) == (7, 2, 20)
    assert bill["finish_reason"] == "stop"
    assert bill["ended_ms"] >= bill["started_ms"] > 0
    assert scene.upstream.opened[0].traceparent == bill["traceparent"]


async def test_whole_is_the_same_text() -> None:
    """CASES 85: in one piece the text and the usage are those of the stream."""
    scene = Scene()
    generation = scene.generation(credit=None)
    await generation.open()
    piece, end = await generation.whole()
    await generation.close()
    assert piece is not None
    assert piece.delta.encode() == b"".join(WORDS)
    assert end.usage.completion_tokens == scene.bills()[0]["completion_tokens"] == 20
    assert scene.upstream.opened[0].credit is None


async def test_slow_reader_holds_the_engine_back() -> None:
    """What waits for a reader is bounded by the credit; reading lets the engine go on to the end."""
    scene = Scene([b"x"] * 1000)
    generation = scene.generation()
    await generation.open()
    await wait_until(lambda: scene.cluster.computed >= CREDIT_TOKENS)
    assert not scene.cluster.step()
    assert scene.cluster.computed == CREDIT_TOKENS
    text, end = await read(generation)
    await generation.close()
    assert (len(text), end.usage.completion_tokens) == (1000, 1000)


async def test_tokens_without_text_hold_nothing_back() -> None:
    """Tokens whose text is held (half a code point) for longer than the credit do not stall."""
    scene = Scene([*([b""] * (3 * CREDIT_TOKENS)), b"end"])
    generation = scene.generation()
    await generation.open()
    text, end = await read(generation)
    await generation.close()
    assert (text, end.usage.completion_tokens) == ("end", 3 * CREDIT_TOKENS + 1)


async def test_unread_text_is_merged() -> None:
    """Between two looks of the reader all text becomes one piece."""
    scene = Scene()
    generation = scene.generation()
    await generation.open()
    await wait_until(lambda: scene.cluster.computed == len(WORDS))
    piece = await generation.next()
    assert not isinstance(piece, End)
    assert piece.delta.encode() == b"".join(WORDS)
    assert isinstance(await generation.next(), End)
    await generation.close()


@pytest.mark.parametrize("lost_after", range(0, 20, 3))
async def test_lost_instance(lost_after: int) -> None:
    """Whenever its instance dies, the text goes on elsewhere exactly and is billed once."""
    tokens = [*WORDS, b"\xf0\x9f", b"\x98\x81", b"!"]
    scene = Scene(tokens)
    generation = scene.generation()
    accepted = await generation.open()
    pieces = 0

    def count() -> None:
        nonlocal pieces
        pieces += 1
        if pieces == lost_after + 1:
            scene.cluster.kill(accepted.instance)

    text, end = await read(generation, count)
    await generation.close()
    assert text.encode() == text_of(tokens)
    first, second = scene.upstream.opened
    assert second.forced_prefix == tuple(range(len(second.forced_prefix)))
    assert second.epoch == first.epoch + 1
    assert second.generation == first.generation
    assert second.request == first.request
    assert first.request.sampling.seed is not None
    assert end.usage.completion_tokens == len(tokens)
    (bill,) = scene.bills()
    assert bill["completion_tokens"] == len(tokens)
    assert bill["instance"] != accepted.instance


async def test_broken_call_to_the_only_instance() -> None:
    """With nobody else there, the instance that was lost is tried again."""
    scene = Scene()
    scene.cluster.instances["i-1"].alive = False
    generation = scene.generation()
    await generation.open()
    first = await generation.next()
    assert not isinstance(first, End)
    scene.cluster.cut("i-0")
    text, _ = await read(generation)
    await generation.close()
    assert (first.delta + text).encode() == b"".join(WORDS)
    assert len(scene.upstream.opened) == 2


async def test_all_instances_lost() -> None:
    """When nobody can go on, an honest, retryable error ends it; what was framed is billed."""
    scene = Scene([b"x"] * 1000)
    generation = scene.generation()
    await generation.open()
    piece = await generation.next()
    assert not isinstance(piece, End)
    scene.cluster.kill("i-0")
    scene.cluster.kill("i-1")
    with pytest.raises(SeedanceError) as lost:
        await read(generation)
    await generation.close()
    assert (lost.value.code, lost.value.retryable) == (ErrorCode.UNAVAILABLE, True)
    (bill,) = scene.bills()
    assert bill["finish_reason"] == "unavailable"
    assert bill["completion_tokens"] >= 1


async def test_draining_instance_sends_elsewhere() -> None:
    """An instance that refuses as `unavailable` is passed over; the client sees nothing of it."""
    scene = Scene()
    scene.cluster.instances["i-0"].refuses = SeedanceError(ErrorCode.UNAVAILABLE, "draining")
    generation = scene.generation()
    assert (await generation.open()).instance == "i-1"
    text, _ = await read(generation)
    await generation.close()
    assert text.encode() == b"".join(WORDS)


@pytest.mark.parametrize("code", [ErrorCode.CONTEXT_LENGTH_EXCEEDED, ErrorCode.OVERLOADED])
async def test_refused_request(code: ErrorCode) -> None:
    """A refusal of the request itself is raised as it is, and costs nothing (CASES 18)."""
    scene = Scene()
    for instance in scene.cluster.instances.values():
        instance.refuses = SeedanceError(code, "no")
    generation = scene.generation()
    with pytest.raises(SeedanceError) as refused:
        await generation.open()
    await generation.close()
    assert refused.value.code is code
    assert len(scene.upstream.opened) == 1
    assert scene.bills() == []


async def test_unknown_model() -> None:
    """A model that nobody serves is refused before anything is opened."""
    scene = Scene()
    generation = scene.generation(model="nobodys")
    with pytest.raises(NoInstanceError):
        await generation.open()
    await generation.close()
    assert scene.upstream.opened == []
    assert scene.bills() == []


async def test_closed_early() -> None:
    """CASES 26, 83: closing cancels at the instance and bills what was framed, the prompt exactly."""
    scene = Scene([b"x"] * 1000)
    generation = scene.generation()
    await generation.open()
    piece = await generation.next()
    assert not isinstance(piece, End)
    await generation.close()
    assert scene.cluster.running == 0
    assert scene.cluster.instances["i-0"].released
    (bill,) = scene.bills()
    assert bill["finish_reason"] == "cancelled"
    assert (bill["prompt_tokens"], bill["cached_tokens"]) == (7, 2)
    assert bill["completion_tokens"] == piece.tokens


async def test_whole_closed_early_frames_nothing() -> None:
    """An answer in one piece that was never given holds no framed token."""
    scene = Scene([b"x"] * 1000)
    generation = scene.generation(credit=None)
    await generation.open()
    await generation.close()
    (bill,) = scene.bills()
    assert (bill["finish_reason"], bill["completion_tokens"]) == ("cancelled", 0)


async def test_cancelled_by_the_instance() -> None:
    """CASES 67: an end that nobody here asked for is an error, never a regular end."""
    scene = Scene([b"x"] * 1000)
    generation = scene.generation()
    await generation.open()
    for held in scene.cluster.instances["i-0"].generations.values():
        held.cancelled = True
    with pytest.raises(SeedanceError) as ended:
        await read(generation)
    await generation.close()
    assert ended.value.code is ErrorCode.UNAVAILABLE
    assert scene.bills()[0]["finish_reason"] == "unavailable"


async def test_instance_that_leaves_text_out() -> None:
    """A gap in what an instance says is never passed on: the text is asked for elsewhere."""
    scene = Scene()
    generation = scene.generation()
    await generation.open()
    first = await generation.next()
    assert not isinstance(first, End)
    for held in scene.cluster.instances["i-0"].generations.values():
        held.made += 1
        held.sent += 1
    text, _ = await read(generation)
    await generation.close()
    assert (first.delta + text).encode() == b"".join(WORDS)
    assert len(scene.upstream.opened) == 2


async def test_refusals_are_tried_elsewhere_within_the_gateways_budget() -> None:
    """When all refuse, trying each request everywhere multiplies a load that nobody bears."""
    scene = Scene()
    for instance in scene.cluster.instances.values():
        instance.refuses = SeedanceError(ErrorCode.UNAVAILABLE, "shutting down")
    while scene.deps.retries.spend():
        pass
    generation = scene.generation()
    with pytest.raises(SeedanceError) as refused:
        await generation.open()
    assert refused.value.code is ErrorCode.UNAVAILABLE
    assert len(scene.upstream.opened) == 1
    await generation.close()


async def test_taken_requests_fill_the_budget_again() -> None:
    """Every fifth request that an instance takes allows one that was refused another try."""
    scene = Scene()
    while scene.deps.retries.spend():
        pass
    for _ in range(6):
        generation = scene.generation()
        await generation.open()
        await generation.close()
    assert scene.deps.retries.spend()
    assert not scene.deps.retries.spend()
