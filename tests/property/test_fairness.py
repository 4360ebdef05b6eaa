"""Nobody starves: the bounds that the scheduler states, under any traffic."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.engine.limits import EngineLimits
from inference.engine.runner import Prepared
from inference.engine.sequence import Sequence
from inference.engine.waiting_room import PATIENCE, WaitingRoom
from mesh.fair_share import FairShare
from seedance.protocol.request import GenerateRequest, Sampling
from tests.support.engine_driver import EngineDriver
from tests.support.fake_runner import FakeRunner, fake_info

TENANTS = "abc"


@given(
    weights=st.tuples(*[st.floats(0.1, 10) for _ in TENANTS]),
    turns=st.lists(st.tuples(*[st.integers(1, 500) for _ in TENANTS]), min_size=1, max_size=60),
    absent=st.integers(0, 30),
)
def test_no_tenant_is_ahead_by_more_than_a_turn(
    weights: tuple[float, ...], turns: list[tuple[int, ...]], absent: int
) -> None:
    """Of any two that wait all the time; the last of them comes later than the others."""
    shares = FairShare(dict(zip(TENANTS, weights, strict=True)))
    accounts = [shares.account(t) for t in TENANTS]
    present = accounts[:2]
    for account in present:
        shares.enter(account)
    longest = [max(turn[i] for turn in turns) / weights[i] for i in range(3)]
    for number, turn in enumerate(turns):
        shares.tick()
        if number == absent:
            shares.enter(accounts[2])
            present = accounts
        lucky = min(present, key=lambda account: account.virtual)
        lucky.charge(turn[accounts.index(lucky)])
        for i, a in enumerate(present):
            for j, b in enumerate(present):
                assert a.virtual - b.virtual <= longest[i] + longest[j] + 1e-6


@given(
    before=st.lists(st.integers(0, 9), max_size=5),
    later=st.lists(st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=3), min_size=60),
    priority=st.integers(0, 9),
)
@settings(max_examples=50)
def test_a_turn_comes_within_the_stated_bound(
    before: list[int], later: list[list[tuple[int, bool]]], priority: int
) -> None:
    """`PATIENCE` x (k + 1) turns of its tenant, for k that came before, whatever comes after."""
    room, shares = WaitingRoom(), FairShare({})

    def come(number: int, priority: int, tenant: str = "a") -> Sequence:
        account = shares.account(tenant)
        sequence = Sequence(
            number, [1], [], float(number), tenant=tenant, priority=priority, account=account
        )
        shares.enter(account)
        room.add(sequence)
        return sequence

    for number, other in enumerate(before):
        come(number, other)
    patient = come(len(before), priority)
    turns = 0
    for number, arrivals in enumerate(later):
        for index, (urgency, foreign) in enumerate(arrivals):
            come(1000 + 10 * number + index, urgency, "b" if foreign else "a")
        shares.tick()
        sequence = room.next()
        assert sequence is not None
        room.take(sequence)
        sequence.account.charge(1)
        turns += sequence.tenant == "a"
        if sequence is patient:
            break
    assert turns <= PATIENCE * (len(before) + 1)


@given(
    batch=st.integers(1, 4),
    blocks=st.integers(10, 40),
    hostile=st.lists(
        st.tuples(st.integers(0, 3), st.integers(1, 20), st.integers(1, 8), st.booleans()),
        min_size=4,
        max_size=20,
    ),
)
@settings(max_examples=25, deadline=None)
@pytest.mark.timeout(60)
def test_the_least_urgent_request_ends_in_bounded_steps(
    batch: int, blocks: int, hostile: list[tuple[int, int, int, bool]]
) -> None:
    """Under an endless flow of urgent requests, with blocks for few of them."""
    limits = EngineLimits(
        batch_max=batch, step_tokens_max=16, prefill_chunk_busy_max=8, queue_max=10**6
    )
    runner = FakeRunner(fake_info(total_blocks=blocks, block_size=4, context_length=40))
    driver = EngineDriver(runner, limits)

    def ask(stream: int, prompt: int, answer: int, priority: int, tenant: str) -> None:
        driver.open(
            stream,
            Prepared([stream % 200] * prompt, lambda token_id: bytes([token_id])),
            GenerateRequest(
                prompt="x", max_tokens=answer, priority=priority, sampling=Sampling(seed=1)
            ),
            tenant=tenant,
            lasting=True,
        )

    patient = driver.heard(1)
    ask(1, 10, 5, 9, "a")
    # Every turn ends within its tokens' steps; so may each of the ten times that blocks are lost.
    longest = max(prompt + answer for _, prompt, answer, _ in hostile) + 15
    for step in range(PATIENCE * 2 * 11 * longest):
        priority, prompt, answer, foreign = hostile[step % len(hostile)]
        ask(step + 2, prompt, answer, priority, "b" if foreign else "a")
        driver.step()
        if patient.ends:
            break
    assert len(patient.ids) == 5
