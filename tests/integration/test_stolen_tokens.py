"""A session belongs to its tenant: what a thief of its token, or of its id, gets."""

from __future__ import annotations

import hashlib

import pytest

from tests.support.fake_upstream import FakeCluster, FakeUpstream
from tests.support.gateway_under_test import running_gateway, wire

KEYS = {"acme": "acme-key", "evil": "evil-key"}


def _bearer(tenant: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {KEYS[tenant]}"}


@pytest.mark.parametrize("thief", ["another tenant", "without the token", "of a guessed id"])
async def test_a_session_is_resumed_by_its_tenant_with_its_token(thief: str) -> None:
    """One answer to all who may not, `session_expired` and 4410; who may goes on where he was."""
    digests = ",".join(
        f"{tenant}:{hashlib.sha256(key.encode()).hexdigest()}" for tenant, key in KEYS.items()
    )
    settings = {"keys": digests, "anonymous_tenant": ""}
    async with running_gateway(FakeUpstream(FakeCluster()), **settings) as gateway:
        async with wire(gateway.url, additional_headers=_bearer("acme")) as client:
            await client.send(type="generate", id="a", prompt="x " * 500)
            await client.until("token")
            known = client.seen[0]
            last = {"last_seq": client.last_seq, "offsets": {"a": client.offset("a")}}
        resume = {"type": "resume", "session": known["session"], "token": known["token"], **last}
        stolen, who = {
            "another tenant": (resume, "evil"),
            "without the token": (resume | {"token": "x" * len(known["token"])}, "acme"),
            "of a guessed id": (resume | {"session": "x" * len(known["session"])}, "acme"),
        }[thief]
        async with wire(gateway.url, additional_headers=_bearer(who)) as client:
            await client.send(**stolen)
            assert await client.closed() == 4410
            assert client.seen[-1]["code"] == "session_expired"
        async with wire(gateway.url, additional_headers=_bearer("acme")) as client:
            await client.send(**resume)
            assert (await client.until("resumed"))["tenant"] == "acme"
