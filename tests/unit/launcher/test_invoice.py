"""`seedance invoice` as a person types it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from launcher.cli import app
from metering.event import parse_event
from metering.plan_shelf import load_plans
from metering.store.sql import SqlStore
from tests.support.plans import plan_text
from tests.support.usage_events import usage_payload

ROOT = Path(__file__).resolve().parents[3]
OCTOBER_MS = 1_759_276_800_000  # 2025: over for good


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a local mesh's ledger and a plan file."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".seedance").mkdir()
    (tmp_path / "plans.yaml").write_bytes(plan_text())
    store = SqlStore(f"sqlite:///{tmp_path}/.seedance/ledger.db")
    store.write(
        [parse_event(usage_payload(started_ms=OCTOBER_MS, completion_tokens=1_000_000))], ()
    )
    store.close()
    return tmp_path


def ask(*arguments: str, month: str = "2025-10") -> tuple[int, str, str]:
    command = ["invoice", "--tenant", "acme", "--month", month, *arguments]
    result = CliRunner().invoke(app, command)
    return result.exit_code, result.stdout, result.stderr


def test_draft_then_closed(folder: Path) -> None:
    """A draft changes nothing; closing is for good; afterwards the closed one is written."""
    states = [json.loads(ask(*more)[1]) for more in ((), ("--close",), (), ("--close",))]
    assert [told["state"] for told in states] == ["draft", "closed", "closed", "closed"]
    assert {told["total"] for told in states} == {"160.00"}
    assert states[1] == states[2] == states[3]


@pytest.mark.usefixtures("folder")
def test_an_empty_bill_says_so() -> None:
    """A misspelt tenant, or a month that has not begun in the plan's time zone, does not look like a fault."""
    code, out, error = ask(month="2025-09")
    assert (code, json.loads(out)["lines"]) == (0, [])
    assert error.startswith("seedance: acme used nothing in 2025-09 (")


def test_page_into_a_file(folder: Path) -> None:
    """HTML goes where it is told to."""
    assert ask("--format", "html", "-o", "page.html") == (0, "", "")
    assert (folder / "page.html").read_text().startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("arguments", "month", "says"),
    [
        (("--plans", "none.yaml"), "2025-10", "none.yaml: cannot be read"),
        (("--data", "elsewhere"), "2025-10", "there is no elsewhere/ledger.db"),
        (("--ledger", "sqlite:////no/where.db"), "2025-10", "cannot open the ledger"),
        ((), "October", "--month 'October': a month is written YYYY-MM"),
        (("--close",), "2025-11", "there is usage in 2025-10"),
        (("--close",), "9000-01", "9000-01 is not over yet"),
        (("-o", "no/where.json"), "2025-10", "cannot write no/where.json"),
    ],
)
def test_mistakes_are_one_line(
    folder: Path, arguments: tuple[str, ...], month: str, says: str
) -> None:
    """What is wrong, in a line, with the code for misuse."""
    code, out, error = ask(*arguments, month=month)
    assert (code, out) == (2, "")
    assert says in error
    assert error.count("\n") == 1


def test_invoice_that_was_tampered_with(folder: Path) -> None:
    """A closed invoice that the ledger does not give again is not written."""
    ask("--close")
    store = SqlStore(f"sqlite:///{folder}/.seedance/ledger.db")
    with store.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE usage SET completion_tokens = 1")
    store.close()
    code, out, error = ask()
    assert (code, out) == (2, "")
    assert "differs from what was sent" in error


def test_example_plan_file() -> None:
    """The file in `examples/` is a good one."""
    book = load_plans(ROOT / "examples" / "plans.yaml")
    assert (book.plan_of("acme"), book.plan_of("x")) == ("everything", "tokens")


def correct(amount: str, *more: str) -> tuple[int, str, str]:
    command = ["correct", "--tenant", "acme", "--reason", "outage", "--name", "c-1"]
    result = CliRunner().invoke(app, [*command, "--amount", amount, *more])
    return result.exit_code, result.stdout, result.stderr


def test_correction_counts_once(folder: Path) -> None:
    """Money by hand is rounded as the plan says, and told twice it counts once (CASES 93)."""
    for _ in range(2):
        assert correct("-14.28444999") == (0, "acme: -14.28 CNY, once, as c-1\n", "")
    # What runs on another clock than the test's: this month, whichever it is.
    store = SqlStore(f"sqlite:///{folder}/.seedance/ledger.db")
    with store.engine.connect() as connection:
        rows = connection.exec_driver_sql("SELECT amount, reason FROM corrections").all()
    store.close()
    assert [tuple(row) for row in rows] == [("-14.28", "outage")]


@pytest.mark.parametrize("amount", ["much", "1e3", "nan", "--1"])
def test_amount_that_is_none(folder: Path, amount: str) -> None:
    """Only a decimal is money."""
    code, out, error = correct(amount)
    assert (code, out) == (2, "")
    assert f"--amount {amount!r}" in error
