"""Mutual TLS between services, over real sockets: who is let in, and who is not."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from subprocess import run

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from gateway.upstream.membership import RouterWatch
from gateway.upstream.pool import InstancePool
from mesh.clock import SystemClock
from mesh.rpc.channel import open_channel
from mesh.rpc.identity import MeshIdentity, read_identity
from mesh.rpc.server import RpcServer
from tests.support.certificates import Authority
from tests.support.service_process import running_service
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
SERVING = health_pb2.HealthCheckResponse.SERVING


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def _identity(authority: Authority, *names: str, name: str = "") -> MeshIdentity:
    pair = authority.issue("service", *names)
    return read_identity(pair.certificate, pair.key, authority.file, name)


def _credentials(*files: str) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(*(Path(file).read_bytes() for file in files))


def _is_serving(address: str, **variables: str) -> bool:
    """The verdict of a container's health check."""
    check = [sys.executable, "deploy/docker/is_serving.py", address]
    return run(check, cwd=ROOT, check=False, env=variables).returncode == 0


@contextlib.asynccontextmanager
async def _serving(identity: MeshIdentity) -> AsyncIterator[str]:
    rpc = RpcServer(["seedance.v2.Test"], identity)
    port = await rpc.start("127.0.0.1:0")
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await rpc.drain(0)


async def _ask(channel: grpc.aio.Channel) -> str:
    """What the server says, or the status with which the channel fails."""
    async with channel:
        stub = health_pb2_grpc.HealthStub(channel)
        try:
            reply = await stub.Check(health_pb2.HealthCheckRequest(), timeout=2)
        except grpc.aio.AioRpcError as error:
            return error.code().name
    return "SERVING" if reply.status == SERVING else "?"


async def test_only_the_mesh_gets_in(authority: Authority, tmp_path: Path) -> None:
    """Plain, without a certificate, and with another authority's: refused before any call is."""
    (tmp_path / "foreign").mkdir()
    foreign = Authority(tmp_path / "foreign", "foreign").issue("intruder")
    nobody = _credentials(authority.file)
    intruder = _credentials(authority.file, foreign.key, foreign.certificate)
    async with _serving(_identity(authority)) as address:
        assert await _ask(open_channel(address, _identity(authority))) == "SERVING"
        for channel in (
            open_channel(address),
            grpc.aio.secure_channel(address, nobody),
            grpc.aio.secure_channel(address, intruder),
        ):
            assert await _ask(channel) == "UNAVAILABLE"


async def test_a_client_knows_whom_it_speaks_to(authority: Authority, tmp_path: Path) -> None:
    """A server of another authority, or made out to another host, is told nothing; a common name will do."""
    (tmp_path / "foreign").mkdir()
    foreign = Authority(tmp_path / "foreign", "foreign")
    ours = _identity(authority)
    async with _serving(_identity(foreign)) as address:
        assert await _ask(open_channel(address, ours)) == "UNAVAILABLE"
    async with _serving(_identity(authority, "mesh.example")) as address:
        assert await _ask(open_channel(address, ours)) == "UNAVAILABLE"
        named = _identity(authority, name="mesh.example")
        assert await _ask(open_channel(address, named)) == "SERVING"


async def test_services_find_each_other(authority: Authority) -> None:
    """Router, instance and gateway side: registered, watched and probed, all with certificates."""
    pair = authority.issue("service")
    flags = ("--mtls-cert", pair.certificate, "--mtls-key", pair.key, "--mtls-ca", authority.file)
    identity = _identity(authority)
    async with (
        running_service("router", *flags) as router,
        running_service(
            "inference", "--engine", "script", "--router", router.address, *flags
        ) as instance,
        contextlib.AsyncExitStack() as stack,
    ):
        dial = lambda address: open_channel(address, identity)  # noqa: E731
        source = RouterWatch(router.address, "test", SystemClock(), dial)
        pool = InstancePool(source, SystemClock(), dial=dial)
        await stack.enter_async_context(_running(pool))
        await wait_until(pool.ready)
        assert [i.address for i in source.current()] == [instance.address]
        assert await _ask(open_channel(instance.address)) == "UNAVAILABLE"
        assert not await asyncio.to_thread(_is_serving, router.address)
        shown = {"SEEDANCE_MTLS_CERT": pair.certificate, "SEEDANCE_MTLS_KEY": pair.key}
        shown["SEEDANCE_MTLS_CA"] = authority.file
        assert await asyncio.to_thread(_is_serving, router.address, **shown)


@contextlib.asynccontextmanager
async def _running(pool: InstancePool) -> AsyncIterator[None]:
    task = asyncio.create_task(pool.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
