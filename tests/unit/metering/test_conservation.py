"""No token is lost or made up: a difference is an alert that names the stream."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from mesh.clock import SystemClock
from mesh.telemetry.metrics import MeteringMetrics
from metering.conservation import Conservation, difference_of
from metering.event import UsageEvent, parse_event
from metering.store.books import DAY_MS, BookStore
from metering.store.sql import SqlStore
from tests.support.usage_events import usage_payload

# 5 tokens are framed.
BALANCED = {
    "computed_tokens": 8,
    "discarded_tokens": 3,
    "acknowledged_tokens": 4,
    "retained_tokens": 1,
}


def stream(name: str = "s1/a/stream_finished", **changes: object) -> UsageEvent:
    event = parse_event(usage_payload(name, **(BALANCED | changes)))
    assert isinstance(event, UsageEvent)
    return event


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqlStore]:
    store = SqlStore(f"sqlite:///{tmp_path}/ledger.db")
    yield store
    store.close()


def job_on(store: SqlStore) -> Conservation:
    return Conservation(BookStore(store.engine), SystemClock(), MeteringMetrics())


def conserved(job: Conservation, verdict: str) -> float | None:
    name = "seedance_metering_conserved_streams_total"
    return job._metrics.registry.get_sample_value(name, {"verdict": verdict})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, None),
        ({"computed_tokens": None}, None),
        ({"acknowledged_tokens": None}, None),
        ({"computed_tokens": 9}, "computed 9, framed 5, discarded 3"),
        ({"discarded_tokens": 0}, "computed 8, framed 5, discarded 0"),
        ({"retained_tokens": 0}, "framed 5, acknowledged 4, retained 0"),
    ],
)
def test_a_streams_books(changes: dict[str, object], said: str | None) -> None:
    """Computed = framed + discarded, framed = acknowledged + retained; what nobody told is no fault."""
    assert difference_of(stream(**changes)) == said


def test_a_difference_names_its_stream(store: SqlStore, caplog: pytest.LogCaptureFixture) -> None:
    """One line in the log for each, and the metric counts."""
    job = job_on(store)
    untold = stream("u", computed_tokens=None)
    with caplog.at_level(logging.ERROR):
        assert job.check([stream("a"), stream("b", computed_tokens=7), untold]) == 1
    assert "stream b: computed 7" in caplog.text
    told = [conserved(job, verdict) for verdict in ("equal", "different", "untold")]
    assert told == [1, 1, 1]


def test_days_of_the_ledger(store: SqlStore, caplog: pytest.LogCaptureFixture) -> None:
    """Each day's sums agree or are an alert, also where two streams' differences make up for each other."""
    job = job_on(store)
    events = [stream(f"{n}", ended_ms=n * DAY_MS) for n in (0, 0, 1, 2)]
    events[1] = stream("0b", ended_ms=5)
    store.write(events, ())
    books = BookStore(store.engine)
    assert job.judge(books.days()) == 0
    assert [(day.day_ms, day.streams, day.computed) for day in books.days(DAY_MS)] == [
        (DAY_MS, 1, 8),
        (2 * DAY_MS, 1, 8),
    ]
    more, less = (stream(n, ended_ms=DAY_MS, computed_tokens=t) for n, t in (("m", 9), ("l", 7)))
    store.write([more, less], ())
    with caplog.at_level(logging.ERROR):
        assert job.judge(books.days()) == 1
    assert "1970-01-02" in caplog.text
    assert "streams l, m" in caplog.text


def test_a_ledger_of_an_earlier_release(store: SqlStore) -> None:
    """Streams whose other books nobody told are counted and compared with nothing."""
    store.write([parse_event(usage_payload())], ())
    (day,) = BookStore(store.engine).days()
    assert (day.streams, day.computed, day.balanced) == (1, 0, True)
