"""A client's WebSocket: its socket on one side, the machines on the other (§1–§3)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from fastapi import WebSocket
from starlette.datastructures import QueryParams
from starlette.responses import Response

from gateway.affinity import asks_canary
from gateway.auth import REFUSALS, Principal, Refusal
from gateway.metering.connection import MeteredSocket
from gateway.metering.events import request_name
from gateway.session.identity import new_identity
from gateway.session.owner import SessionOwner
from gateway.subprotocols import SUBPROTOCOLS, JsonSpeech, Speech, speech
from gateway.ws_protocol import SOCKET_EXTENSION
from seedance.protocol.connection import (
    CloseSocket,
    ConnectionEffect,
    ConnectionMachine,
    ConnectionState,
    Deliver,
    PingPeer,
    TakeOver,
)
from seedance.protocol.effects import Send
from seedance.protocol.errors import CloseCode, ErrorCode, ProtocolFault, SeedanceError
from seedance.protocol.events import LinkUp, LinkWritable, Refused
from seedance.protocol.frames import ClientFrame, Generate, GoAway, Resume
from seedance.protocol.json_codec import plain_ack
from seedance.protocol.resume import ResumeFault
from seedance.protocol.stream import error_frame

if TYPE_CHECKING:
    from gateway.connections import Connections
    from gateway.deps import GatewayDeps
    from gateway.session.registry import SessionRegistry

__all__ = ["Connection", "Socket", "serve_websocket"]

MODES = ("token", "connection", "concurrent")
INSTANCE_CLASS_LENGTH_MAX = 64
# What somebody who was turned away has to answer the close frame: he is counted nowhere any more.
TURNED_AWAY_S = 1.0


class Socket(Protocol):
    """What a connection needs of its WebSocket (`gateway.ws_protocol`)."""

    input_at: float
    piece_at: float | None
    close_timeout: float
    on_writable: Any
    on_small: Any

    @property
    def idle(self) -> bool:
        """Whether everything sent has left the process."""
        ...

    def send_text(self, text: str) -> None:
        """Send a text message."""
        ...

    def send_bytes(self, data: bytes) -> None:
        """Send a binary message."""
        ...

    def send_ping(self) -> None:
        """Send an empty ping."""
        ...

    def send_close(self, code: int, reason: str) -> None:
        """Close it."""
        ...

    async def give_way(self) -> None:
        """Wait until the next message may be dealt with."""
        ...


class Connection:
    """Carries one session at a time: first the provisional one, then perhaps a resumed one."""

    def __init__(
        self,
        deps: GatewayDeps,
        registry: SessionRegistry,
        socket: Socket,
        principal: Principal,
        *,
        windowed: bool,
        affinity: str,
        mode: str = MODES[0],
        instance_class: str = "standard",
        canary: bool = False,
        traceparent: str = "",
        speech: Speech | None = None,
    ) -> None:
        now = deps.clock.monotonic()
        self.armed_at = float("inf")
        self.traceparent = traceparent
        self._deps = deps
        self._registry = registry
        self._socket = socket
        self._speech = speech or JsonSpeech(socket)
        self._principal = principal
        self._windowed = windowed
        self._machine = ConnectionMachine(deps.settings.heartbeat_connection_s, now)
        identity, token = new_identity(
            principal.tenant,
            affinity,
            mode,
            instance_class,
            windowed=windowed,
            now_ms=deps.store.now_ms(),
            key=principal.key,
            canary=canary,
        )
        self._hearing = False
        self._owner: SessionOwner = registry.begin(identity)
        self._hello = registry.hello(identity, token, 1)

    def open(self) -> None:
        """Greet the client (§3: `session` is sent at once)."""
        self._socket.on_writable = self._on_writable
        if isinstance(self._speech, JsonSpeech):
            self._socket.on_small = self._on_small
        self._owner.attach(self, LinkUp(self._hello, self._windowed))
        self._registry.timers.arm(self, self._machine.deadline)

    async def on_message(self, message: str | bytes) -> None:
        """A message arrived. Between its frames, and after it, others have their turn."""
        if self._machine.state is ConnectionState.CLOSED:
            await self._socket.give_way()
            return
        gave_way, self._hearing = False, True
        try:
            for frames in self._speech.hear(message):
                for index, frame in enumerate(frames):
                    if index:
                        await self._socket.give_way()
                    await self._take(frame)
                await self._socket.give_way()
                gave_way = True
            if not gave_way:  # a piece of an envelope
                await self._socket.give_way()
        except ProtocolFault as fault:
            for effect in self._machine.fault(fault):
                self._do(effect)
            await self._socket.give_way()
        finally:
            self._hearing = False

    def _on_small(self, message: bytes) -> bool:
        """Deal with an acknowledgement where it arrives; anything else goes the usual way.

        So does one that comes while an earlier message is dealt with: its session may not be here yet.
        """
        if self._hearing or self._machine.state is not ConnectionState.OPEN:
            return False
        seq = plain_ack(message)
        if seq is None:
            return False
        self._owner.acknowledged(seq)
        return True

    async def _take(self, frame: ClientFrame | SeedanceError) -> None:
        if isinstance(frame, Generate) or (isinstance(frame, SeedanceError) and frame.of_generate):
            self._count(frame)
        for effect in self._machine.frame(frame):
            if isinstance(effect, TakeOver):
                await self._take_over(effect.resume)
            else:
                self._do(effect)

    def _count(self, asked: Generate | SeedanceError) -> None:
        """One request more; one that names its stream is the same one when it is told again."""
        usage, tenant = self._deps.usage, self._principal.tenant
        if isinstance(asked, SeedanceError):
            usage.request(tenant, asked.code.value)
        elif asked.id is None:
            usage.request(tenant)
        else:
            session = self._owner.identity.session
            usage.request(tenant, name=request_name(session, asked.id))

    def on_time(self, now: float) -> None:
        """The connection's own deadline may have come (called by the timer wheel)."""
        self._machine.heard(self._socket.input_at)
        for effect in self._machine.tick(now):
            self._do(effect)
        self._registry.timers.arm(self, self._machine.deadline)

    def gone(self) -> None:
        """The socket has ended, in whatever way."""
        self._machine.closed()
        self._registry.timers.disarm(self)
        self._owner.detach(self)

    # ------------------------------------------------------------ what the session says (`Carrier`)

    @property
    def idle(self) -> bool:
        """Whether everything sent has left the process."""
        return self._socket.idle and not self._speech.waiting

    @property
    def piece_at(self) -> float | None:
        """When a piece of a message came whose rest is still on its way."""
        return self._socket.piece_at

    def send(self, effect: Send) -> None:
        """Hand a frame to the socket."""
        self._speech.send(effect.frame, effect.seq, effect.text)

    def close(self, code: CloseCode, reason: str) -> None:
        """Close the socket; nothing that still arrives counts."""
        self._machine.closed()
        self._close_socket(code, reason)

    # ------------------------------------------------------------ draining

    @property
    def at_rest(self) -> bool:
        """Whether nothing runs or waits here."""
        machine = self._owner.machine
        return not machine.streams.live and not len(machine.delivery.log)

    @property
    def busy(self) -> bool:
        """Whether a simple client's stream runs here: it cannot go on anywhere else."""
        machine = self._owner.machine
        return not machine.delivery.windowed and bool(machine.streams.live)

    def go_away(self, reason: str, reconnect_ms: int) -> None:
        """Ask the client to resume elsewhere."""
        self._speech.send(GoAway(reason, reconnect_ms))

    # ------------------------------------------------------------ inside

    def _do(self, effect: ConnectionEffect) -> None:
        match effect:
            case Deliver(Generate() as asked):
                self._owner.ask(asked)
            case Deliver(event):
                if isinstance(event, Refused):
                    self._deps.metrics.rejected.labels(event.error.code.value).inc()
                self._owner.step(event)
            case PingPeer():
                self._socket.send_ping()
            case CloseSocket(code, reason):
                self._close_socket(code, reason)
            case TakeOver():
                raise AssertionError("`resume` is awaited by its caller")

    def _close_socket(self, code: CloseCode, reason: str) -> None:
        self._speech.flush()
        self._socket.send_close(code, reason)

    async def _take_over(self, resume: Resume) -> None:
        """Carry the session that the client names; the provisional one has told its last."""
        try:
            owner = await self._registry.resume(
                resume, self._principal.tenant, self, windowed=self._windowed
            )
        except ResumeFault as fault:
            self._deps.metrics.resumes.labels(fault.error.code.value).inc()
            self._owner.step(Refused(fault.error))
            self.close(fault.close_code, fault.error.message)
            return
        self._deps.metrics.resumes.labels("resumed").inc()
        provisional, self._owner = self._owner, owner
        provisional.detach(self)

    def _on_writable(self, writable: bool) -> None:
        self._owner.step(LinkWritable(writable))


def _query(query: QueryParams) -> tuple[str, str, bool]:
    """Billing mode, instance class, and whether it asks for the canary. Raises `SeedanceError` naming the parameter."""
    mode = query.get("mode", MODES[0])
    if mode not in MODES:
        wants = "`mode` must be one of " + ", ".join(MODES)
        raise SeedanceError(ErrorCode.BAD_REQUEST, wants, field="mode")
    instance = query.get("instance", "standard")
    plain = instance.replace("-", "").replace("_", "").isalnum() and instance.isascii()
    if not plain or len(instance) > INSTANCE_CLASS_LENGTH_MAX:
        wants = f"`instance` must be up to {INSTANCE_CLASS_LENGTH_MAX} letters, digits, - and _"
        raise SeedanceError(ErrorCode.BAD_REQUEST, wants, field="instance")
    canary = query.get("canary", "false")
    if canary not in ("true", "false"):
        wants = "`canary` must be `true` or `false`"
        raise SeedanceError(ErrorCode.BAD_REQUEST, wants, field="canary")
    return mode, instance, canary == "true"


async def serve_websocket(
    websocket: WebSocket, deps: GatewayDeps, registry: SessionRegistry, connections: Connections
) -> None:
    """Everything from the upgrade request to the socket's end."""
    # When the request's head had arrived: nothing more comes before it is answered.
    began = websocket.scope["extensions"][SOCKET_EXTENSION].input_at
    offered = websocket.scope["subprotocols"]
    chosen = next((item for item in offered if item in SUBPROTOCOLS), None)
    who = await deps.authenticator.connect(websocket.headers, websocket.query_params, offered)
    if isinstance(who, Refusal):
        deps.usage.refused(deps.authenticator.tenant_shown(websocket.headers, offered))
        await _refuse(websocket, who, chosen)
        return
    affinity = deps.affinity.of(websocket, who)
    cookies = [(b"set-cookie", affinity.set_cookie.encode())] if affinity.set_cookie else []
    await websocket.accept(subprotocol=chosen, headers=cookies)
    socket: Socket = websocket.scope["extensions"][SOCKET_EXTENSION]
    metered: MeteredSocket = websocket.scope["extensions"][SOCKET_EXTENSION]
    said = speech(chosen, socket)
    try:
        mode, instance_class, canary = _query(websocket.query_params)
    except SeedanceError as error:
        said.send(error_frame(error), 1)
        said.flush()
        socket.send_close(CloseCode.PROTOCOL_ERROR, error.message)
        return
    address = websocket.client.host if websocket.client else ""
    with deps.tenants.connection(who.tenant) as admitted:
        if not (admitted and connections.admits(address)):
            socket.close_timeout = TURNED_AWAY_S
            socket.send_close(CloseCode.TOO_MANY_CONNECTIONS, "too many connections")
            return
        deps.usage.connected(metered, who.tenant, mode)
        connection = Connection(
            deps,
            registry,
            socket,
            who,
            windowed=chosen is not None,
            affinity=affinity.user,
            mode=mode,
            instance_class=instance_class,
            canary=canary or asks_canary(websocket.headers),
            traceparent=websocket.headers.get("traceparent", ""),
            speech=said,
        )
        with connections.holding(connection, address):
            connection.open()
            now = deps.clock.monotonic()
            deps.handshakes.took(now - began, now)
            try:
                await _receive(websocket, connection)
            finally:
                connection.gone()


async def _receive(websocket: WebSocket, connection: Connection) -> None:
    while True:
        message = await websocket.receive()
        if message["type"] == "websocket.disconnect":
            return
        text = message.get("text")
        await connection.on_message(message["bytes"] if text is None else text)


async def _refuse(websocket: WebSocket, refusal: Refusal, chosen: str | None) -> None:
    row = REFUSALS[refusal]
    if row.close_code is None:
        await websocket.send_denial_response(
            Response(row.message, status_code=row.http_status, media_type="text/plain")
        )
        return
    # A browser cannot see an HTTP status, but it can see a close code.
    await websocket.accept(subprotocol=chosen)
    websocket.scope["extensions"][SOCKET_EXTENSION].close_timeout = TURNED_AWAY_S
    await websocket.close(row.close_code, row.message)
