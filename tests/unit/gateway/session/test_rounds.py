"""When text leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gateway.session.rounds import INTERVAL_MAX_S, Rounds
from tests.support.clock import FakeClock
from tests.support.waiting import wait_until

INTERVAL_S = 0.004


class _World:
    def __init__(self, interval_s: float, took_s: float = 0.0) -> None:
        self.clock = FakeClock()
        self.began: list[float] = []
        self._took_s = took_s
        self.rounds = Rounds(self._work, self.clock, interval_s)

    def _work(self, now: float) -> None:
        self.began.append(now)
        self.clock.advance(self._took_s)


async def _turn() -> None:
    await asyncio.sleep(0)
    await asyncio.sleep(0)


def _later(world: _World) -> Callable[[], bool]:
    return lambda: len(world.began) > 1


async def test_without_an_interval_every_turn_of_the_loop_is_a_round() -> None:
    """What is asked in one turn is one round, and nothing waits for time."""
    world = _World(0.0)
    for count in (1, 2, 3):
        world.rounds.soon()
        world.rounds.soon()
        await _turn()
        assert len(world.began) == count


async def test_after_a_pause_there_is_a_round_at_once() -> None:
    """A lone chat's text does not wait: its last round was longer ago than the interval."""
    world = _World(INTERVAL_S)
    for count in (1, 2, 3):
        world.clock.advance(INTERVAL_S)
        world.rounds.soon()
        await _turn()
        assert len(world.began) == count


async def test_text_within_the_interval_waits_for_its_end() -> None:
    """The second round is not at once, and comes by itself."""
    world = _World(INTERVAL_S)
    world.rounds.soon()
    await _turn()
    world.rounds.soon()
    await _turn()
    assert len(world.began) == 1
    await wait_until(_later(world))


async def test_a_long_round_leaves_the_loop_to_others_but_never_longer_than_its_bound() -> None:
    """Under overload the rounds are further apart: 20 ms, whatever a round takes."""
    world = _World(INTERVAL_S, took_s=0.015)
    world.rounds.soon()
    await _turn()
    world.rounds.soon()
    await _turn()
    assert len(world.began) == 1  # 15 ms have passed, more than the interval
    world.clock.now = world.began[0] + INTERVAL_MAX_S
    await wait_until(_later(world))
    world.rounds.soon()
    world.clock.now = world.began[1] + INTERVAL_MAX_S
    await wait_until(lambda: len(world.began) > 2)
