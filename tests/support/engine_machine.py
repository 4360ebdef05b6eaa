"""A small engine under random traffic, checked against what each sequence says alone."""

from __future__ import annotations

import functools
from typing import ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from inference.engine.limits import EngineLimits
from inference.engine.messages import Attach, Done, StreamKey
from inference.engine.runner import Prepared
from seedance.protocol.request import GenerateRequest, Sampling
from tests.support.engine_driver import EngineDriver
from tests.support.fake_runner import FakeRunner, fake_info

__all__ = ["MACHINES", "EngineMachine", "TieredMachine", "WindowMachine"]

BLOCKS, BLOCK_SIZE, CONTEXT = 9, 4, 32
LIMITS = EngineLimits(
    batch_max=3,
    step_tokens_max=10,
    prefill_chunk_busy_max=5,
    queue_max=50,
    public_prefix=tuple(range(6)),
)
# Nobody waits for more turns than this when nobody new comes: each of ten classes may be lost once.
ROUNDS_MAX = 12


def _prepared(prompt: tuple[int, ...], dt_ms: float = 0.0) -> Prepared:
    return Prepared(list(prompt), lambda token_id: bytes([token_id]), dt_ms=dt_ms)


def _request(max_tokens: int, priority: int = 5, deadline_ms: int = 0) -> GenerateRequest:
    return GenerateRequest(
        prompt="x",
        max_tokens=max_tokens,
        priority=priority,
        deadline_ms=deadline_ms,
        sampling=Sampling(seed=3),
    )


@functools.cache
def _solo(prompt: tuple[int, ...], max_tokens: int, window: int | None) -> tuple[list[int], bytes]:
    driver = EngineDriver(FakeRunner(fake_info(sliding_window=window)))
    heard = driver.open(1, _prepared(prompt), _request(max_tokens))
    driver.run()
    return heard.ids, bytes(heard.text)


class EngineMachine(RuleBasedStateMachine):
    """Opens, credits, cancels, breaks and attaches at random between steps of a tiny engine."""

    window: ClassVar[int | None] = None
    cold_blocks: ClassVar[int] = 0

    def __init__(self) -> None:
        super().__init__()
        self.runner = FakeRunner(
            fake_info(
                total_blocks=BLOCKS,
                block_size=BLOCK_SIZE,
                context_length=CONTEXT,
                sliding_window=self.window,
                cold_blocks=self.cold_blocks,
            )
        )
        self.driver = EngineDriver(self.runner, LIMITS)
        self.asked: dict[str, tuple[tuple[int, ...], int]] = {}
        self.calls: dict[str, list[int]] = {}
        self.credits: dict[tuple[str, int], int | None] = {}
        self.cancelled: set[str] = set()

    @rule(
        beginning=st.sampled_from([(), (1,) * 9, tuple(range(8))]),
        ending=st.lists(st.integers(0, 9), min_size=1, max_size=12).map(tuple),
        answer=st.integers(1, 11),
        priority=st.sampled_from([0, 5, 9]),
        credit=st.sampled_from([None, 0, 1, 4]),
        tenant=st.sampled_from("ab"),
        hurry=st.sampled_from([0, 0, 20, 500]),
        dt_ms=st.sampled_from([0.0, 0.0, 7.0]),
    )
    def open(
        self,
        *,
        beginning: tuple[int, ...],
        ending: tuple[int, ...],
        answer: int,
        priority: int,
        credit: int | None,
        tenant: str,
        hurry: int,
        dt_ms: float,
    ) -> None:
        """A new request, many of which begin alike."""
        prompt = beginning + ending
        name = f"g{len(self.asked)}"
        self.asked[name] = (prompt, answer)
        self.calls[name] = [len(self.asked) * 100]
        self.credits[name, self.calls[name][0]] = credit
        self.driver.open(
            1,
            _prepared(prompt, dt_ms),
            _request(answer, priority, hurry),
            call=self.calls[name][0],
            generation=name,
            lasting=True,
            credit=credit,
            tenant=tenant,
        )

    @rule(steps=st.integers(1, 5))
    def step(self, steps: int) -> None:
        """Time goes on."""
        for _ in range(steps):
            self.driver.step()
            self.driver.clock.now += 0.004

    @rule(decode_ms=st.integers(0, 60), prefill_ms=st.integers(0, 60))
    def slow_down(self, decode_ms: int, prefill_ms: int) -> None:
        """The machine turns out to be slower, or faster, than it was: chunks are cut anew."""
        for count in (1, 3):
            self.driver.engine.scheduler.cost.observe(count, 0, count * decode_ms / 1e3)
            self.driver.engine.scheduler.cost.observe(0, count, count * prefill_ms / 1e3)

    @precondition(lambda self: self.asked)
    @rule(data=st.data(), tokens=st.integers(1, 6))
    def credit(self, data: st.DataObject, tokens: int) -> None:
        """More credit for somebody."""
        name = data.draw(st.sampled_from(sorted(self.asked)))
        call = self.calls[name][-1]
        if self.credits[name, call] is not None:
            self.credits[name, call] += tokens  # type: ignore[operator]
        self.driver.credit(1, tokens, call=call)

    @precondition(lambda self: self.asked)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        """Somebody has heard enough."""
        name = data.draw(st.sampled_from(sorted(self.asked)))
        call = self.calls[name][-1]
        self.cancelled.add(name)
        # Who wants no more gives no more credit: what was made, and the end behind it, wait for none.
        self.credits[name, call] = None
        self.driver.cancel(1, call=call)

    @precondition(lambda self: self.asked)
    @rule(data=st.data(), credit=st.sampled_from([None, 0, 3]))
    def break_and_attach(self, data: st.DataObject, credit: int | None) -> None:
        """A call breaks, and another owner goes on from a token that it has."""
        name = data.draw(st.sampled_from(sorted(self.asked)))
        old = self.calls[name][-1]
        heard = self.driver.heard(1, old)
        if not heard.accepted:
            return
        first = heard.accepted[-1].from_token
        base = data.draw(st.integers(first, first + len(heard.ids)))
        self.driver.break_call(old)
        new = old + 1
        self.calls[name].append(new)
        self.credits[name, new] = credit
        epoch = len(self.calls[name])
        self.driver.apply(Attach(StreamKey(new, 1), name, epoch, base, credit))

    @invariant()
    def blocks_are_conserved(self) -> None:
        """Free, kept and held make the total; none is in two tables unless it is shared."""
        self.driver.engine.scheduler.places.check()

    @invariant()
    def budgets_and_credits_are_kept(self) -> None:
        """No step computes more than its budget; no listener hears more than its credit."""
        for plan in self.runner.plans:
            assert plan.token_count <= LIMITS.step_tokens_max
            assert len({row.sequence_id for row in plan.rows}) == len(plan.rows)
        self.runner.plans.clear()
        for (_, call), credit in self.credits.items():
            assert credit is None or len(self.driver.heard(1, call).ids) <= credit

    @invariant()
    def what_was_heard_is_the_solo_text(self) -> None:
        """Ids and text are a run of the solo run's, at the index and offset that were told."""
        for name, calls in self.calls.items():
            ids, text = _solo(*self.asked[name], self.window)
            for call in calls:
                heard = self.driver.heard(1, call)
                index, offset = heard.first_index or 0, heard.first_offset or 0
                assert heard.ids == ids[index : index + len(heard.ids)]
                if name not in self.cancelled:  # a cancelled tail may end inside a code point
                    assert heard.text == text[offset : offset + len(heard.text)]

    def teardown(self) -> None:
        """With credit for all, everybody who was not cancelled hears the solo run to its end."""
        for name, calls in self.calls.items():
            call = calls[-1]
            self.driver.credit(1, 1000, call=call)
            self.credits[name, call] = None
        steps = self.driver.steps
        self.driver.run()
        work = sum(len(prompt) + answer for prompt, answer in self.asked.values())
        assert self.driver.steps - steps <= ROUNDS_MAX * work + len(self.asked) + 2
        for name, calls in self.calls.items():
            heard = self.driver.heard(1, calls[-1])
            assert isinstance(heard.end, Done)
            ids, text = _solo(*self.asked[name], self.window)
            if name not in self.cancelled:
                assert heard.ids == ids[heard.accepted[-1].from_token :]
                offset = len(text) if heard.first_offset is None else heard.first_offset
                assert heard.text == text[offset:]
        self.driver.check_idle()


class WindowMachine(EngineMachine):
    """The same in a model whose tokens read six others: blocks leave while their sequence runs."""

    window = 7
    cold_blocks = 3


class TieredMachine(EngineMachine):
    """The same with a CPU tier that is smaller than what is overwritten."""

    cold_blocks = 5


MACHINES = (EngineMachine, WindowMachine, TieredMachine)
