"""Budgets under every interleaving: nothing is overshot, and nobody is cut while there is money."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.budgets.account import Account, Hold, Request, Seed, Settle
from gateway.budgets.model import Tariff
from seedance.protocol.errors import ErrorCode
from tests.support.budget_world import BudgetWorld


def _world(random: Random) -> BudgetWorld:
    tariff = random.choice(
        [Tariff(), Tariff(0, 0, 1), Tariff(7, 7, 3), Tariff(80_000, 80_000, 240_000)]
    )
    unit = tariff.output
    return BudgetWorld(random, limit=random.randrange(1, 400) * unit, tariff=tariff)


def _check(world: BudgetWorld) -> None:
    assert world.billed <= world.limit, "overshot"
    account = world.account
    assert all(0 <= hold.used <= hold.held for hold in account.holds.values())
    assert account.spent + account.held <= world.limit


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**32), st.booleans())
def test_no_overshoot_and_no_early_refusal(seed: int, kills: bool) -> None:
    """Answers are lost and gateways die: no bill exceeds the budget, and what is left buys no cut stream a token (CASES 101)."""
    random = Random(seed)
    world = _world(random)
    for _ in range(random.randrange(1, 12)):
        world.open(random.randrange(20), random.randrange(1, 200), lasting=True)
    for _ in range(random.randrange(600)):
        world.step() if kills else world.make_token()
        if not kills:
            world.deliver(lose=0.05)
        _check(world)
    world.settle_all()
    _check(world)
    assert world.account.spent == world.billed
    assert not world.account.holds
    left = world.limit - world.billed
    for stream in world.streams:
        assert stream.cut in (None, ErrorCode.QUOTA_EXCEEDED)
        if stream.cut:
            next_token = world.tariff.output
            prompt = 0 if stream.funded else world.tariff.held_for(stream.prompt)
            assert left < prompt + next_token, (stream, left)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32))
def test_a_store_that_loses_its_data_makes_no_new_money(seed: int) -> None:
    """The ledger says what was spent: no more is overshot than what running streams held ahead, and the books are exact."""
    world = _world(Random(seed))
    world.ledger = True
    for _ in range(world.random.randrange(1, 12)):
        world.open(world.random.randrange(20), world.random.randrange(1, 200), lasting=True)
    for _ in range(world.random.randrange(600)):
        world.random.choice([world.make_token, world.deliver, world.deliver, world.tick])()
        if world.random.random() < 0.01:
            world.forget()
        assert world.billed <= world.limit + world.slack
    world.open(1, 1)  # somebody asks the books, whatever happened last
    world.settle_all()
    assert world.billed <= world.limit + world.slack
    assert world.account.spent == world.billed
    assert {s.cut for s in world.streams} <= {None, ErrorCode.QUOTA_EXCEEDED}


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32))
def test_what_nobody_can_bill_comes_back(seed: int) -> None:
    """A gateway that dies takes its HTTP streams along: their holds run out, and others have the money."""
    world = BudgetWorld(Random(seed), limit=100, gateways=1)
    world.open(10, 1000, lasting=False)
    for _ in range(80):
        world.make_token()
        world.deliver()
    world.kill()
    world.tick(25.0)
    world.open(10, 60)
    world.settle_all()
    assert world.streams[1].cut is None
    assert world.account.spent == world.billed == 70


REQUESTS = st.one_of(
    st.builds(
        Hold,
        st.sampled_from("abc"),
        want=st.integers(0, 60),
        least=st.integers(0, 60),
        used=st.integers(0, 60),
        step=st.integers(0, 7),
        ttl_ms=st.sampled_from([100, 10_000]),
        returns=st.booleans(),
        lasting=st.booleans(),
    ),
    st.builds(Settle, st.sampled_from("abc"), st.integers(0, 60), st.integers(0, 9)),
    st.builds(Seed, st.integers(0, 60)),
)


@given(st.lists(st.tuples(REQUESTS, st.integers(0, 200)), max_size=40))
def test_the_books_never_hold_more_than_there_is(requests: list[tuple[Request, int]]) -> None:
    """Whatever is asked: what is held for a stream covers what it used, and growing never passes the limit."""
    account, now_ms = Account(), 0
    for request, wait_ms in requests:
        now_ms += wait_ms
        before = account.spent + account.held
        account.apply([request], 100, None, now_ms, 5)
        assert all(0 <= h.used <= h.held for h in account.holds.values())
        if isinstance(request, Hold) and not account.unseeded:
            assert account.spent + account.held <= max(100, before)
