"""Tenants' accounts, by example; by rules in tests/property/test_fairness.py."""

from __future__ import annotations

import pytest

from mesh import fair_share
from mesh.fair_share import FairShare


def test_a_weight_makes_tokens_cheaper() -> None:
    """Twice the weight: the same tokens count half."""
    shares = FairShare({"gold": 2.0})
    gold, other = shares.account("gold"), shares.account("other")
    gold.charge(10)
    other.charge(10)
    assert (gold.virtual, other.virtual) == (5.0, 10.0)
    assert shares.account("gold") is gold


def test_who_comes_back_starts_where_the_others_are() -> None:
    """Time away is not saved up."""
    shares = FairShare({})
    there, back = shares.account("there"), shares.account("back")
    shares.enter(there)
    there.charge(1000)
    shares.tick()
    shares.enter(back)
    assert back.virtual == 1000
    shares.enter(back)
    assert back.virtual == 1000


def test_leaving_wipes_out_no_debt() -> None:
    """Who was given more than the others has it still on coming back at once."""
    shares = FairShare({})
    there, greedy = shares.account("there"), shares.account("greedy")
    shares.enter(there)
    shares.enter(greedy)
    greedy.charge(500)
    shares.leave(greedy)
    shares.tick()
    shares.enter(greedy)
    assert greedy.virtual == 500


def test_accounts_of_the_absent_are_forgotten_when_they_are_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The bound holds; who is there, or has a debt, is not forgotten."""
    monkeypatch.setattr(fair_share, "ACCOUNTS_MAX", 3)
    shares = FairShare({})
    there, debtor = shares.account("there"), shares.account("debtor")
    shares.enter(there)
    debtor.charge(7)
    for number in range(10):
        shares.account(f"passing {number}")
    assert shares.account("there") is there
    assert shares.account("debtor") is debtor
    assert len(shares._accounts) <= 4
