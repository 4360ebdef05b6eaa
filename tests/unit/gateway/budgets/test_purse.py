"""`gateway.budgets.purse`: what one stream asks of its accounts, and when it is cut."""

from __future__ import annotations

from gateway.budgets.account import Answer, Settle, Verdict
from gateway.budgets.model import Tariff
from gateway.budgets.purse import (
    AHEAD_TOKENS,
    RENEW_S,
    UNFUNDED_WAIT_MAX_S,
    WAIT_MAX_S,
    Answered,
    Ask,
    Begin,
    Credit,
    Cut,
    Effect,
    Ended,
    Funded,
    Purse,
    PurseState,
    Received,
    Tick,
    Want,
)
from seedance.protocol.errors import ErrorCode
from seedance.protocol.frames import Usage

PROMPT = 10


def _begun(*accounts: str, window: int = 32) -> tuple[Purse, list[Effect]]:
    purse = Purse("s")
    assert purse.call(0, window) == 0
    return purse, purse.step(Begin(PROMPT, [(name, Tariff()) for name in accounts or ("a",)]), 0.0)


def _asks(effects: list[Effect]) -> list[Ask]:
    return [effect for effect in effects if isinstance(effect, Ask)]


def _granted(held: int, account: str = "a", *, dry: bool = False) -> Answered:
    return Answered(account, Answer(held, Verdict.GRANTED, dry))


def test_nothing_is_computed_before_it_is_paid_for() -> None:
    """It asks for the prompt and some tokens ahead; credit comes with the answer, as far as window and money reach."""
    purse, effects = _begun()
    (ask,) = _asks(effects)
    assert (ask.hold.least, ask.hold.want, ask.hold.used) == (
        PROMPT + 1,
        PROMPT + AHEAD_TOKENS,
        0,
    )
    assert purse.step(_granted(PROMPT + 20), 0.0) == [Funded(), Credit(20)]
    assert not [e for e in purse.step(Want(40), 0.0) if isinstance(e, Credit)]


def test_more_is_held_before_it_runs_out() -> None:
    """While half of what was granted is left the next hold is on its way, and no second one."""
    purse, _ = _begun()
    purse.step(_granted(PROMPT + AHEAD_TOKENS), 0.0)
    assert not _asks(purse.step(Received(AHEAD_TOKENS // 2 - 1), 0.1))
    (ask,) = _asks(purse.step(Received(AHEAD_TOKENS // 2 + 6), 0.2))
    assert ask.hold.used == PROMPT + AHEAD_TOKENS // 2 + 6
    assert not _asks(purse.step(Received(AHEAD_TOKENS // 2 + 7), 0.3))


def test_it_is_cut_when_nothing_is_left_and_not_before() -> None:
    """`EMPTY` ends it only once it has used what it holds."""
    purse, _ = _begun()
    assert _asks(purse.step(_granted(PROMPT + 5), 0.0)), "so little is asked ahead of at once"
    assert not _asks(purse.step(_granted(PROMPT + 5), 0.0)), (
        "and not again, when nothing came of it"
    )
    (ask,) = _asks(purse.step(Received(5), 0.1))
    assert ask.hold.least == PROMPT + 6
    assert purse.state is PurseState.WAITING
    assert purse.step(Answered("a", Answer(PROMPT + 5, Verdict.EMPTY)), 0.2) == [
        Cut(ErrorCode.QUOTA_EXCEEDED)
    ]
    assert purse.step(Tick(), 9.0) == []


def test_it_waits_for_what_others_may_give_back() -> None:
    """`WAIT` is asked again, and again later, and goes on when something came back."""
    purse, _ = _begun()
    purse.step(_granted(PROMPT + 5), 0.0)
    purse.step(Received(5), 0.1)
    wait = Answered("a", Answer(PROMPT + 5, Verdict.WAIT))
    assert not _asks(purse.step(wait, 0.2))
    assert _asks(purse.step(Tick(), 0.25))
    assert not _asks(purse.step(wait, 0.25))
    assert not _asks(purse.step(Tick(), 0.26))
    assert _asks(purse.step(Tick(), 0.4))
    assert purse.step(_granted(PROMPT + 7), 0.5)[0] == Credit(2)


def test_waiting_has_an_end() -> None:
    """After `WAIT_MAX_S` it is cut: the budget is used up as far as anybody knows, or its store is away."""
    for answer, code in (
        (Answer(PROMPT + 5, Verdict.WAIT), ErrorCode.QUOTA_EXCEEDED),
        (None, ErrorCode.UNAVAILABLE),
    ):
        purse, _ = _begun()
        purse.step(_granted(PROMPT + 5), 0.0)
        purse.step(Received(5), 0.0)
        purse.step(Answered("a", answer), 0.1)
        assert Cut(code) in purse.step(Tick(), WAIT_MAX_S + 0.1)
        assert purse.state is PurseState.OVER


def test_unknown_prices_end_it_too() -> None:
    """Who cannot be told what it costs is not kept for ever."""
    purse = Purse("s")
    assert purse.step(Tick(), 1.0) == []
    assert purse.step(Tick(), 1.0 + UNFUNDED_WAIT_MAX_S) == [Cut(ErrorCode.UNAVAILABLE)]


def test_the_poorest_account_decides() -> None:
    """Tenant and key, tokens and money: credit is what all of them pay for."""
    purse, effects = _begun("tenant", "key")
    assert [ask.account for ask in _asks(effects)] == ["tenant", "key"]
    assert not [
        e for e in purse.step(_granted(PROMPT + 50, "tenant"), 0.0) if isinstance(e, Credit)
    ]
    assert purse.step(_granted(PROMPT + 3, "key"), 0.0)[:2] == [Funded(), Credit(3)]
    purse.step(Received(3), 0.1)
    cut = purse.step(Answered("key", Answer(PROMPT + 3, Verdict.EMPTY)), 0.2)
    assert cut == [Cut(ErrorCode.QUOTA_EXCEEDED)]
    assert [s.cost for _, s in purse.settle(Usage(PROMPT, 0, 3), 1)] == [13, 13]


def test_what_others_wait_for_goes_back() -> None:
    """In an account that ran dry the renewal keeps what the engine was given, and no more."""
    purse, _ = _begun(window=8)
    purse.step(_granted(PROMPT + 100, dry=True), 0.0)
    (ask,) = _asks(purse.step(Tick(), RENEW_S))
    assert (ask.hold.want, ask.hold.returns) == (PROMPT + 8, True)


def test_a_call_begins_with_what_is_paid_for() -> None:
    """After a break the new call's credit counts from the tokens that are there."""
    purse, _ = _begun()
    purse.step(_granted(PROMPT + 20), 0.0)
    purse.step(Received(12), 0.1)
    assert purse.call(12, 32) == 8
    assert purse.call(12, 4) == 4


def test_prices_that_come_after_the_end_are_those_of_the_settling() -> None:
    """A stream that goes on here while metering is away is cut; what it cost is charged all the same."""
    purse = Purse("s")
    assert purse.step(Tick(), 0.0) == []
    assert purse.step(Tick(), UNFUNDED_WAIT_MAX_S) == [Cut(ErrorCode.UNAVAILABLE)]
    assert purse.step(Begin(PROMPT, [("a", Tariff())]), 60.0) == []
    assert purse.settle(Usage(PROMPT, 0, 3), 1) == [("a", Settle("s", PROMPT + 3, 1))]


def test_what_an_ended_stream_held_ahead_is_for_others() -> None:
    """It keeps what it used until it is settled, though an answer that was on its way had more."""
    purse, _ = _begun()
    purse.step(_granted(PROMPT + 20), 0.0)
    assert _asks(purse.step(Received(12), 0.1))
    assert not _asks(purse.step(Ended(), 0.2))
    (ask,) = _asks(purse.step(_granted(PROMPT + 60), 0.3))
    assert ask.hold.returns
    assert ask.hold.want == ask.hold.used == PROMPT + 12
    assert not purse.step(_granted(PROMPT + 12), 0.4)
    assert _asks(purse.step(Tick(), 0.3 + RENEW_S)), "it keeps showing that it is there"
    assert [s.cost for _, s in purse.settle(Usage(PROMPT, 0, 12), 1)] == [PROMPT + 12]
