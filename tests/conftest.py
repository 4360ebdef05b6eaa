"""What every test shares: hypothesis without a wall-clock deadline, and one real store server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis
from hypothesis import settings

from tests.support.cluster import NODES, TestCluster, running_cluster
from tests.support.valkey import TestStore, running_valkey

# A shared machine makes single examples slow now and then; the test's own timeout is the bound.
settings.register_profile("house", deadline=None, print_blob=True)
settings.load_profile("house")


@pytest.fixture(scope="session")
def valkey_server() -> Iterator[TestStore]:
    """One server for the whole run; use `valkey` for an empty one."""
    with running_valkey() as store:
        yield store


@pytest.fixture
def valkey(valkey_server: TestStore) -> TestStore:
    """The shared server, emptied."""
    with redis.Redis.from_url(valkey_server.url) as client:
        client.flushall()
    return valkey_server


@pytest.fixture(scope="session")
def cluster_servers() -> Iterator[TestCluster]:
    """One cluster for the whole run; use `cluster` for an empty one."""
    with running_cluster() as store:
        yield store


@pytest.fixture
def cluster(cluster_servers: TestCluster) -> TestCluster:
    """The shared cluster, emptied."""
    for node in range(NODES):
        with cluster_servers.node(node) as client:
            client.flushall()
    return cluster_servers
