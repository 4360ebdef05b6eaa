"""Whose turn it is."""

from __future__ import annotations

import math

from inference.engine.sequence import Sequence
from inference.engine.waiting_room import PATIENCE, WaitingRoom
from mesh.fair_share import FairShare


class _Room(WaitingRoom):
    """A waiting room whose sequences have accounts, and cost what they are long."""

    def __init__(self, **weights: float) -> None:
        super().__init__()
        self.shares = FairShare(weights)
        self.last_id = 0

    def come(
        self, tenant: str = "a", priority: int = 5, deadline: float = math.inf, length: int = 10
    ) -> Sequence:
        self.last_id += 1
        sequence = Sequence(
            id=self.last_id,
            prompt_ids=[1] * length,
            answer_ids=[],
            arrival=float(self.last_id),
            tenant=tenant,
            priority=priority,
            deadline=deadline,
            account=self.shares.account(tenant),
        )
        self.shares.enter(sequence.account)
        self.add(sequence)
        return sequence

    def turn(self) -> Sequence:
        self.shares.tick()
        sequence = self.next()
        assert sequence is not None
        self.take(sequence)
        sequence.account.charge(sequence.total)
        self.check()
        return sequence


def test_priority_then_deadline_then_arrival() -> None:
    """Within a tenant: class, in it the earliest deadline, those without one by arrival."""
    room = _Room()
    plain = room.come()
    late, soon = room.come(deadline=9.0), room.come(deadline=5.0)
    urgent = room.come(priority=0)
    assert [room.turn() for _ in range(4)] == [urgent, soon, late, plain]
    assert room.next() is None


def test_tenants_take_turns_by_what_they_were_given() -> None:
    """One with short requests has more turns than one with long ones, whatever their priority."""
    room = _Room()
    for _ in range(6):
        room.come("long", priority=0, length=20)
        room.come("short", priority=9, length=10)
    turns = [room.turn().tenant for _ in range(6)]
    assert turns.count("short") == 4


def test_a_heavier_tenant_has_more() -> None:
    """Weight 3 against 1: three turns to one."""
    room = _Room(gold=3.0)
    for _ in range(12):
        room.come("gold")
        room.come("other")
    assert [room.turn().tenant for _ in range(8)].count("gold") == 6


def test_the_oldest_has_one_turn_in_so_many() -> None:
    """A flow of urgent requests holds nobody up for ever."""
    room = _Room()
    patient = room.come(priority=9)
    turns = []
    for _ in range(PATIENCE):
        room.come(priority=0)
        turns.append(room.turn())
    assert turns.index(patient) == PATIENCE - 1


def test_whoever_leaves_is_in_nobodys_way() -> None:
    """Cancelled sequences are no turn."""
    room = _Room()
    first, second = room.come(), room.come()
    room.remove(first)
    room.check()
    assert len(room) == 1
    assert room.turn() is second
    assert len(room) == 0
