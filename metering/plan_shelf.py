"""The plan file that is in force: read again when it changes, kept when the new one is bad."""

from __future__ import annotations

import logging
from pathlib import Path

from metering.plans.document import PlanError
from metering.plans.model import PlanBook
from metering.plans.reader import PLAN_BYTES_MAX, read_plans

__all__ = ["PlanShelf", "load_plans"]

_LOG = logging.getLogger("metering")


def load_plans(path: Path) -> PlanBook:
    """Read a plan file. Raises `PlanError`."""
    try:
        with path.open("rb") as file:
            text = file.read(PLAN_BYTES_MAX + 1)
    except OSError as error:
        wrong = f"{path.name}: cannot be read ({error.strerror})"
        raise PlanError(f"{wrong}; check the path and its rights") from None
    return read_plans(text, path.name)


class PlanShelf:
    """Holds the plans of one file. Raises `PlanError` when the first reading fails."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp = self._stat()
        self._book = load_plans(path)

    def book(self) -> PlanBook:
        """The plans in force. A changed file that is bad is told once, and changes nothing."""
        stamp = self._stat()
        if stamp != self._stamp:
            self._stamp = stamp
            try:
                self._book = load_plans(self._path)
            except PlanError as error:
                _LOG.warning("the plans stay as they were: %s", error)
            else:
                _LOG.info("the plan file was read again")
        return self._book

    def _stat(self) -> tuple[int, int] | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size
