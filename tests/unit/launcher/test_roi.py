"""`seedance roi` as a person types it."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from launcher.cli import app
from tests.support.access_lines import json_line, nginx_line
from tests.support.plans import ALL_MODES, plan_text


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a plan file and two logs."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plans.yaml").write_bytes(plan_text(ALL_MODES))
    (tmp_path / "a.log").write_bytes(b"".join(json_line(time=n) for n in range(100)) + b"<b>\n")
    (tmp_path / "b.log").write_bytes(nginx_line())
    (tmp_path / "none.log").write_bytes(b"<b>\n")
    return tmp_path


def ask(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["roi", *arguments])
    return result.exit_code, result.stdout, result.stderr


def test_report(folder: Path) -> None:
    """One line says what to take; the page has the figures and what was left out."""
    code, out, error = ask("a.log")
    assert (code, error) == (0, "")
    assert out == "Time and bandwidth: 216.04 CNY a month; see roi.html\n"
    page = (folder / "roi.html").read_text()
    assert "Lines that were not understood and left out: 1, the first at a.log:101." in page
    assert "<b>" not in page
    assert "2,160.00 CNY" in page  # of requests


def test_log_that_says_little(folder: Path) -> None:
    """The combined format prices what it can; the page says what is missing of the rest."""
    assert ask("b.log", "-o", "b.html")[0] == 0
    assert "the log has no token counts" in (folder / "b.html").read_text()


def test_nothing_that_can_be_priced(folder: Path) -> None:
    """It says what the log lacks for the prices that the plan has, and where else to look."""
    (folder / "plans.yaml").write_bytes(plan_text())
    code, _, error = ask("b.log")
    assert code == 2
    assert "plan standard can be priced (Tokens: the log has no token counts); --plan" in error
    page = (folder / "roi.html").read_text()
    assert "No way of charging can be priced" in page
    assert "Take:" not in page


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("no.log",), "cannot read no.log: No such file or directory"),
        (("none.log",), "there is no request in the log; the first that is not understood"),
        (("a.log", "b.log"), "the log spans more than a year"),
        (("a.log", "--pattern", "("), "--pattern: "),
        (("a.log", "--pattern", "(?P<time>.)(?P<x>.)"), "name its groups time, status"),
        (("a.log", "--field", "time"), "--field 'time': write NAME=KEY"),
        (("a.log", "--weight", "operations=x"), "--weight 'operations=x'"),
        (("a.log", "--weight", "luck=1"), "--weight 'luck=1'"),
        (("a.log", "--plan", "gold"), "--plan 'gold': there are standard"),
        (("a.log", "--plans", "no.yaml"), "no.yaml: cannot be read"),
        (("a.log", "-o", "no/roi.html"), "cannot write no/roi.html"),
    ],
)
def test_mistakes_are_one_line(folder: Path, arguments: tuple[str, ...], says: str) -> None:
    """What is wrong, in a line, with the code for misuse."""
    code, out, error = ask(*arguments)
    assert (code, out) == (2, "")
    assert says in error
    assert error.count("\n") == 1
