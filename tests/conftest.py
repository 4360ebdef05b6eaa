"""Fixtures that tests of several levels share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.valkey import TestStore, running_valkey


@pytest.fixture(scope="session")
def valkey_server() -> Iterator[TestStore]:
    """One server for the whole run; use `valkey` for an empty one."""
    with running_valkey() as store:
        yield store


@pytest.fixture
def valkey(valkey_server: TestStore) -> TestStore:
    """The shared server, emptied."""
    import redis

    with redis.Redis.from_url(valkey_server.url) as client:
        client.flushall()
    return valkey_server
