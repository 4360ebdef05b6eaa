"""The judgement at the end of a run: texts, bills, and that nothing is left of it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from seedance.protocol.errors import ErrorCode
from tests.simulation.apart import Part
from tests.simulation.checkers import Watch
from tests.simulation.loop import HostState
from tests.simulation.services import RESUME_TTL_S
from tests.simulation.store import StoreServer
from tests.support.told_usage import stream_bills

if TYPE_CHECKING:
    from tests.simulation.workload import Answer, User
    from tests.simulation.world import World

__all__ = ["Ledger", "judge"]

READ_EVERY_S = 0.25


class Ledger:
    """Metering: takes each event once, by its id."""

    def __init__(self, store: StoreServer, watch: Watch) -> None:
        self.bills: dict[str, dict[str, Any]] = {}
        self._store = store
        self._watch = watch

    async def run(self) -> None:
        """Read for ever."""
        while True:
            await asyncio.sleep(READ_EVERY_S)
            if self._store.host.state is HostState.RUNNING:
                self.read()

    def read(self) -> None:
        """Take what is there."""
        for bill in stream_bills(self._store.memory.usage):
            name = bill["id"]
            if name not in self.bills:
                self.bills[name] = bill
                self._watch.tell(f"billed {name}: {bill['completion_tokens']}")


def judge(world: World) -> None:
    """Everybody has what was asked, paid for it once, and nobody holds anything."""
    world.ledger.read()
    for user in world.users:
        for answer in user.answers:
            if answer.ended or user.goes_s is None:
                _judge_answer(world, user, answer)
            _judge_stored(world, answer)
    for bill in world.ledger.bills.values():
        _judge_amount(world, bill)
    for name, instance in world.instances.items():
        pool = instance.engine.scheduler.places.pool
        if pool.free != pool.total:
            world.watch.breach(f"{name} holds {pool.total - pool.free} blocks")
    for name, gateway in world.gateways.items():
        registry = gateway.registry
        if len(registry) or registry.checkpointer.owners or registry._resuming:
            world.watch.breach(f"{name} still owns {[o.identity.session for o in registry.owners]}")
    left = [name for name, stored in world.store.memory._sessions.items() if not stored.gone]
    if left:
        world.watch.breach(f"the store still has {left}")


def _judge_answer(world: World, user: User, answer: Answer) -> None:
    who = f"{user.name}/{answer.id}"
    oracle = answer.oracle
    if answer.error is not None:
        if not _honest(world, user, answer):
            world.watch.breach(f"{who} ends with {answer.error.code}: {answer.error.message}")
    elif answer.reason == "cancelled":
        if not answer.may_be_cut:
            world.watch.breach(f"{who} was cancelled by nobody")
    else:
        heard = (answer.text, answer.reason, answer.tokens)
        if heard != (oracle.text, oracle.reason, oracle.tokens):
            world.watch.breach(f"{who} heard {heard} instead of {oracle}")
    _judge_bill(world, user, answer)


def _judge_stored(world: World, answer: Answer) -> None:
    """What the store knows to be framed is billed, also if nobody came back for it."""
    framed = world.watch.framed.get(answer.id, 0)
    bills = [bill for bill in world.ledger.bills.values() if bill["stream"] == answer.id]
    billed = sum(bill["completion_tokens"] for bill in bills)
    if billed < framed and not world.faults.may_lose_bills:
        world.watch.breach(f"{answer.id} is billed {billed}, and {framed} were framed")


def _judge_amount(world: World, bill: dict[str, Any]) -> None:
    """Nobody pays for more than there was, whether they heard it or not."""
    answers = (answer for user in world.users for answer in user.answers)
    oracle = next((a.oracle for a in answers if a.id == bill["stream"]), None)
    if oracle is not None and bill["completion_tokens"] > oracle.tokens:
        world.watch.breach(f"{bill['id']} is billed for more than {oracle.tokens}")


def _judge_bill(world: World, user: User, answer: Answer) -> None:
    who = f"{user.name}/{answer.id}"
    if answer.billed is None:
        return
    if answer.billed != answer.tokens:
        world.watch.breach(f"{who} was told {answer.billed} tokens and heard {answer.tokens}")
    bills = [bill for bill in world.ledger.bills.values() if bill["stream"] == answer.id]
    counts = [bill["completion_tokens"] for bill in bills]
    if counts == [answer.billed] or sum(counts) == answer.billed == 0:
        return  # what no instance took is not billed at all
    if counts and counts[-1] == answer.billed and user.offline_s > RESUME_TTL_S:
        return  # what an expired session had of it was framed, too
    # Who dies right after `done` takes its last tokens' bill along, if nobody comes back (§4.9).
    swept = world.watch.session_of.get(answer.id) in world.watch.swept
    less = sum(counts) < answer.billed
    if not (less and (swept or world.faults.may_lose_bills)):
        world.watch.breach(f"{who} is billed {counts} for {answer.billed}")


def _honest(world: World, user: User, answer: Answer) -> bool:
    """Whether the faults of this run explain the error (§4.8)."""
    assert answer.error is not None
    apart, happened = world.faults.apart, world.faults.apart.happened
    match answer.error.code:
        case ErrorCode.SESSION_EXPIRED:
            return user.offline_s > RESUME_TTL_S or apart.may_lose_sessions
        case ErrorCode.RESUME_GAP:
            # What was accepted while the store was away was known to a gateway alone.
            return apart.may_lose_sessions
        case ErrorCode.UNAVAILABLE if not apart.gentle and {Part.ROUTER, Part.GATEWAY} <= happened:
            # A gateway that starts while the router is away knows no instance.
            return True
        case ErrorCode.UNAVAILABLE if not answer.stood:
            # A client whose first gateway never answered takes its address for a wrong one.
            return Part.GATEWAY in happened
        case ErrorCode.UNAVAILABLE if not apart.gentle and not answer.text:
            return Part.INSTANCE in happened
        case _:
            return False
