"""The sessions that this gateway owns: begun here, found again, taken over, and swept up (§4.5–§4.8)."""

from __future__ import annotations

import asyncio
import hmac
import logging
from contextlib import suppress
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from gateway.session.checkpoint import Checkpointer
from gateway.session.identity import SessionIdentity, hash_of, read_identity
from gateway.session.owner import Carrier, SessionOwner
from gateway.session.restore import restore_machine
from gateway.session.rounds import Rounds
from gateway.store.base import (
    OvertakenError,
    SessionOverError,
    StoredSession,
    StoreUnavailableError,
)
from gateway.timers import TimerWheel
from seedance.protocol.errors import CloseCode, ErrorCode, SeedanceError
from seedance.protocol.events import Expired, ResumeOn
from seedance.protocol.frames import Heartbeat, Resume, SessionFrame
from seedance.protocol.resume import ResumeFault, unknown_session
from seedance.protocol.session import SessionMachine, SessionRules

if TYPE_CHECKING:
    from gateway.deps import GatewayDeps

__all__ = ["SessionRegistry"]

log = logging.getLogger("gateway")

SWEEP_EVERY_S = 5.0
SWEEP_LIMIT = 32


class SessionRegistry:
    """Finds a session's owner in this process, or makes one out of what the store has."""

    def __init__(self, deps: GatewayDeps) -> None:
        settings = deps.settings
        self.deps = deps
        self.timers = TimerWheel(deps.clock)
        self.checkpointer = Checkpointer(
            deps.store,
            deps.usage,
            deps.clock,
            deps.tracing,
            settings.commit_interval_ms / 1000,
            settings.text_commit_interval_ms / 1000,
        )
        self.rules = SessionRules(
            Heartbeat(
                settings.heartbeat_connection_s,
                settings.heartbeat_session_s,
                settings.heartbeat_stream_s,
            ),
            resume_ttl_s=settings.resume_ttl_s,
        )
        self._owners: dict[str, SessionOwner] = {}
        self._pumping: list[SessionOwner] = []
        self._rounds = Rounds(self._pump, deps.clock, settings.coalesce_ms / 1000)
        # A lock lives as long as somebody holds it or waits for it.
        self._resuming: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def __len__(self) -> int:
        return len(self._owners)

    @property
    def bills_waiting(self) -> int:
        """Bills of streams that are not in the store yet."""
        return self.checkpointer.bills_waiting

    @property
    def owners(self) -> list[SessionOwner]:
        """Every owner now."""
        return list(self._owners.values())

    def hello(self, identity: SessionIdentity, token: str, epoch: int) -> SessionFrame:
        """The `session` frame."""
        settings = self.deps.settings
        return SessionFrame(
            session=identity.session,
            token=token,
            epoch=epoch,
            tenant=identity.tenant,
            mode=identity.mode,
            server=settings.server_name,
            gateways=settings.gateway_urls,
            resume_ttl=settings.resume_ttl_s,
            heartbeat=self.rules.heartbeat,
            window=self.rules.window,
        )

    def begin(self, identity: SessionIdentity) -> SessionOwner:
        """A provisional session: nobody but its connection knows it until its first `generate`."""
        machine = SessionMachine(identity.session, self.rules, self.deps.clock.monotonic())
        return self._own(SessionOwner(identity, 1, machine, self))

    def _own(self, owner: SessionOwner) -> SessionOwner:
        self._owners[owner.identity.session] = owner
        self.checkpointer.own(owner)
        return owner

    def pump_soon(self, owner: SessionOwner) -> None:
        """Let its text leave with that of all others, in the next round."""
        if not self._pumping:
            self._rounds.soon()
        self._pumping.append(owner)

    def _pump(self, now: float) -> None:
        owners, self._pumping = self._pumping, []
        for owner in owners:
            try:
                owner.pump(now)
            except Exception:  # one session's fault must not keep the others' text back
                log.exception("session %s cannot go on here", owner.identity.session)
                owner.failed()

    def forget(self, owner: SessionOwner) -> None:
        """The session is over, or somebody else's."""
        self.timers.disarm(owner)
        self.checkpointer.disown(owner)
        if self._owners.get(owner.identity.session) is owner:
            del self._owners[owner.identity.session]

    # ------------------------------------------------------------ resume

    async def resume(
        self, resume: Resume, tenant: str, carrier: Carrier, *, windowed: bool
    ) -> SessionOwner:
        """Give the session to this connection, whoever had it.

        Raises `ResumeFault` with the error and the close code for the client: the session is known
        to be gone (`session_expired`, 4410), the store cannot be asked (`unavailable`, 1013), or
        `last_seq` is no place to go on from.
        """
        # Two connections that resume at once come one after the other: the later takes over.
        async with self._resuming.setdefault(resume.session, asyncio.Lock()):
            owner, confirmed = await self._find(resume, tenant)
            owner.machine.check_resume(resume, confirmed=confirmed)
            hello = self.hello(owner.identity, resume.token, owner.epoch)
            owner.attach(carrier, ResumeOn(resume, hello, windowed))
            return owner

    async def _find(self, resume: Resume, tenant: str) -> tuple[SessionOwner, bool]:
        """The owner, its epoch raised by one, and whether the store says that it is the newest one."""
        token_hash = hash_of(resume.token, tenant)
        owner = self._owners.get(resume.session)
        if owner and not hmac.compare_digest(owner.identity.token_hash, token_hash):
            raise unknown_session()
        try:
            return await self._claim(resume.session, token_hash)
        except PermissionError:
            raise unknown_session() from None
        except StoreUnavailableError:
            raise _unavailable() from None
        except SessionOverError:
            self._let_go(resume.session)
            raise unknown_session() from None
        except OvertakenError:
            # What others did meanwhile is in the store: the client's next try reads it.
            self._let_go(resume.session)
            raise _unavailable() from None

    def _let_go(self, session: str) -> None:
        """Whatever is in memory of this session is not the truth any more."""
        if session in self._owners:
            self._owners[session].fenced()

    async def _claim(self, session: str, token_hash: str) -> tuple[SessionOwner, bool]:
        """As `_find`; raises what `SessionStore.claim` raises."""
        owner = self._owners.get(session)
        try:
            # A session that nobody has written yet may live at another gateway: either it is found
            # later, or it is gone for good.
            bars, above = owner is None, owner.epoch if owner else 0
            stored = await self.deps.store.claim(
                session, token_hash, self._me, above=above, bars=bars
            )
        except StoreUnavailableError:
            if owner is None or self._owners.get(session) is not owner:
                raise
            await self._raise_epoch(owner)
            return owner, False
        mine = self._owners.get(session)
        if mine is not None and (stored is None or self._is_newest(mine, stored)):
            mine.epoch = stored.epoch if stored else mine.epoch + 1
            mine.guessed = False
            return mine, True
        if stored is None:
            raise unknown_session()
        self._let_go(session)
        return self._own(self._adopt(stored)), True

    def _is_newest(self, mine: SessionOwner, stored: StoredSession) -> bool:
        """Whether memory is newer than what is stored: nobody else had the session in between.

        That this gateway had it last is not enough: it may have claimed it from another one and not heard the answer.
        """
        return stored.former == self._me and stored.since <= mine.epoch

    async def _raise_epoch(self, owner: SessionOwner) -> None:
        """A store that is not believed knows at least which epochs were given; else it is a guess."""
        epoch = None
        with suppress(StoreUnavailableError):
            session = owner.identity.session
            epoch = await self.deps.store.raise_epoch(session, owner.epoch, self._me)
        owner.epoch = owner.epoch + 1 if epoch is None else epoch
        owner.guessed = epoch is None

    @property
    def _me(self) -> str:
        return self.deps.usage.gateway

    def _adopt(self, stored: StoredSession) -> SessionOwner:
        identity = read_identity(stored.session, stored.created)
        now = self.deps.clock.monotonic()
        machine, openings = restore_machine(stored, self.rules, now)
        owner = SessionOwner(identity, stored.epoch, machine, self)
        owner.journal.adopt(stored.last_seq)
        for name, opening in openings.items():
            owner.adopt(name, opening)
        return owner

    # ------------------------------------------------------------ housekeeping

    async def run(self) -> None:
        """Commit, and sweep up after gateways that are gone, for ever."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.checkpointer.run())
                tasks.create_task(self._sweep_for_ever())
        finally:
            self.timers.close()

    async def _sweep_for_ever(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_EVERY_S)
            await self.sweep()

    async def sweep(self) -> int:
        """End sessions whose time is up and whose gateway is gone: cancel and bill (§4.7)."""
        try:
            expired = await self.deps.store.sweep(SWEEP_LIMIT, self._me)
        except StoreUnavailableError:
            return 0
        for stored in expired:
            self._let_go(stored.session)
            try:
                # Over at once: its end is committed, and its bills with it, with the next commit.
                self._adopt(stored).step(Expired())
            except Exception:
                # A record that this release cannot read must not end one gateway after the other.
                log.exception("expired session %s cannot be read", stored.session)
        return len(expired)

    async def close(self) -> None:
        """Write what is new a last time and let the instances go on for the next owner."""
        for owner in self.owners:
            self.checkpointer.mark(owner)
        await self.checkpointer.commit()
        for owner in self.owners:
            self.forget(owner)
            owner.abandon()


def _unavailable() -> ResumeFault:
    away = SeedanceError(
        ErrorCode.UNAVAILABLE, "the session store cannot be asked now", retry_after_ms=1000
    )
    return ResumeFault(away, CloseCode.TRY_AGAIN_LATER)
