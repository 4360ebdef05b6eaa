"""What is logged, and what never is."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from mesh.telemetry.logs import setup_logs


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """Leave the process's loggers as they were."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers = []
    yield
    root.handlers = handlers
    root.setLevel(level)


@pytest.mark.parametrize("name", ["uvicorn.error", "websockets.server", "sqlalchemy.engine"])
def test_no_level_lets_a_library_write_down_what_passes_through(name: str) -> None:
    """CASES 108: also at `debug` no library logs requests, where keys, tickets and prompts are."""
    setup_logs("debug", as_json=False)
    assert logging.getLogger("gateway").isEnabledFor(logging.DEBUG)
    assert not logging.getLogger(name).isEnabledFor(logging.WARNING)
    assert logging.getLogger(name).isEnabledFor(logging.ERROR)
