"""What of a session is not in the store yet, gathered between two commits.

Token ids are written when their text lies wholly in frames: a new owner that begins after them
hears every byte that no frame holds once more from the instance, or from another one (§4.5).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, astuple, dataclass, field, replace
from typing import Any

from gateway.budgets.model import Tariff
from gateway.metering.meter import UsageMeter
from gateway.metering.stream import FormerAttempt
from gateway.session.identity import SessionIdentity
from gateway.store.base import ENDS_KEPT_MAX, LogEntry, SessionWrite, StreamWrite, UsageEvent
from seedance.protocol.errors import ErrorCode, SeedanceError
from seedance.protocol.events import UpstreamDone, UpstreamFailed
from seedance.protocol.frames import Generate, Timing, Usage
from seedance.protocol.json_codec import decode_client, encode_client
from seedance.protocol.session import SessionMachine
from seedance.protocol.stream import StreamMachine

__all__ = ["BILLS_KEPT_MAX", "Journal", "Opening"]

# While the store is away a session may end streams for ever: as many as ends are kept.
BILLS_KEPT_MAX = ENDS_KEPT_MAX
_NOTHING = 0, 0


@dataclass(slots=True)
class Opening:
    """What the store is told of a stream's beginning.

    `prompt_tokens` and `token_quota` are the first instance's word, once it has taken the stream.
    `end` is how it was settled and billed, while its client is not there to be told. `reused`: the session
    has forgotten ends (§3), and the stream's id may be one of theirs. `former`: attempts before this one.
    `tariffs`: what its budgets, by account, were told that it costs: whoever owns it next pays the same.
    """

    wants: Generate
    fingerprint: str
    started_ms: int
    traceparent: str
    model: str = ""
    prompt_tokens: int = 0
    instance: str = ""
    token_quota: int = 0
    end: UpstreamDone | UpstreamFailed | None = None
    reused: bool = False
    former: list[FormerAttempt] = field(default_factory=list)
    tariffs: dict[str, Tariff] = field(default_factory=dict)

    def settled(self, end: UpstreamDone | UpstreamFailed | None, usage: Usage) -> None:
        """It has ended, at this price."""
        self.end = None if end is None else replace(end, usage=usage)

    def write(self) -> bytes:
        """Its JSON (`instance` stands beside it in the store)."""
        return json.dumps(
            {
                "v": 1,
                "generate": encode_client(self.wants),
                "fingerprint": self.fingerprint,
                "started_ms": self.started_ms,
                "traceparent": self.traceparent,
                "model": self.model,
                "prompt_tokens": self.prompt_tokens,
                "token_quota": self.token_quota,
                "end": _write_end(self.end),
                "reused": self.reused,
                "former": self.former,
                "tariffs": {name: astuple(tariff) for name, tariff in self.tariffs.items()},
            },
            separators=(",", ":"),
        ).encode()

    @classmethod
    def read(cls, opened: bytes, instance: str) -> Opening:
        """The opening that `write` wrote."""
        fields = json.loads(opened)
        wants = decode_client(fields["generate"])
        if not isinstance(wants, Generate):
            raise TypeError("a stream's opening must hold a `generate` frame")
        return cls(
            wants,
            fields["fingerprint"],
            fields["started_ms"],
            fields["traceparent"],
            fields["model"],
            fields["prompt_tokens"],
            instance,
            fields["token_quota"],
            _read_end(fields.get("end")),
            fields.get("reused", False),
            [(model, instance, tokens) for model, instance, tokens in fields.get("former", ())],
            {name: Tariff(*tariff) for name, tariff in fields.get("tariffs", {}).items()},
        )


def _write_end(end: UpstreamDone | UpstreamFailed | None) -> dict[str, Any] | None:
    match end:
        case UpstreamDone(reason, usage):
            return {"reason": reason, "usage": asdict(usage)}
        case UpstreamFailed(error, usage):
            return {
                "code": error.code.value,
                "message": error.message,
                "field": error.field,
                "retry_after_ms": error.retry_after_ms,
                "usage": asdict(usage or Usage()),
            }
        case None:
            return None


def _read_end(fields: dict[str, Any] | None) -> UpstreamDone | UpstreamFailed | None:
    if fields is None:
        return None
    usage = Usage(**fields["usage"])
    if "reason" in fields:
        return UpstreamDone(fields["reason"], usage, Timing())
    error = SeedanceError(
        ErrorCode(fields["code"]),
        fields["message"],
        field=fields["field"],
        retry_after_ms=fields["retry_after_ms"],
    )
    return UpstreamFailed(error, usage)


class Journal:
    """One session's news for the store. `openings` finds the opening of a live stream.

    `pressing`: there is more than text of running streams and what was acknowledged of it. `marked`: the
    checkpointer knows of what is new. `failures`: writes in a row that the store could not carry out.
    """

    def __init__(
        self,
        identity: SessionIdentity,
        machine: SessionMachine,
        openings: Callable[[str], Opening | None],
        usage: UsageMeter,
    ) -> None:
        self._identity = identity
        self._machine = machine
        self._openings = openings
        self._usage = usage
        self.failures = 0
        self._touched: dict[str, None] = {}
        # Of each live stream, the tokens that were written and the bytes that were framed then.
        self._written: dict[str, tuple[int, int]] = {}
        self._logged_seq = 0
        self._acked = 0
        self._bills: dict[str, UsageEvent] = {}
        self._whole = True
        self._renew = False
        self.pressing = True
        self.marked = False

    def touch(self, stream: str) -> None:
        """More about a stream is new than its text: its opening, or its end."""
        self._touched[stream] = None
        self._press()

    def _press(self) -> None:
        self.pressing, self.marked = True, False

    def bill(self, event: UsageEvent) -> None:
        """What a stream costs, to be written with its end; what has no room any more goes without."""
        self._bills[event.id] = event
        self._usage.hold(event)
        self._press()
        if len(self._bills) > BILLS_KEPT_MAX:
            self._usage.add(self._bills.pop(next(iter(self._bills))))

    def stored(self, write: SessionWrite) -> None:
        """A write is in the store."""
        self.failures = 0
        self._usage.told(write.bills)
        for bill in write.bills:
            self._bills.pop(bill.id, None)

    def let_go(self) -> None:
        """Somebody else owns the session, and bills what the store says of it."""
        self._usage.drop(self._bills)
        self._bills.clear()

    def failed(self) -> None:
        """The store could not carry out a write, and may have begun to: the next one is whole."""
        self.failures += 1
        self.rewrite()

    @property
    def bills_waiting(self) -> int:
        """Bills that are not in the store yet."""
        return len(self._bills)

    def rewrite(self) -> None:
        """The store may have lost anything: next time everything is written."""
        self._whole = True
        self._press()

    def renew(self) -> None:
        """Write at least a sign of life next time."""
        self._renew = True
        self._press()

    @property
    def written(self) -> bool:
        """Whether the store was ever told of this session."""
        return not self._whole or self._logged_seq > 0

    def adopt(self, logged_seq: int) -> None:
        """The session came from the store, which has everything up to here."""
        self._whole = False
        self._logged_seq = logged_seq
        for name, stream in self._machine.streams.live.items():
            self._written[name] = stream.text.whole_tokens, stream.text.framed_bytes

    def take(self, epoch: int, *, detached: bool) -> SessionWrite | None:
        """What is new since the last call; None: nothing."""
        self.pressing = self.marked = False
        bills = tuple(self._bills.values())
        if self._machine.over:
            return SessionWrite(self._identity.session, epoch, closed=True, bills=bills)
        whole, self._whole = self._whole, False
        if whole:
            self._written.clear()
            self._logged_seq = 0
        streams = self._streams(whole=whole)
        entries = self._entries()
        acked = self._machine.delivery.log.base
        news = whole or self._renew or entries or streams or bills or acked != self._acked
        self._renew, self._acked = False, acked
        if not news:
            return None
        return SessionWrite(
            self._identity.session,
            epoch,
            created=self._identity.created() if whole else None,
            entries=entries,
            acked=acked,
            streams=streams,
            rewrite=whole,
            detached=detached,
            bills=bills,
        )

    def _entries(self) -> tuple[LogEntry, ...]:
        # What a simple client was sent is TCP's: it is not in the store, hence not resumed.
        if not self._machine.delivery.windowed:
            return ()
        log, logged_seq = self._machine.delivery.log, self._logged_seq
        self._logged_seq = log.last_seq
        if logged_seq >= log.last_seq:
            return ()
        # What was acknowledged meanwhile is not in the log, hence never written.
        return tuple(
            [LogEntry(entry.seq, entry.text.encode()) for entry in log if entry.seq > logged_seq]
        )

    def _streams(self, *, whole: bool) -> tuple[StreamWrite, ...]:
        live, ended = self._machine.streams.live, self._machine.streams.ended
        written, touched = self._written, self._touched
        writes = []
        for name, stream in live.items():
            opening = whole or name in touched
            now = stream.text.whole_tokens, stream.text.framed_bytes
            if opening or written.get(name, _NOTHING) != now:
                writes.append(self._live(stream, opening=opening))
        for name in ended if whole else touched:
            if name in ended:
                end = json.dumps({"v": 1, "fingerprint": ended[name]}, separators=(",", ":"))
                writes.append(StreamWrite(name, ended=end.encode()))
                written.pop(name, None)
        touched.clear()
        return tuple(writes)

    def _live(self, stream: StreamMachine, *, opening: bool) -> StreamWrite:
        text = stream.text
        written, _ = self._written.get(stream.id, _NOTHING)
        self._written[stream.id] = text.whole_tokens, text.framed_bytes
        opened = self._openings(stream.id) if opening else None
        return StreamWrite(
            stream.id,
            opened=opened.write() if opened else None,
            instance=opened.instance if opened else None,
            token_ids=tuple(text.token_ids[written : text.whole_tokens]),
            framed_bytes=text.framed_bytes,
            framed_tokens=text.framed_tokens,
            text_state=text.digest.state() if text.digest else b"",
        )
