"""The plan file that is in force: read again when it changes, kept when the new one is bad."""

from __future__ import annotations

import logging
from pathlib import Path

from mesh.watched_file import WatchedFile
from metering.plans.model import PlanBook
from metering.plans.reader import PLAN_BYTES_MAX, read_plans

__all__ = ["PlanShelf", "load_plans"]

_LOG = logging.getLogger("metering")


def load_plans(path: Path) -> PlanBook:
    """Read a plan file. Raises `DocumentError`."""
    return PlanShelf(path).value


class PlanShelf(WatchedFile[PlanBook]):
    """Holds the plans of one file. Raises `DocumentError` when the first reading fails."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, read_plans, PLAN_BYTES_MAX, _LOG, "plan file")

    def book(self) -> PlanBook:
        """The plans in force. A changed file that is bad is told once, and changes nothing."""
        self.refresh()
        return self.value
