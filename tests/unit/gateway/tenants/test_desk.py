"""The tenants' desk: who is let in now, and when to come again; alone and with other gateways."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from gateway.store.base import StoreUnavailableError
from gateway.store.leases import LEASE_TTL_S, MemoryLeases, Want
from gateway.tenants.desk import Permit, Tenants
from gateway.tenants.reader import TENANTS_BYTES_MAX, read_tenants
from gateway.upstream.base import PressureLevel
from mesh.watched_file import WatchedFile
from seedance.protocol.errors import ErrorCode, SeedanceError
from seedance.protocol.request import ChatMessage, GenerateRequest
from tests.support.clock import FakeClock
from tests.support.fake_upstream import FakeCluster, FakeUpstream
from tests.support.waiting import wait_until

ASKED = GenerateRequest(model="fake", prompt="x" * 10)


class _Full(FakeUpstream):
    """Instances that take nothing more."""

    def pressure(self) -> PressureLevel:
        return PressureLevel.PAUSE


class Mesh:
    """Gateways on one tenants file and, where there are several, on shared slices."""

    def __init__(self, path: Path, limits: str, gateways: int = 1) -> None:
        self.path = path / "tenants.yaml"
        self.write(limits)
        self.clock = FakeClock()
        self.upstream = FakeUpstream(FakeCluster(auto=False))
        lent: dict[tuple[str, str], dict[str, tuple[float, float, float]]] = {}
        self.leases = [MemoryLeases(self.clock, f"g{i}", lent) for i in range(gateways)]
        self.desks = [
            Tenants(self.file(), self.clock, leases, gateways=gateways) for leases in self.leases
        ]

    def file(self) -> WatchedFile:
        return WatchedFile(
            self.path, read_tenants, TENANTS_BYTES_MAX, logging.getLogger("t"), "tenants file"
        )

    def write(self, limits: str) -> None:
        self.path.write_text(f"format: 1\ntenants:\n  acme: {{{limits}}}\n")

    async def renew(self) -> None:
        self.clock.advance(1)
        for desk in self.desks:
            await desk.renew(self.upstream)


def admit(desk: Tenants, streams: int = 1, request: GenerateRequest = ASKED) -> Permit:
    return desk.admit("acme", request, streams)


def retry_after(desk: Tenants, streams: int = 1) -> int:
    with pytest.raises(SeedanceError) as refused:
        admit(desk, streams)
    assert refused.value.code is ErrorCode.RATE_LIMITED
    assert refused.value.retry_after_ms is not None
    return refused.value.retry_after_ms


def test_the_time_that_is_named_is_exact(tmp_path: Path) -> None:
    """Over the limit a client is told when to come: exactly then it is let in, 1 ms before not."""
    mesh = Mesh(tmp_path, "limits: {requests_per_s: {base: '2.5', burst: 2}}")
    (desk,) = mesh.desks
    admit(desk)
    admit(desk)
    wait_ms = retry_after(desk)
    assert wait_ms == 400
    mesh.clock.advance((wait_ms - 1) / 1000)
    assert retry_after(desk) == 1
    mesh.clock.advance(0.001)
    admit(desk)


def test_others_do_not_notice(tmp_path: Path) -> None:
    """One tenant's limit is nobody else's, and a tenant without a limit has none."""
    (desk,) = Mesh(tmp_path, "limits: {requests_per_s: 1}").desks
    admit(desk)
    retry_after(desk)
    for _ in range(1000):
        desk.admit("other", ASKED).close()


def test_streams_at_once(tmp_path: Path) -> None:
    """Choices of one request count each; what has ended counts no more, however often it is closed."""
    (desk,) = Mesh(tmp_path, "limits: {streams: 3}").desks
    two = admit(desk, 2)
    assert retry_after(desk, 2) > 0
    one = admit(desk)
    assert retry_after(desk) > 0
    two.close()
    two.close()
    admit(desk, 2)
    assert retry_after(desk) > 0
    one.close()
    admit(desk)
    assert desk.of("acme").streams == 3


def test_streams_from_another_gateway_count_and_are_never_refused(tmp_path: Path) -> None:
    """A session that moves here goes on, over the limit too; the next request pays for it."""
    (desk,) = Mesh(tmp_path, "limits: {streams: 1}").desks
    moved = [desk.adopt("acme") for _ in range(3)]
    assert retry_after(desk) > 0
    for permit in moved:
        permit.close()
    admit(desk)


def test_long_prompts_are_paid_for(tmp_path: Path) -> None:
    """Text is limited both ways: after a long prompt the next request waits, exactly so long."""
    mesh = Mesh(tmp_path, "limits: {bytes_per_s: 100}")
    (desk,) = mesh.desks
    admit(desk, request=GenerateRequest(messages=(ChatMessage("user", "é" * 125),)))
    wait_ms = retry_after(desk)
    assert wait_ms == 1500
    mesh.clock.advance(wait_ms / 1000)
    admit(desk)


def test_of_several_limits_the_longest_wait_is_told(tmp_path: Path) -> None:
    """Who comes back then is let in by all of them."""
    mesh = Mesh(tmp_path, "limits: {bytes_per_s: 100, requests_per_s: '0.5'}")
    (desk,) = mesh.desks
    admit(desk, request=GenerateRequest(prompt="x" * 250))
    assert retry_after(desk) == 2000
    mesh.clock.advance(2)
    admit(desk)


def test_models_of_the_list_only(tmp_path: Path) -> None:
    """A model that is not on the tenant's list is not there for it, the default one included."""
    (desk,) = Mesh(tmp_path, "models: [a, b]").desks
    admit(desk, request=GenerateRequest(model="b", prompt="x"))
    for model in ("c", ""):
        with pytest.raises(SeedanceError, match="`model` must be one of a, b") as refused:
            admit(desk, request=GenerateRequest(model=model, prompt="x"))
        assert refused.value.code is ErrorCode.MODEL_NOT_FOUND
    assert desk.may_use("other", "c")


def test_connections_at_once(tmp_path: Path) -> None:
    """One more than allowed is told so; when one ends there is room."""
    (desk,) = Mesh(tmp_path, "limits: {connections: 1}").desks
    with desk.connection("acme") as first:
        with desk.connection("acme") as second:
            assert (first, second) == (True, False)
        with desk.connection("other") as other:
            assert other
    with desk.connection("acme") as again:
        assert again


async def test_a_limit_holds_for_the_whole_mesh(tmp_path: Path) -> None:
    """Two gateways let in together what one would, and the slices follow the traffic."""
    mesh = Mesh(tmp_path, "limits: {requests_per_s: 10}", gateways=2)
    one, other = mesh.desks

    def asked(desk: Tenants, most: int) -> int:
        passed = 0
        for _ in range(most):
            try:
                admit(desk).close()
            except SeedanceError:
                continue
            passed += 1
        return passed

    assert asked(one, 20) == 5
    assert asked(other, 1) == 1
    totals = []
    for _ in range(12):
        await mesh.renew()
        totals.append((asked(one, 20), asked(other, 1)))
    assert all(a + b <= 10 for a, b in totals[2:])
    assert totals[-1] == (9, 1)


async def test_a_gateway_alone_has_all_of_it(tmp_path: Path) -> None:
    """Of several configured gateways only one has the tenant's traffic: after a renewal it has all.

    One that hears of the tenant later goes by what is left, once it has asked.
    """
    mesh = Mesh(tmp_path, "limits: {streams: 4}", gateways=2)
    for _ in range(2):
        admit(mesh.desks[0])
    retry_after(mesh.desks[0])
    await mesh.renew()
    await mesh.renew()
    admit(mesh.desks[0])
    admit(mesh.desks[0])
    retry_after(mesh.desks[0])
    mesh.desks[1].of("acme")
    await mesh.renew()
    retry_after(mesh.desks[1])


async def test_one_stream_of_two_gateways_is_to_be_had(tmp_path: Path) -> None:
    """A limit of one is at one of them, not a half at each; who is asked for it has it soon after."""
    mesh = Mesh(tmp_path, "limits: {streams: 1}", gateways=2)
    for desk in mesh.desks:
        desk.of("acme")
    for asked, other in (mesh.desks, reversed(mesh.desks)):
        for _ in range(6):
            if passed := _passes(asked):
                break
            await mesh.renew()
        assert passed
        assert not _passes(other)


async def test_who_finds_all_lent_is_not_sent_away_for_long(tmp_path: Path) -> None:
    """A gateway that starts while the one before it is still counted is told of seconds, not of minutes."""
    mesh = Mesh(tmp_path, "limits: {requests_per_s: 10}", gateways=2)
    one, other = mesh.desks
    one.of("acme")
    await mesh.leases[1].renew([Want("acme", "requests", 10, 10)])
    await one.renew(mesh.upstream)
    assert _passes(one)
    assert 0 < retry_after(one) <= LEASE_TTL_S * 1000
    mesh.clock.advance(LEASE_TTL_S)
    other.of("acme")
    await mesh.renew()
    mesh.clock.advance(1)
    assert _passes(one)


async def test_gateways_that_see_different_loads_divide_the_same_rate(tmp_path: Path) -> None:
    """One that finds the instances full has its part of the floor, whatever others make of theirs."""
    rate = "{base: 10, burst: 20, floor: 5, ceiling: 15}"
    mesh = Mesh(tmp_path, f"limits: {{requests_per_s: {rate}}}", gateways=2)
    free, full = mesh.desks
    pressed = _Full(FakeCluster(auto=False))
    for desk in mesh.desks:
        desk.of("acme")
    for _ in range(60):
        mesh.clock.advance(1)
        await free.renew(mesh.upstream)
        await full.renew(pressed)
    for desk in mesh.desks:
        while _passes(desk):
            pass
    mesh.clock.advance(1)
    assert [sum(_passes(desk) for _ in range(20)) for desk in mesh.desks] == [7, 2]


async def test_with_the_store_away_the_slices_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is refused for it and nothing doubled: each gateway keeps what it had, and says so once."""
    mesh = Mesh(tmp_path, "limits: {requests_per_s: 10}", gateways=2)
    (one, other), store = mesh.desks, mesh.leases[0]
    admit(one).close()
    admit(other).close()
    for _ in range(3):
        await mesh.renew()

    async def away(_self: object, _wants: object) -> list[float]:
        raise StoreUnavailableError

    with monkeypatch.context() as broken:
        broken.setattr(MemoryLeases, "renew", away)
        for _ in range(10):
            await mesh.renew()
        passed = [sum(_passes(desk) for _ in range(20)) for desk in (one, other)]
    assert sum(passed) <= 10
    assert min(passed) >= 4
    assert [r.getMessage() for r in caplog.records] == [
        "the store is away: limits stay divided as they are"
    ] * 2
    assert (await store.renew([])) == []


def _passes(desk: Tenants) -> bool:
    try:
        admit(desk).close()
    except SeedanceError:
        return False
    return True


async def test_a_new_file_holds_at_once(tmp_path: Path) -> None:
    """What was let in goes on; the next request sees the new limit, and a bad file changes nothing."""
    mesh = Mesh(tmp_path, "limits: {streams: 1}")
    (desk,) = mesh.desks
    admit(desk)
    retry_after(desk)
    running = asyncio.create_task(desk.run(mesh.upstream))
    try:
        mesh.write("limits: {streams: 2}")
        await wait_until(lambda: _passes(desk))
        mesh.write("limits: {streams: none}")
        assert desk.book.tenant("acme").limits.streams == 2
    finally:
        running.cancel()
    await desk.close()
