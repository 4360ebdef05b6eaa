"""The plans in force follow the file, unless the file is bad."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mesh.document import DocumentError
from metering.plan_shelf import PlanShelf
from tests.support.plans import plan_text


def test_file_is_read_again_when_it_changes(tmp_path: Path) -> None:
    """New prices hold from the next question on."""
    path = tmp_path / "plans.yaml"
    path.write_bytes(plan_text())
    shelf = PlanShelf(path)
    assert shelf.book() is shelf.book()
    path.write_bytes(plan_text(time_zone="Asia/Shanghai"))
    assert shelf.book().zone.key == "Asia/Shanghai"


def test_running_plans_stay_when_the_file_is_bad(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A bad file, or none, is told once with its line; the mended one is taken."""
    path = tmp_path / "plans.yaml"
    path.write_bytes(plan_text())
    shelf = PlanShelf(path)
    before = shelf.book()
    path.write_bytes(plan_text() + b"vat: 1\n")
    assert shelf.book() is before
    assert shelf.book() is before
    (record,) = caplog.records
    said = "the plan file stays as it was: plans.yaml:17: unknown field `vat`; known here: format,"
    assert record.getMessage().startswith(said)
    path.unlink()
    assert shelf.book() is before
    path.write_bytes(plan_text(digits=3))
    os.utime(path, ns=(1, 1))
    assert shelf.book().rounding.digits == 3


def test_first_reading_must_succeed(tmp_path: Path) -> None:
    """A process does not start on prices that it cannot read."""
    with pytest.raises(DocumentError, match=r"plans\.yaml: cannot be read \(No such file"):
        PlanShelf(tmp_path / "plans.yaml")
