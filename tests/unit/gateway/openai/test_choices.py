"""Several choices for one request: together, each its own, billed as one."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

import gateway.openai.run as run_module
from gateway.openai.account import Caller
from gateway.openai.choices import Choices
from gateway.openai.run import CREDIT_TOKENS, End, Generation
from mesh.telemetry.tracing import Tracing
from seedance.protocol.errors import ErrorCode, SeedanceError
from seedance.protocol.request import ChatMessage, GenerateRequest, Sampling
from tests.support.fake_upstream import FakeCluster, FakeUpstream
from tests.support.gateway_under_test import make_deps
from tests.support.told_usage import kept_events, stream_bills
from tests.support.waiting import wait_until

CALLER = Caller("acme", "acme/ada", "chat")
REQUEST = GenerateRequest(messages=(ChatMessage("user", "hi"),), sampling=Sampling(seed=5))


def _words(request: GenerateRequest) -> list[bytes]:
    choice = request.sampling.choice
    return [f"{choice}:{n} ".encode() for n in range(20 + choice)]


def _text(choice: int) -> str:
    return "".join(f"{choice}:{n} " for n in range(20 + choice))


class Scene:
    """A gateway's collaborators; each choice's answer is another one."""

    def __init__(self, tokens: Any = _words) -> None:
        self.cluster = FakeCluster(tokens)
        self.upstream = FakeUpstream(self.cluster)
        self.deps = make_deps(self.upstream, tracing=Tracing("gateway", "test"))

    def choices(self, count: int, request: GenerateRequest = REQUEST) -> Choices:
        return Choices(self.deps, [request], CALLER, count, credit=CREDIT_TOKENS)

    def bills(self) -> list[dict[str, Any]]:
        return stream_bills(kept_events(self.deps.usage.outbox))


async def _read(_: int, generation: Generation) -> tuple[str, End]:
    text = ""
    while not isinstance(piece := await generation.next(), End):
        text += piece.delta
    return text, piece


@pytest.fixture(autouse=True)
def no_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "REOPEN_DELAYS_S", (0.0, 0.0, 0.0))


async def test_each_has_its_text_and_the_bill_is_one() -> None:
    """CASES 90: the prompt counts once, the answers' tokens add up, and there is one usage event."""
    scene = Scene()
    choices = scene.choices(3)
    await choices.open()
    answers = await choices.each(_read)
    await choices.close()
    assert [text for text, _ in answers] == [_text(0), _text(1), _text(2)]
    usage = choices.usage([end for _, end in answers])
    assert (usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens) == (7, 2, 63)
    (bill,) = scene.bills()
    assert (bill["prompt_tokens"], bill["cached_tokens"], bill["completion_tokens"]) == (7, 2, 63)
    assert bill["finish_reason"] == "stop"


async def test_several_prompts_have_several_choices_each() -> None:
    """CASES 89, 90: every prompt counts once, cached tokens too; answers come prompt by prompt."""
    scene = Scene(lambda request: [f"{request.prompt}{request.sampling.choice}".encode()])
    prompts = [replace(REQUEST, messages=(), prompt=word) for word in ("a", "b", "c")]
    choices = Choices(scene.deps, prompts, CALLER, 2, credit=None)
    await choices.open()
    answers = await choices.each(_read)
    await choices.close()
    assert [text for text, _ in answers] == ["a0", "a1", "b0", "b1", "c0", "c1"]
    usage = choices.usage([end for _, end in answers])
    assert (usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens) == (21, 6, 6)
    (bill,) = scene.bills()
    assert (bill["prompt_tokens"], bill["cached_tokens"], bill["completion_tokens"]) == (21, 6, 6)
    names = [spec.generation for spec in scene.upstream.opened]
    assert len(set(names)) == len(names)


async def test_choices_share_a_seed_and_the_first_is_the_single_answer() -> None:
    """They differ in `choice` alone; choice 0 is asked for exactly as the request alone would be."""
    scene = Scene()
    for request in (REQUEST, replace(REQUEST, sampling=Sampling())):
        scene.upstream.opened.clear()
        for count in (1, 3):
            choices = scene.choices(count, request)
            await choices.open()
            await choices.close()
        single, *several = [spec.request for spec in scene.upstream.opened]
        seeds = {spec.sampling.seed for spec in several}
        assert len(seeds) == 1
        assert sorted(spec.sampling.choice for spec in several) == [0, 1, 2]
        first = next(spec for spec in several if spec.sampling.choice == 0)
        if request.sampling.seed is not None:
            assert first == single
            assert seeds == {5}


async def test_an_instance_that_dies_takes_no_choice_with_it() -> None:
    """Each goes on elsewhere, exactly, and is billed once."""
    scene = Scene()
    choices = scene.choices(3)
    accepted = await choices.open()

    async def read(index: int, generation: Generation) -> tuple[str, End]:
        first = await generation.next()
        assert not isinstance(first, End)
        if index == 1:
            scene.cluster.kill(accepted.instance)
        text, end = await _read(index, generation)
        return first.delta + text, end

    answers = await choices.each(read)
    await choices.close()
    assert [text for text, _ in answers] == [_text(0), _text(1), _text(2)]
    assert scene.bills()[0]["completion_tokens"] == 63


async def test_the_bill_names_who_made_which_choice() -> None:
    """A choice that ended before its instance died was made there, whatever took the others later."""
    long = 20 * CREDIT_TOKENS
    scene = Scene(lambda request: [b"x"] * (long if request.sampling.choice else 20))
    choices = scene.choices(2)
    first = (await choices.open()).instance
    held = asyncio.Event()

    async def read(index: int, generation: Generation) -> None:
        if index == 1:
            await held.wait()
            await wait_until(lambda: scene.cluster.computed == 20 + CREDIT_TOKENS)
            scene.cluster.kill(first)
        await _read(index, generation)
        held.set()

    await choices.each(read)
    await choices.close()
    (bill,) = scene.bills()
    made = {one["instance"]: one["completion_tokens"] for one in bill["attempts"]}
    assert set(made) == {"i-0", "i-1"}
    assert sum(made.values()) == bill["completion_tokens"] == 20 + long
    assert made[first] == 20 + CREDIT_TOKENS


async def test_a_choice_that_fails_fails_all() -> None:
    """The error is raised as it came, the others end, and the bill names the failure."""

    def endless(_: GenerateRequest) -> list[bytes]:
        return [b"x"] * 100_000

    scene = Scene(endless)
    choices = scene.choices(3)
    await choices.open()

    async def read(index: int, generation: Generation) -> None:
        await generation.next()
        if index == 2:
            generation.on_error(SeedanceError(ErrorCode.INTERNAL, "sorry"), None)
        await _read(index, generation)

    with pytest.raises(SeedanceError, match="sorry"):
        await choices.each(read)
    await choices.close()
    assert scene.cluster.running == 0
    (bill,) = scene.bills()
    assert bill["finish_reason"] == "internal"
    assert bill["completion_tokens"] > 0


async def test_a_refused_choice_refuses_all() -> None:
    """Nothing is answered until every choice was taken."""
    scene = Scene()
    for instance in scene.cluster.instances.values():
        instance.refuses = SeedanceError(ErrorCode.BAD_REQUEST, "no", field="prompt")
    choices = scene.choices(2)
    with pytest.raises(SeedanceError, match="no"):
        await choices.open()
    await choices.close()
    assert not scene.bills()


async def test_a_cancelled_reader_cancels_all() -> None:
    """What nobody reads any more is not computed any more."""
    scene = Scene(lambda _: [b"x"] * 100_000)
    choices = scene.choices(3)
    await choices.open()
    reading = asyncio.create_task(_all(choices))
    await wait_until(lambda: scene.cluster.computed > 10)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    await choices.close()
    assert scene.cluster.running == 0
    assert scene.bills()[0]["finish_reason"] == "cancelled"


async def _all(choices: Choices) -> None:
    await choices.each(_read)
