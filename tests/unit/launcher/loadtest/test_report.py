"""What is told of a run."""

from __future__ import annotations

import json
from xml.etree import ElementTree as ET

import pytest

from launcher.loadtest.arrivals import Arrivals
from launcher.loadtest.load import Load, target_of
from launcher.loadtest.page import to_html
from launcher.loadtest.report import Measured, as_json, markdown
from launcher.loadtest.tally import Tally

LOAD = Load(connections=3, arrivals=Arrivals.POISSON, rate=5, duration_s=2, storm_at_s=1)


def _measured(url: str, ms: float, tokens: int) -> Measured:
    tally = Tally()
    for sketch in (tally.handshake, tally.ttft, tally.gap, tally.total):
        sketch.add(ms / 1000)
    tally.asked = tally.answered = tally.exact = 4
    tally.tokens = tally.in_time = tokens
    tally.seconds.update({0: tokens // 2, 1: tokens - tokens // 2})
    tally.elapsed_s, tally.cpu_s = 2.0, 0.5
    target = target_of(url, keys=("sk-secret",))
    return Measured(target, tally, "a <proof>", ["mind & <this>"])


PAIR = [_measured("ws://h:1", 10, 1000), _measured("http://h:2", 40, 250)]


def test_the_json_has_everything_but_keys() -> None:
    """Load, times, errors, exactness and ratios; a key of an API caller is in none of it."""
    told = as_json(LOAD, PAIR)
    first = told["targets"][0]
    assert first["tokens_per_s"] == 500
    assert first["times"]["ttft"]["p99_ms"] == pytest.approx(10, rel=0.01)
    assert first["tokens_by_second"] == [500, 500]
    assert first["client_cpu_share"] == 0.25
    assert told["ratios"]["tokens_per_s"] == 0.25
    assert told["ratios"]["ttft_p99"] == pytest.approx(4, rel=0.03)
    assert told["load"]["arrivals"] == "poisson"
    assert "sk-secret" not in json.dumps(told)


def test_one_target_has_no_ratios() -> None:
    """Nothing is compared with itself."""
    assert as_json(LOAD, PAIR[:1])["ratios"] == {}
    assert "second over the first" not in markdown(LOAD, PAIR[:1])


def test_the_markdown_is_tables() -> None:
    """Every table's rows have as many cells as its head; errors and warnings are told."""
    PAIR[1].tally.errors["overloaded"] = 2
    text = markdown(LOAD, PAIR)
    assert "5 requests/s" in text
    assert "cut after 1 s" in text
    assert "Errors: 2 overloaded." in text
    assert "| tokens/s | 0.25 |" in text
    assert "Warning: mind & <this>." in text
    cells = 0
    for line in text.splitlines():
        if not line.startswith("|"):
            cells = 0
            continue
        assert cells in {0, line.count("|")}, line
        cells = line.count("|")


def test_the_page_is_whole_and_escaped() -> None:
    """One HTML page: balanced, its charts drawn, text escaped, nothing fetched from elsewhere."""
    page = to_html(LOAD, PAIR).decode()
    body = page.partition("<body>")[2].partition("</body>")[0]
    tree = ET.fromstring(f"<body>{body}</body>")  # noqa: S314 - our own page
    assert len(tree.findall(".//svg")) == 4
    assert len(tree.findall(".//polyline")) == 8
    assert "mind &amp; &lt;this&gt;" in page
    assert "nan" not in body.lower()
    assert "src=" not in page


def test_a_run_without_an_answer_is_told_too() -> None:
    """Nothing measured: dashes and zeros, no fault."""
    empty = [Measured(target_of("ws://h:1"), Tally(), "nothing")]
    assert "not compared" in markdown(LOAD, empty)
    assert as_json(LOAD, empty)["targets"][0]["times"]["ttft"]["p50_ms"] is None
    assert b"Load test" in to_html(LOAD, empty)
