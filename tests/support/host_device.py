"""Streams and events on a CPU: what `torch.cuda` has of them, done at once and written down."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["HostDevice"]


class _Stream:
    def __init__(self, device: HostDevice, name: str) -> None:
        self._device = device
        self.name = name

    def wait_event(self, event: _Event) -> None:
        self._device.log.append(f"{self.name} waits for {event.recorded_on}")


class _Event:
    def __init__(self, device: HostDevice) -> None:
        self._device = device
        self.recorded_on = ""

    def record(self) -> None:
        self.recorded_on = self._device.current
        self._device.log.append(f"{self.recorded_on} records")

    def synchronize(self) -> None:
        self._device.log.append(f"host waits for {self.recorded_on}")

    def elapsed_time(self, end: _Event) -> float:
        return 1.0 if end.recorded_on == self.recorded_on else 0.0


class HostDevice:
    """Stands for the module `torch.cuda`; streams are called by the order in which they were made."""

    def __init__(self, *names: str) -> None:
        self._names = iter(names)
        self.current = "default"
        self.log: list[str] = []

    def Stream(self) -> _Stream:  # noqa: N802 -- torch's name
        """A stream."""
        return _Stream(self, next(self._names))

    def Event(self, *, enable_timing: bool, blocking: bool = False) -> _Event:  # noqa: N802 -- torch's name
        """An event."""
        assert enable_timing or blocking
        return _Event(self)

    @contextmanager
    def stream(self, stream: _Stream) -> Iterator[None]:
        """Work inside goes to `stream`."""
        before, self.current = self.current, stream.name
        yield
        self.current = before

    def synchronize(self) -> None:
        """Wait for everything."""
        self.log.append("host waits for all")
