"""The CPU tier and the public prefix: what is found again, by whom, and that no text shows it."""

from __future__ import annotations

import random

from inference.engine.limits import EngineLimits
from inference.engine.messages import Done
from inference.engine.runner import Prepared
from seedance.protocol.request import GenerateRequest, Sampling
from tests.support.engine_driver import EngineDriver, Heard
from tests.support.fake_runner import FakeRunner, fake_info

SIZE, BLOCKS = 4, 20
CONVERSATIONS = [[number] * 3 + list(range(37)) for number in range(6)]


def _driver(cold_blocks: int, **limits: object) -> EngineDriver:
    info = fake_info(
        total_blocks=BLOCKS, block_size=SIZE, context_length=70, cold_blocks=cold_blocks
    )
    return EngineDriver(FakeRunner(info), EngineLimits(**limits))  # type: ignore[arg-type]


def _ask(driver: EngineDriver, prompt: list[int], tenant: str = "a", answer: int = 9) -> Heard:
    stream = len(driver.streams) + 1
    request = GenerateRequest(prompt="x", max_tokens=answer, sampling=Sampling(seed=1))
    prepared = Prepared(prompt, lambda token_id: bytes([token_id]))
    return driver.open(stream, prepared, request, tenant=tenant, lasting=True)


def _asked(driver: EngineDriver, prompt: list[int], tenant: str = "a") -> Heard:
    heard = _ask(driver, prompt, tenant)
    driver.run()
    return heard


def _cached(heard: Heard) -> int:
    assert isinstance(heard.end, Done)
    return heard.end.usage.cached_tokens


def test_what_was_overwritten_is_restored_on_a_hit() -> None:
    """Six prompts of ten blocks in twenty: the first is found again only with a tier, and says the same."""
    texts, found = [], []
    for cold_blocks in (0, 80):
        driver = _driver(cold_blocks)
        for prompt in CONVERSATIONS:
            _asked(driver, prompt)
        again = _asked(driver, CONVERSATIONS[0])
        texts.append(again.ids)
        found.append(_cached(again))
        driver.check_idle()
    assert texts[0] == texts[1]
    assert found == [0, 36]


def test_the_tier_has_its_size_and_the_oldest_go() -> None:
    """With room for the blocks of one prompt, of those overwritten last most is found, of the first none."""
    driver = _driver(12)
    for prompt in CONVERSATIONS:
        _asked(driver, prompt)
    runner = driver.engine.runner
    assert isinstance(runner, FakeRunner)
    assert len(runner.cold) == 12
    assert _cached(_asked(driver, CONVERSATIONS[3])) == 32
    assert _cached(_asked(driver, CONVERSATIONS[0])) == 0


def test_the_tier_is_each_tenants_own() -> None:
    """CASES 80: what lies in the tier is found by the tenant that it belongs to alone."""
    driver = _driver(80)
    for prompt in CONVERSATIONS:
        _asked(driver, prompt)
    assert _cached(_asked(driver, CONVERSATIONS[0], "b")) == 0
    assert _cached(_asked(driver, CONVERSATIONS[0], "a")) == 36


def test_without_free_blocks_to_load_into_what_is_here_is_used() -> None:
    """A hit in the tier takes no block from anybody who runs."""
    driver = _driver(80)
    for prompt in CONVERSATIONS:
        _asked(driver, prompt)
    holders = [_ask(driver, [200 + i] * 33, answer=20) for i in range(2)]
    for _ in range(4):
        driver.step()
    again = _ask(driver, CONVERSATIONS[0])
    driver.run()
    solo = _driver(0, prefix_cache=False)
    assert again.ids == _asked(solo, CONVERSATIONS[0]).ids
    assert all(len(heard.ids) == 20 for heard in holders)
    driver.check_idle()


def test_a_failed_step_does_not_spoil_what_is_restored() -> None:
    """Copies are made before the rows: after a step that failed the restored blocks are right."""
    driver = _driver(80)
    first = _asked(driver, CONVERSATIONS[0])
    for prompt in CONVERSATIONS[1:]:
        _asked(driver, prompt)
    runner = driver.engine.runner
    assert isinstance(runner, FakeRunner)
    runner.fail_next = True
    failed = _asked(driver, CONVERSATIONS[0])
    assert failed.code == "internal"
    again = _asked(driver, CONVERSATIONS[0])
    assert (again.ids, _cached(again)) == (first.ids, 36)


def test_random_conversations_say_the_same_with_and_without_a_tier() -> None:
    """A hundred turns of six conversations in memory for two: no text shows where blocks were."""
    dice = random.Random(8)
    turns = [(dice.randrange(6), dice.randrange(1, 40), dice.choice("ab")) for _ in range(100)]
    said = []
    for cold_blocks in (0, 7, 80):
        driver = _driver(cold_blocks)
        heard = []
        for conversation, length, tenant in turns:
            heard.append(_ask(driver, CONVERSATIONS[conversation][:length], tenant))
            if length % 3 == 0:
                driver.run()
        driver.run()
        driver.check_idle()
        said.append([h.ids for h in heard])
    assert said[0] == said[1] == said[2]


def test_a_public_prefix_is_found_by_every_tenant_and_the_rest_by_none() -> None:
    """CASES 80: of a shared system prompt and the same question, B finds the system prompt alone."""
    public = tuple(range(100, 118))  # four whole blocks and a half
    question = [5, 6, 7, 8, 9, 10, 11, 12]
    driver = _driver(0, public_prefix=public)
    prompt = [*public, *question]
    assert _cached(_asked(driver, prompt, "a")) == 0
    assert _cached(_asked(driver, prompt, "b")) == 16
    assert _cached(_asked(driver, prompt, "a")) == 24
    driver.check_idle()
